"""Files of ``torch.save``, read without running code from them.

Such a file is a pickle, which can call any function while it is read. Here only tensors, plain Python values and a few
containers of values are allowed (``weights_only=True``); a file with anything else is refused.
"""

import argparse
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.options import UserError

# NumPy scalars, such as the best validation loss, are values, not code. Older versions of NumPy wrote the first under another
# name.
_SAFE_GLOBALS: list[Any] = [
    np._core.multiarray.scalar,  # type: ignore[attr-defined] # noqa: SLF001 -- its name in a pickle
    (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),  # type: ignore[attr-defined] # noqa: SLF001
    np.dtype,
    *(type(np.dtype(name)) for name in ("float64", "float32", "float16", "int64", "int32", "bool")),
    argparse.Namespace,
]

_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# What torch.load raises for damaged files and other formats.
_LOAD_ERRORS = (
    RuntimeError, pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    ImportError, OverflowError, MemoryError, struct.error,
)  # fmt: skip


def read_torch_file(path: Path, safe_globals: Iterable[Any] = ()) -> Any:
    """Reads a file of ``torch.save`` on the CPU; tensors of a file in zip format stay on disk until they are used.

    Args:
        path: the file.
        safe_globals: further classes that the file may contain, for :func:`torch.serialization.safe_globals`.

    Raises:
        UserError: the file cannot be opened, is damaged or not of this format, or contains what could be code.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a checkpoint file") from None
    if not start:
        raise UserError(f"{path}: is empty; get another copy of the checkpoint")
    is_zip = start == b"PK\x03\x04"
    if is_zip:
        _check_sizes(path)
    try:
        with torch.serialization.safe_globals([*_SAFE_GLOBALS, *safe_globals]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about TorchScript archives, which it then refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except _LOAD_ERRORS as error:
        raise UserError(_explain(path, error)) from None


def _check_sizes(path: Path) -> None:
    """Checks that the members of an archive take no more memory than the file does on disk.

    Raises:
        UserError: some are compressed or overlap, which torch.save never does, or it is not an archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UserError(_explain(path, error)) from None
    declared, size = sum(member.file_size for member in members), path.stat().st_size
    if declared > size or any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise UserError(
            f"{path}: not a torch.save file: its contents ({declared} bytes) are compressed or overlap; get another copy "
            "of the checkpoint"
        )


def plain_tensors(where: str, weights: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Checks that weights from a file are dense floating-point tensors by name.

    Args:
        where: the file and the key in it, for errors.
        weights: what the file contains there.

    Raises:
        UserError: a name is not a string, or a value is not such a tensor.
    """
    for name, tensor in weights.items():
        is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        # Strides of 0 let a small file hold a tensor of any size.
        is_plain = is_plain and tensor.nbytes <= tensor.untyped_storage().nbytes()
        if not (isinstance(name, str) and is_plain and tensor.dtype in _NUMBERS):
            raise UserError(f"{where}.{name} is not a plain floating-point tensor")
    return dict(weights)


def _explain(path: Path, error: BaseException) -> str:
    text = str(error)
    forbidden = re.search(r"(?:GLOBAL|class) ([\w.]+)", text) if "Weights only load failed" in text else None
    if forbidden or "Unsupported global" in text or "Unsupported class" in text or "Can only" in text:
        what = forbidden[1] if forbidden else "objects other than plain values"
        return (
            f"{path}: contains {what}; loading it could run code, so it was refused and nothing was run; ask its author to "
            f"save only tensors and plain values"
        )
    return f"{path}: not a torch.save file, or damaged; get another copy of the checkpoint"
