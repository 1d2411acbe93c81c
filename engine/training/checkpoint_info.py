"""The description of a checkpoint, ``checkpoint.json``: read, validated, and compared with the model that resumes from it."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import pydantic_core
from pydantic import Field, TypeAdapter, ValidationError
from torch import nn

from data_tools.validation import count, describe_validation_error
from engine.options import UserError
from engine.training.checkpoint_files import FileDescription, Part, part_files
from engine.training.deepspeed_backend import frozen_parameters, parameter_shapes

FORMAT_VERSION = 3
OLD_VERSIONS = (1, 2)  # DeepSpeed's files, see engine/interop/deepspeed_files.py
FOLDER_NAME = re.compile(r"step-\d{8}")
_MAX_BYTES = 2**28
_MAX_CURSOR = 2**53

_Count = Annotated[int, Field(strict=True, ge=0, lt=10**8)]
_Size = Annotated[int, Field(strict=True, ge=0, lt=2**40)]


@dataclass(frozen=True)
class CheckpointInfo:
    """The contents of ``checkpoint.json``.

    Attributes:
        format_version: :data:`FORMAT_VERSION`.
        step: number of finished steps.
        loader: state of the training loader.
        config: the run's resolved configuration.
        world_size: number of ranks that wrote the checkpoint.
        zero_stage: ZeRO stage of the run that wrote the checkpoint.
        shapes: shape of every parameter by name.
        frozen: names of the parameters that are not trained, and have no optimizer state.
        num_updates: how often the optimizer has updated the weights.
        score: validation score at this step, if it was computed.
        best_score: best validation score of the run so far.
        num_worse: evaluations since the one with the best score.
        versions: versions of the packages that wrote the checkpoint.
        provenance: where the run's initial weights come from, see :attr:`engine.tasks.Task.provenance`; empty if they were
            random, or if an older release wrote the checkpoint.
        parts: for each rank, the slices that its files hold.
        files: name -> description of every other file.
    """

    format_version: int
    step: _Count
    loader: dict[str, Any]
    config: dict[str, Any]
    world_size: _Count
    zero_stage: int
    shapes: dict[str, list[_Size]]
    frozen: list[str] = field(default_factory=list)
    num_updates: _Count = 0
    score: float | None = None
    best_score: float | None = None
    num_worse: _Count = 0
    versions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    files: dict[str, FileDescription] = field(default_factory=dict)


class UnsupportedVersionError(UserError):
    """A checkpoint of another format version; it is not damaged, and must not be passed over."""


_INFO: Final = TypeAdapter(CheckpointInfo)


def read_description(path: Path) -> dict[str, Any]:
    """Returns the contents of a checkpoint's ``checkpoint.json``, of any version; only its syntax is checked."""
    file = path / "checkpoint.json"
    if file.exists() and (not file.is_file() or file.stat().st_size > _MAX_BYTES):
        raise UserError(
            f"{file}: is not a regular file, or is larger than {_MAX_BYTES >> 20} MiB: choose the folder of a checkpoint"
        )
    try:
        content = pydantic_core.from_json(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}): choose the folder of a complete checkpoint") from None
    except ValueError as error:
        raise UserError(f"{file}: is damaged: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: is damaged: expected a mapping")
    return content


def validate_description(path: Path, content: dict[str, Any]) -> CheckpointInfo:
    """Returns a checkpoint's description with every field validated.

    Raises:
        UserError: one line that names the first invalid field.
    """
    try:
        return _INFO.validate_python(content)
    except ValidationError as error:
        problem = " ".join(describe_validation_error(error).split())
        raise UserError(f"{path / 'checkpoint.json'}: is damaged: {problem}") from None


def read_info(path: Path) -> CheckpointInfo:
    """Reads ``checkpoint.json`` and checks that it is consistent."""
    content = read_description(path)
    _check_version(path, content.get("format_version"))
    info = validate_description(path, content)
    problem = next(_find_problems(info), None)
    if FOLDER_NAME.fullmatch(path.name) and path.name != f"step-{info.step:08d}":
        problem = f"it belongs to step {info.step}"
    if problem is not None:
        raise UserError(f"{path / 'checkpoint.json'}: is damaged: {' '.join(problem.split())}")
    return info


def check_matches(path: Path, info: CheckpointInfo, model: nn.Module) -> None:
    """Compares a checkpoint with the model that will resume from it.

    Raises:
        UserError: one line that says which shapes or frozen parameters differ.
    """
    shapes = parameter_shapes(model)
    differing = [name for name in info.shapes.keys() | shapes.keys() if info.shapes.get(name) != shapes.get(name)]
    if differing:
        name = min(differing)
        raise UserError(
            f"{path}: belongs to another model: {name} is {info.shapes.get(name, 'absent')} there and "
            f"{shapes.get(name, 'absent')} in this configuration ({count(len(differing), 'difference')}): use the options it "
            f"was trained with (model, leads, and objective or task), or another output_dir"
        )
    frozen = set(info.frozen) ^ set(frozen_parameters(model))
    if frozen:
        name = min(frozen)
        there, here = ("frozen", "trained") if name in info.frozen else ("trained", "frozen")
        raise UserError(
            f"{path}: {name} is {there} in the checkpoint and {here} in this configuration "
            f"({count(len(frozen), 'difference')}): use the checkpoint's mode and freeze_feature_encoder, or another output_dir"
        )


def _check_version(path: Path, version: object) -> None:
    if version in OLD_VERSIONS:
        raise UnsupportedVersionError(
            f"{path}: has format version {version}, which only the converter reads: run 'python engine/convert.py checkpoint "
            f"{path} NEW', and resume from NEW"
        )
    if type(version) is int and version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{path}: has format version {version}, but this release reads version {FORMAT_VERSION}: use the release that "
            f"wrote it"
        )
    if version != FORMAT_VERSION:
        raise UserError(f"{path / 'checkpoint.json'}: is damaged: format_version is not {FORMAT_VERSION}")


def _find_problems(info: CheckpointInfo) -> Iterator[str]:
    cursor = info.loader.get("cursor")
    if type(cursor) is not int or not 0 <= cursor < _MAX_CURSOR:
        yield f"loader.cursor is not a number from 0 to {_MAX_CURSOR}"
    if len(info.parts) != info.world_size:
        yield f"it has {len(info.parts)} parts, but {info.world_size} ranks wrote it"
    differing = info.files.keys() ^ {name for rank in range(len(info.parts)) for name in part_files(rank)}
    if differing:
        yield f"files: unexpected or missing entry {min(differing)!r}"
    for rank, part in enumerate(info.parts):
        file, _ = part_files(rank)
        if file in info.files and info.files[file].size < 4 * sum(stop - start for start, stop in part.values()):
            yield f"files: {file} is too small for its slices"
    slices: dict[str, list[tuple[int, int]]] = {name: [] for name in info.shapes}
    for part in info.parts:
        for name, piece in part.items():
            if name not in slices:
                yield f"parts: {name!r} is not in shapes"
            else:
                slices[name].append(piece)
    for name, pieces in slices.items():
        # Each slice must begin where the one before it ends.
        ends = [0, *(stop for start, stop in sorted(pieces) if start < stop)]
        starts = [*(start for start, stop in sorted(pieces) if start < stop), math.prod(info.shapes[name])]
        if ends != starts or any(start > stop for start, stop in pieces):
            yield f"parts: the slices of {name!r} do not cover it exactly once"
    if not info.shapes.keys() >= set(info.frozen):
        yield "frozen: lists names that are not parameters"
