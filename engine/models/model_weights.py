"""Checks of a model's tensors against its configuration, without allocating the model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.models.encoder import Encoder
from engine.models.heads import ClassificationHead
from engine.models.model_config import ModelConfig
from engine.options import UserError


def check_tensors(where: str, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Checks that tensors match a model's configuration.

    For pre-training heads, only the values are checked: :mod:`engine.interop.native`, which knows objectives, checks their
    names and shapes.

    Args:
        where: the file or folder, for errors.
        config: the model's configuration.
        tensors: tensors by name, with the prefixes ``encoder.``, ``objective.`` and ``head.``.

    Raises:
        UserError: missing or unexpected tensors, wrong shapes, dtypes that are not floating-point, or values that are not
            finite in fp32.
    """
    encoder, head = modules_on_meta(where, config)
    modules = {"encoder.": encoder} | ({} if head is None else {"head.": head})
    expected = {p + name: tensor for p, module in modules.items() for name, tensor in module.state_dict().items()}
    is_pretraining = config.kind == "pretraining"
    given = {name: tensor for name, tensor in tensors.items() if not (is_pretraining and name.startswith("objective."))}
    check_shapes(where, given, expected)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise UserError(f"{where}: {name} has dtype {tensor.dtype}; expected floating-point numbers")
        if not tensor.float().isfinite().all():
            raise UserError(f"{where}: {name} contains NaN or infinity: the training of this model failed")


def check_shapes(where: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Checks names and shapes of tensors.

    Raises:
        UserError: one line that names the first missing, unexpected and misshapen tensor.
    """
    missing, unexpected = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    misshapen = [name for name in sorted(expected.keys() & given.keys()) if expected[name].shape != given[name].shape]
    problems = [f"{what} {_summarize(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names]
    if misshapen:
        name = misshapen[0]
        problems.append(f"{_summarize(misshapen)} has shape {list(given[name].shape)}, expected {list(expected[name].shape)}")
    if problems:
        raise UserError(f"{where}: the weights do not match the configuration: {'; '.join(problems)}")


def _summarize(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


@contextmanager
def meta_device(where: str) -> Iterator[None]:
    """Makes modules without storage: no time is spent on initial weights, and no random numbers are drawn.

    Args:
        where: the file with the sizes, for errors.

    Raises:
        UserError: a tensor is larger than PyTorch supports.
    """
    try:
        with torch.device("meta"):
            yield
    except RuntimeError as error:
        raise UserError(f"{where}: the configured model is too large ({error})") from None


def modules_on_meta(where: str, config: ModelConfig) -> tuple[Encoder, ClassificationHead | None]:
    """Returns a model's encoder and head on the :func:`meta_device`."""
    with meta_device(where):
        head = None if config.labels is None else ClassificationHead(config.encoder.width, len(config.labels))
        return Encoder(config.encoder, len(config.leads)), head
