"""New models with random weights, as baselines."""

from collections.abc import Sequence

from data_tools.leads import LEADS
from engine.models.encoder import EncoderOptions
from engine.models.model_config import ModelConfig
from engine.models.pretrained import PretrainedModel, with_random_weights
from engine.options import UserError

ARCHITECTURES = {"base": EncoderOptions()}
"""Name -> architecture: base, the paper's."""


def create(architecture: str | EncoderOptions = "base", *, leads: Sequence[str] = LEADS, seed: int = 0) -> PretrainedModel:
    """Returns an encoder with random weights, which the seed determines.

    Args:
        architecture: a key of :data:`ARCHITECTURES`, or options.
        leads: names of the leads, in the order of the input's channels.
        seed: the seed.

    Raises:
        UserError: no architecture has this name.
        ValueError: the leads are not distinct names among LEADS.
    """
    if isinstance(architecture, str):
        if architecture not in ARCHITECTURES:
            raise UserError(f"unknown architecture '{architecture}'; known: {', '.join(ARCHITECTURES)}")
        architecture = ARCHITECTURES[architecture]
    return with_random_weights(ModelConfig(kind="encoder", encoder=architecture, leads=tuple(leads)), seed)
