"""The native folder with the heads of pre-training, which :mod:`engine.models.pretrained` does not know."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError
from torch import Tensor

from data_tools.validation import describe_validation_error
from engine.models.model_config import ModelConfig
from engine.models.model_weights import check_shapes, meta_device, modules_on_meta
from engine.models.pretrained import PretrainedModel, load
from engine.objectives import OBJECTIVES, Objective
from engine.options import UserError


def _make_objective(where: str, config: ModelConfig) -> Objective | None:
    """Returns the objective of a pre-training model, on the meta device; UserError if there is no such objective."""
    if config.objective is None:
        return None
    name, options = str(config.objective["name"]), {key: value for key, value in config.objective.items() if key != "name"}
    if name not in OBJECTIVES:
        raise UserError(f"{where}: objective.name: unknown objective '{name}'; known: {', '.join(OBJECTIVES)}")
    try:
        validated = OBJECTIVES[name].options_class.model_validate(options)
    except ValidationError as error:
        raise UserError(f"{where}: {describe_validation_error(error, 'objective')}") from None
    with meta_device(where):
        return OBJECTIVES[name](validated, config.encoder)


def objective_section(name: str, options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Returns an ``objective`` section with every option of the objective written out."""
    full = OBJECTIVES[name].options_class.model_validate(options)
    return {"name": name, **full.model_dump(mode="json")}


def empty_tensors(where: str, config: ModelConfig) -> dict[str, Tensor]:
    """Returns all tensors of a model by name, on the meta device: their names and shapes."""
    encoder, head = modules_on_meta(where, config)
    modules = {"encoder.": encoder, "objective.": _make_objective(where, config), "head.": head}
    return {p + name: t for p, module in modules.items() if module is not None for name, t in module.state_dict().items()}


def load_tensors(folder: Path) -> tuple[PretrainedModel, dict[str, Tensor]]:
    """Reads a native folder; returns the model and all its tensors by name, including the pre-training heads.

    Raises:
        UserError: see :func:`engine.models.pretrained.load`.
    """
    model = load(folder)
    tensors = model.tensors()
    check_shapes(str(folder), tensors, empty_tensors(str(folder), model.config))
    return model, tensors
