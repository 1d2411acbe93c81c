"""Numbers between Arrow and NumPy. pyarrow's own conversions import pandas if it is installed, which takes half a second."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def to_arrow(array: NDArray[np.number[Any]]) -> pa.Array:
    """Converts numbers to Arrow, without a copy if they are contiguous."""
    array = np.ascontiguousarray(array)
    return pa.Array.from_buffers(pa.from_numpy_dtype(array.dtype), len(array), [None, pa.py_buffer(array)])


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Converts numbers to NumPy, without a copy if they are in one chunk; the result may be read-only.

    Raises:
        pyarrow.ArrowTypeError: the column contains nulls, or other values than numbers.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, column.type.to_pandas_dtype()), *parts])
