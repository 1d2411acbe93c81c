"""Checkpoints of format versions 1 and 2, whose weights and optimizer state are pickles that DeepSpeed wrote.

    STEP/deepspeed/mp_rank_00_model_states.pt                  ZeRO 0 to 2: all weights; ZeRO 0: the optimizer's state too
                   zero_pp_rank_R_mp_rank_00_optim_states.pt   ZeRO 1 to 3: rank R's part of the optimizer's state; ZeRO 3: and
                                                               its part of the weights
                   zero_pp_rank_R_mp_rank_00_model_states.pt   ZeRO 3: shapes

No code in the files is run, see :mod:`engine.interop.torch_files`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from data_tools.validation import describe_validation_error
from engine.config import OptimizerOptions
from engine.interop.torch_files import plain_tensors, read_torch_file
from engine.options import UserError
from engine.training.checkpoint import write_checkpoint
from engine.training.checkpoint_files import MOMENTS, FileDescription, ParameterSlice, compare_file
from engine.training.checkpoint_info import (
    FORMAT_VERSION,
    OLD_VERSIONS,
    CheckpointInfo,
    read_description,
    validate_description,
)
from engine.training.optimizer import split_parameters

_MODEL_FILE = "deepspeed/mp_rank_00_model_states.pt"
_SHAPES_FILE = "deepspeed/zero_pp_rank_0_mp_rank_00_model_states.pt"
_OPTIMIZER_FILE = "deepspeed/zero_pp_rank_{}_mp_rank_00_optim_states.pt"
_FILES = TypeAdapter(dict[str, FileDescription])
# Version 1 has no score except the validation loss.
_RENAMED_SINCE_1 = {"valid_loss": "score", "best_valid_loss": "best_score"}


class _Placeholder:
    """Replaces DeepSpeed's own objects in its files, so that none of its code is run."""

    def __init__(self, *_arguments: object) -> None:
        pass


class _Address(_Placeholder):
    """DeepSpeed's place of a parameter in a rank's flat tensor."""

    start: int
    numel: int


_DEEPSPEED_OBJECTS = [
    (_Placeholder, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Placeholder, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (_Address, "deepspeed.utils.tensor_fragment.fragment_address"),
    # Python 3.11.0 to 3.11.3 pickle a member of an enumeration as getattr(class, name), which is not looked up here either.
    (_Placeholder, "builtins.getattr"),
]


def convert_checkpoint(old: Path, new: Path) -> list[str]:
    """Converts a checkpoint to the current format, from which any number of ranks with any ZeRO stage can resume.

    Args:
        old: the folder of a checkpoint of format version 1 or 2.
        new: the folder to write; it must not exist.

    Returns:
        Notes for the user.

    Raises:
        UserError: one line; nothing was written.
    """
    if new.exists() or new.is_symlink():
        raise UserError(f"{new}: already exists: choose a new folder")
    info = read_old_info(old)
    weights = read_old_weights(old, info)
    with _checking_contents(old):
        moments, num_updates = _moments(old, info)
        slices = [
            ParameterSlice(name, 0, weights[name].reshape(-1), {key: moments[key][name].reshape(-1) for key in MOMENTS})
            for name in info.shapes
        ]
        for name, start, weight, state in slices:
            for tensor in (weight, *state.values()):
                size = math.prod(info.shapes[name])
                if (start, tensor.shape, tensor.dtype) != (0, (size,), torch.float32):
                    raise TypeError(f"{name} is {tensor.dtype} {list(tensor.shape)}, expected torch.float32 [{size}]")
    write_checkpoint(new, replace(info, num_updates=num_updates), slices)
    return [f"to resume from it, add resume={new} to the run's command"]


def read_old_info(path: Path) -> CheckpointInfo:
    """Reads ``checkpoint.json`` of format version 1 or 2, and verifies the files that belong to the checkpoint.

    Raises:
        UserError: the checkpoint is damaged, or of another version.
    """
    content = read_description(path)
    version = content.get("format_version")
    if version not in OLD_VERSIONS:
        raise UserError(f"{path}: has format version {version}: only versions 1 and 2 are converted")
    if version == 1:
        content = {_RENAMED_SINCE_1.get(key, key): value for key, value in content.items()}
    listed = content.pop("files", None)
    info = validate_description(path, {**content, "format_version": FORMAT_VERSION})
    try:
        files = _FILES.validate_python(listed)
    except ValidationError as error:
        raise UserError(f"{path / 'checkpoint.json'}: is damaged: files: {describe_validation_error(error)}") from None
    for name in _file_names(info):
        problem = compare_file(path / name, files[name]) if name in files else f"{name} is not listed among its files"
        if problem is not None:
            raise UserError(f"{path}: the checkpoint is damaged: {problem}")
    return info


def read_old_weights(path: Path, info: CheckpointInfo) -> dict[str, Tensor]:
    """Returns the weights of a checkpoint of format version 1 or 2 by name.

    Raises:
        UserError: the files do not belong to a run's checkpoint.
    """
    with _checking_contents(path):
        if info.zero_stage == 3:
            parts = [torch.cat(list(state["fp32_flat_groups"])) for state in _optimizer_states(path, info)]
            return join_pieces(parts, _listed_shapes(path))
        return plain_tensors(f"{path}: module", read_torch_file(path / _MODEL_FILE, _DEEPSPEED_OBJECTS)["module"])


def _moments(path: Path, info: CheckpointInfo) -> tuple[dict[str, dict[str, Tensor]], int]:
    """Returns AdamW's moments, by kind and by name of the parameter, and how often it has updated the weights."""
    if info.zero_stage == 0:
        states = [read_torch_file(path / _MODEL_FILE, _DEEPSPEED_OBJECTS)["optimizer"]["state"]]
        options = OptimizerOptions.model_validate({"groups": info.config["optimizer"].get("groups", [])})
        names = chain.from_iterable(group for group, _ in split_parameters(list(info.shapes), options))
        numbers = {name: number for number, name in enumerate(names)}
        moments = {key: {name: states[0][numbers[name]][key] for name in info.shapes} for key in MOMENTS}
    elif info.zero_stage == 3:
        states = [state["optimizer_state_dict"]["state"] for state in _optimizer_states(path, info)]
        shapes = _listed_shapes(path)
        moments = {key: join_pieces([torch.cat(_take(state, key)) for state in states], shapes) for key in MOMENTS}
    else:
        optimizers = _optimizer_states(path, info)
        states = [optimizer["base_optimizer_state"]["state"] for optimizer in optimizers]
        addresses = [optimizer["param_slice_mappings"] for optimizer in optimizers]
        moments = {key: _join_slices([_take(state, key) for state in states], addresses) for key in MOMENTS}
    counts = {int(state["step"]) for rank in states for state in rank.values()}
    if len(counts) != 1:
        raise ValueError(f"the optimizer's step counts differ between parameters: {sorted(counts)}")
    return moments, counts.pop()


def _take(state: Mapping[int, Mapping[str, Tensor]], key: str) -> list[Tensor]:
    return [state[number][key] for number in sorted(state)]


def _join_slices(flat: list[list[Tensor]], addresses: list[list[Mapping[str, _Address]]]) -> dict[str, Tensor]:
    """Joins what ZeRO 1 and 2 give to the ranks, slices of a group's flattened parameters, into tensors by name.

    Args:
        flat: for each rank and parameter group, the rank's slices end to end, fp32 [K].
        addresses: for each rank and parameter group, where the slice of each parameter lies in this tensor.
    """
    slices: dict[str, list[Tensor]] = {}
    for groups, group_addresses in zip(flat, addresses, strict=True):
        for tensor, places in zip(groups, group_addresses, strict=True):
            for name, address in places.items():
                slices.setdefault(name, []).append(tensor[address.start : address.start + address.numel])
    return {name: torch.cat(parts) for name, parts in slices.items()}


def _listed_shapes(path: Path) -> dict[str, torch.Size]:
    """Returns the shapes that the files of ZeRO 3 list, in the order of a rank's pieces."""
    listed = read_torch_file(path / _SHAPES_FILE, _DEEPSPEED_OBJECTS)["param_shapes"]
    return {name: torch.Size(shape) for group in listed for name, shape in group.items()}


def join_pieces(parts: Sequence[Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Joins what ZeRO 3 gives to the ranks into tensors by name.

    ZeRO 3 cuts each flattened tensor into equal pieces, one per rank, of which the last is padded.

    Args:
        parts: for each rank, its pieces end to end, fp32 [sum of pieces].
        shapes: shape of each tensor by name, in the order of the pieces.

    Raises:
        ValueError: the lengths of the parts do not match the shapes.
    """
    lengths = {name: -(-shape.numel() // len(parts)) for name, shape in shapes.items()}
    for part in parts:
        if part.numel() != sum(lengths.values()):
            raise ValueError(f"a rank has {part.numel()} values, expected {sum(lengths.values())}")
    pieces = [part.split(list(lengths.values())) for part in parts]
    return {
        name: torch.cat(by_rank)[: shape.numel()].view(shape)
        for (name, shape), by_rank in zip(shapes.items(), zip(*pieces, strict=True), strict=True)
    }


def _file_names(info: CheckpointInfo) -> Iterator[str]:
    """Yields the files that the checkpoint consists of."""
    yield _SHAPES_FILE if info.zero_stage == 3 else _MODEL_FILE
    for rank in range(info.world_size if info.zero_stage else 0):
        yield _OPTIMIZER_FILE.format(rank)


def _optimizer_states(path: Path, info: CheckpointInfo) -> list[Mapping[str, Any]]:
    files = [path / _OPTIMIZER_FILE.format(rank) for rank in range(info.world_size)]
    return [read_torch_file(file, _DEEPSPEED_OBJECTS)["optimizer_state_dict"] for file in files]


@contextmanager
def _checking_contents(path: Path) -> Iterator[None]:
    """Reports errors from unexpected contents of the files as a :class:`UserError`."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path}: its files are not a valid DeepSpeed checkpoint ({error!r})") from None
