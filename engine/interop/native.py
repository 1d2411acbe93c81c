"""The native folder with the heads of pre-training, which :mod:`engine.models.pretrained` does not know."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError
from torch import Tensor

from data_tools.validation import describe_validation_error
from engine.models import EncoderOptions
from engine.models.model_config import ModelConfig
from engine.models.model_weights import check_shapes, meta_device, modules_on_meta
from engine.models.pretrained import PretrainedModel, load, save
from engine.objectives import OBJECTIVES, Objective
from engine.options import UserError


def make_objective(where: str, section: Mapping[str, Any], encoder: EncoderOptions) -> Objective:
    """Returns the objective of an ``objective`` section, on the meta device.

    Args:
        where: the file with the section, for errors.
        section: ``name`` and the objective's options.
        encoder: the encoder's options.

    Raises:
        UserError: an unknown name, invalid options, or sizes that are too large.
    """
    name = section.get("name")
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise UserError(f"{where}: objective.name: unknown objective '{name}'; known: {', '.join(OBJECTIVES)}")
    objective_class = OBJECTIVES[name]
    try:
        options = objective_class.options_class.model_validate({key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        raise UserError(f"{where}: {describe_validation_error(error, 'objective')}") from None
    with meta_device(where):
        return objective_class(options, encoder)


def objective_section(name: str, options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Returns an ``objective`` section with every option of the objective written out."""
    full = OBJECTIVES[name].options_class.model_validate(options)
    return {"name": name, **full.model_dump(mode="json")}


def empty_tensors(where: str, config: ModelConfig) -> dict[str, Tensor]:
    """Returns all tensors of a model by name, on the meta device: their names and shapes."""
    encoder, head = modules_on_meta(where, config)
    objective = None if config.objective is None else make_objective(where, config.objective, config.encoder)
    modules = {"encoder.": encoder, "objective.": objective, "head.": head}
    return {p + name: t for p, module in modules.items() if module is not None for name, t in module.state_dict().items()}


def save_model(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Writes a native folder after checking every tensor, including those of the pre-training heads.

    Raises:
        UserError: see :func:`engine.models.pretrained.save`.
    """
    check_shapes(str(folder), tensors, empty_tensors(str(folder), config))
    save(folder, config, tensors)


def load_tensors(folder: Path) -> tuple[PretrainedModel, dict[str, Tensor]]:
    """Reads a native folder; returns the model and all its tensors by name, including those of the pre-training heads.

    Raises:
        UserError: see :func:`engine.models.pretrained.load`.
    """
    model = load(folder)
    tensors = model.state_dict() | {f"objective.{name}": tensor for name, tensor in model.objective_weights.items()}
    check_shapes(str(folder), tensors, empty_tensors(str(folder), model.config))
    return model, tensors
