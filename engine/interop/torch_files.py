"""Files of ``torch.save``, read without running code from them.

Such a file is a pickle, which can name any function to be called when it is read. Here only tensors, plain Python values
and a few containers of values are allowed (``weights_only=True``); a file that names anything else is refused.
"""

import argparse
import pickle
import re
import struct
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.options import UserError

# numpy's scalars, as in a best validation loss that was kept: values, and no code. Older versions of numpy wrote the first
# under another name.
_HARMLESS: list[Any] = [
    np._core.multiarray.scalar,  # type: ignore[attr-defined] # noqa: SLF001 -- a pickle names it so
    (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),  # type: ignore[attr-defined] # noqa: SLF001
    np.dtype,
    *(type(np.dtype(name)) for name in ("float64", "float32", "float16", "int64", "int32", "bool")),
    argparse.Namespace,
]

_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# What torch.load was seen to raise for files that are damaged or of another kind.
_UNREADABLE = (
    RuntimeError, pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    ImportError, OverflowError, MemoryError, struct.error,
)  # fmt: skip


def read_torch_file(path: Path, harmless: Iterable[Any] = ()) -> Any:
    """Reads a file of ``torch.save`` onto the CPU; the tensors of a file in zip format stay on the disk until they are used.

    Args:
        path: the file.
        harmless: further classes that may be made from the file, as :func:`torch.serialization.safe_globals` takes them.

    Raises:
        UserError: one line: it cannot be opened, is none or damaged, or names something that could be code.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): give a checkpoint file") from None
    if not start:
        raise UserError(f"{path}: is empty: take another copy of the checkpoint")
    try:
        with torch.serialization.safe_globals([*_HARMLESS, *harmless]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TorchScript archives, which it then refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=start == b"PK\x03\x04")
    except _UNREADABLE as error:
        raise UserError(_explain(path, error)) from None


def plain_tensors(where: str, weights: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Weights from a file, each of them a tensor of numbers by a name.

    Args:
        where: the file and the place in it, for errors.
        weights: what stands there.

    Raises:
        UserError: one line: what is no tensor by a name, or one that is sparse, quantized or without numbers.
    """
    for name, tensor in weights.items():
        is_plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        if not (isinstance(name, str) and is_plain and tensor.dtype in _NUMBERS):
            raise UserError(f"{where}.{name} is no plain tensor of floating-point numbers")
    return dict(weights)


def _explain(path: Path, error: BaseException) -> str:
    text = str(error)
    forbidden = re.search(r"(?:GLOBAL|class) ([\w.]+)", text) if "Weights only load failed" in text else None
    if forbidden or "Unsupported global" in text or "Unsupported class" in text or "Can only" in text:
        what = f"names {forbidden[1]}" if forbidden else "holds more than values"
        return (
            f"{path}: {what}, and to load that could run code from the file: refused, and nothing of it was run; have its "
            f"author save tensors and plain values only"
        )
    return f"{path}: is no file of torch.save, or a damaged one: take another copy of the checkpoint"
