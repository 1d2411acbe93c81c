"""New models with random weights, as baselines."""

from collections.abc import Sequence

import torch

from data_tools.leads import LEADS
from engine.models.encoder import Encoder, EncoderOptions
from engine.models.model_config import ModelConfig
from engine.models.pretrained import PretrainedModel
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
    config = ModelConfig(
        kind="encoder", encoder=architecture, leads=tuple(leads), provenance={"source": "random weights", "seed": seed}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PretrainedModel(config, Encoder(architecture, len(config.leads)))
