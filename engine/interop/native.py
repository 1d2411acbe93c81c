"""The native folder together with the heads of pre-training, which :mod:`engine.models.pretrained` knows nothing of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue, ValidationError
from torch import Tensor

from engine.models import EncoderOptions
from engine.models.pretrained import (
    ModelConfig,
    PretrainedModel,
    compare_shapes,
    describe_mistake,
    empty_modules,
    load,
    save,
    without_storage,
)
from engine.objectives import OBJECTIVES, Objective
from engine.options import UserError


def make_objective(where: str, section: Mapping[str, Any], encoder: EncoderOptions) -> Objective:
    """The heads that an ``objective`` section names, without storage.

    Args:
        where: the file that says so, for errors.
        section: ``name`` and the objective's own options.
        encoder: the encoder's options.

    Raises:
        UserError: an unknown name, options that the objective does not have, or sizes beyond measure.
    """
    name = section.get("name")
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise UserError(f"{where}: objective.name: no objective is called '{name}'; known: {', '.join(OBJECTIVES)}")
    objective_class = OBJECTIVES[name]
    try:
        options = objective_class.options_class.model_validate({key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        raise UserError(f"{where}: objective: {describe_mistake(error)}") from None
    with without_storage(where):
        return objective_class(options, encoder)


def objective_section(name: str, options: Mapping[str, Any]) -> dict[str, JsonValue]:
    """An ``objective`` section with every option of the objective written out."""
    full = OBJECTIVES[name].options_class.model_validate(options)
    return {"name": name, **full.model_dump(mode="json")}


def empty_tensors(where: str, config: ModelConfig) -> dict[str, Tensor]:
    """All tensors of a model by name, without storage: their names and shapes."""
    encoder, head = empty_modules(where, config)
    objective = None if config.objective is None else make_objective(where, config.objective, config.encoder)
    modules = {"encoder.": encoder, "objective.": objective, "head.": head}
    return {p + name: t for p, module in modules.items() if module is not None for name, t in module.state_dict().items()}


def save_model(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Writes a native folder after checking every tensor, those of the pre-training heads included.

    Raises:
        UserError: one line, see :func:`engine.models.pretrained.save`.
    """
    expected = empty_tensors(str(folder), config)
    compare_shapes(str(folder), _shapes(tensors), _shapes(expected))
    save(folder, config, tensors)


def load_tensors(folder: Path) -> tuple[PretrainedModel, dict[str, Tensor]]:
    """Reads a native folder, and gives all its tensors by name, those of the pre-training heads checked as well.

    Raises:
        UserError: one line, see :func:`engine.models.pretrained.load`.
    """
    model = load(folder)
    tensors = model.state_dict() | {f"objective.{name}": tensor for name, tensor in model.objective_weights.items()}
    compare_shapes(str(folder), _shapes(tensors), _shapes(empty_tensors(str(folder), model.config)))
    return model, tensors


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
