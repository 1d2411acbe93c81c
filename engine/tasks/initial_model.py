"""The model that a run starts from, given by the option ``init_from``."""

from pathlib import Path

from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE
from engine.config import RANDOM, RunConfig
from engine.data import find_leads
from engine.models import EncoderOptions, ModelConfig
from engine.models.model_config import read_config
from engine.options import UserError

# Options of a trained encoder that may be changed: they affect no weight's shape or meaning.
_CHANGEABLE = {
    "feature_grad_scale",
    "feature_dropout",
    "input_dropout",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "drop_path",
    "output_layers",
}


def initial_config(config: RunConfig) -> ModelConfig:
    """Returns the configuration of the model to start from.

    Raises:
        UserError: the folder does not contain a model, or the model's sampling rate is not that of datasets.
    """
    if config.init_from == RANDOM:
        leads = tuple(LEADS[row] for row in find_leads(config.leads))
        return ModelConfig(kind="encoder", encoder=config.model, leads=leads)
    initial = read_config(Path(config.init_from))
    if initial.sampling_rate != SAMPLING_RATE:
        raise UserError(
            f"init_from: {config.init_from} expects input at {initial.sampling_rate} Hz, and datasets are sampled at "
            f"{SAMPLING_RATE} Hz: choose another model"
        )
    return initial


def resolve_architecture(config: RunConfig, initial: ModelConfig) -> EncoderOptions:
    """Returns the architecture of a run that starts from ``initial``: the model's, with the options that the run changes.

    Raises:
        UserError: ``model`` contradicts it.
    """
    if config.init_from == RANDOM:
        return config.model
    architecture = initial.encoder
    chosen = {name: getattr(config.model, name) for name in config.model.model_fields_set}
    for name, value in chosen.items():
        given = getattr(architecture, name)
        if name not in _CHANGEABLE and value != given:
            raise UserError(
                f"model.{name}={value} contradicts init_from, where it is {given}: set it to {given}, "
                f"or remove it; only {', '.join(sorted(_CHANGEABLE))} may be changed"
            )
    return EncoderOptions.model_validate(architecture.model_dump() | chosen)
