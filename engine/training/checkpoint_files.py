"""The tensor files of a checkpoint: each rank's part of the weights and of the optimizer's state, in safetensors format.

    weights-00000.safetensors      NAME -> fp32 [K]: a slice of the flattened parameter
    optimizer-00000.safetensors    NAME.exp_avg, NAME.exp_avg_sq -> fp32 [K]: AdamW's moments of the same slice

The number is the rank. ``checkpoint.json`` says which slices a part holds, so that any number of ranks with any ZeRO
stage can read what they need.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import safetensors
import torch
from pydantic import Field
from torch import Tensor

from data_tools.files import hash_file
from engine.options import UserError

MOMENTS = ("exp_avg", "exp_avg_sq")

_Offset = Annotated[int, Field(strict=True, ge=0)]
# Name of a parameter -> start and stop of the part's slice in the flattened parameter.
Part = dict[str, tuple[_Offset, _Offset]]


class ParameterSlice(NamedTuple):
    """A slice of a flattened parameter, and of its optimizer state.

    Attributes:
        name: the parameter's name.
        start: offset of the slice in the flattened parameter.
        weight: fp32 [K]; when a checkpoint is read, the values are copied into it.
        moments: AdamW's moments by the names of :data:`MOMENTS`, each fp32 [K]; empty for a frozen parameter.
    """

    name: str
    start: int
    weight: Tensor
    moments: dict[str, Tensor]

    @property
    def stop(self) -> int:
        """Offset of the slice's end in the flattened parameter."""
        return self.start + self.weight.numel()

    def cut(self, start: int, stop: int) -> "ParameterSlice":
        """Returns the part between two offsets in the flattened parameter, which must lie within the slice."""
        assert self.start <= start <= stop <= self.stop
        window = slice(start - self.start, stop - self.start)
        return ParameterSlice(self.name, start, self.weight[window], {key: t[window] for key, t in self.moments.items()})

    def copied(self) -> "ParameterSlice":
        """Returns a copy on the CPU."""
        moments = {key: moment.to("cpu", copy=True) for key, moment in self.moments.items()}
        return ParameterSlice(self.name, self.start, self.weight.to("cpu", copy=True), moments)


# The part of a stored tensor to read, and the length of the whole tensor.
_Window = tuple[slice, int]


@dataclass(frozen=True)
class FileDescription:
    """Size in bytes and SHA-256 of a file."""

    size: _Offset
    sha256: str


def part_files(rank: int) -> tuple[str, str]:
    """Returns the names of the files with a rank's part of the weights and of the optimizer's state."""
    return f"weights-{rank:05d}.safetensors", f"optimizer-{rank:05d}.safetensors"


def write_part(folder: Path, rank: int, slices: Sequence[ParameterSlice]) -> dict[str, FileDescription]:
    """Writes a rank's part and flushes it to disk; returns its files by name.

    Raises:
        OSError: the files cannot be written.
    """
    weights = {piece.name: piece.weight for piece in slices}
    moments = {f"{piece.name}.{key}": piece.moments[key] for piece in slices for key in piece.moments}
    files = zip(part_files(rank), (weights, moments), strict=True)
    return {name: _write(folder / name, tensors) for name, tensors in files}


def read_slices(folder: Path, parts: Sequence[Part], wanted: Sequence[ParameterSlice]) -> None:
    """Copies the values of slices from a checkpoint, reading nothing else.

    Args:
        folder: the checkpoint's folder.
        parts: the slices that each part holds; together they cover every parameter.
        wanted: the slices to fill.

    Raises:
        UserError: a file does not match ``parts``.
    """
    for rank, part in enumerate(parts):
        overlaps: list[tuple[ParameterSlice, _Window]] = []
        for piece in wanted:
            part_start, part_stop = part.get(piece.name, (0, 0))
            start, stop = max(piece.start, part_start), min(piece.stop, part_stop)
            if start < stop:
                window = slice(start - part_start, stop - part_start), part_stop - part_start
                overlaps.append((piece.cut(start, stop), window))
        weights = [(piece.name, piece.weight, window) for piece, window in overlaps]
        moments = [(f"{piece.name}.{key}", t, window) for piece, window in overlaps for key, t in piece.moments.items()]
        for file, targets in zip(part_files(rank), (weights, moments), strict=True):
            if targets:
                _read(folder / file, targets)


def describe_file(path: Path) -> FileDescription:
    """Returns the size and hash of a file."""
    return FileDescription(path.stat().st_size, hash_file(path))


def compare_file(path: Path, expected: FileDescription) -> str | None:
    """Returns what is wrong with a file, or ``None`` if it is as expected."""
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != expected.size:
        return f"{path.name} has {path.stat().st_size} bytes, expected {expected.size}"
    if describe_file(path) != expected:
        return f"{path.name} has changed since it was written"
    return None


def _write(path: Path, tensors: Mapping[str, Tensor]) -> FileDescription:
    """Writes a safetensors file, one tensor after another, and hashes the bytes as it writes."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32, name
        end = offset + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": [tensor.numel()], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file, ThreadPoolExecutor(1) as hashing:
        start = len(text).to_bytes(8, "little") + text
        digest.update(start)
        file.write(start)
        for tensor in tensors.values():
            values = tensor.detach().cpu().numpy().data.cast("B")
            hashed = hashing.submit(digest.update, values)
            file.write(values)
            hashed.result()
        file.flush()
        os.fsync(file.fileno())
    return FileDescription(len(start) + offset, digest.hexdigest())


def _read(path: Path, targets: Sequence[tuple[str, Tensor, _Window]]) -> None:
    """Fills tensors from a file: (name, tensor to fill, window of the stored tensor)."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            for name, tensor, (window, length) in targets:
                stored = file.get_slice(name)
                if stored.get_dtype() != "F32" or stored.get_shape() != [length]:
                    raise UserError(f"{path}: is damaged: {name} is not fp32 [{length}]")
                tensor.copy_(stored[window])
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path}: is damaged: {' '.join(str(error).split())}") from None
