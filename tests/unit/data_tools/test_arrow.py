import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from data_tools.arrow import to_arrow, to_numpy

NUMBERS = arrays.arrays(
    arrays.integer_dtypes() | arrays.unsigned_integer_dtypes() | arrays.floating_dtypes(), st.integers(0, 9)
)


@given(NUMBERS, st.integers(1, 3))
def test_numbers_survive_both_ways(values: np.ndarray, step: int) -> None:
    column = to_arrow(values.astype(values.dtype.newbyteorder("="))[::step])
    chunked = pa.chunked_array([column[:2], column[2:2], column[2:]], column.type)
    for converted in (to_numpy(column), to_numpy(chunked)):
        np.testing.assert_array_equal(converted, values[::step])
        assert converted.dtype == values.dtype.newbyteorder("=")


@pytest.mark.filterwarnings("ignore:Exporting an unversioned DLPack capsule")  # NumPy tries a second time
def test_nulls_are_refused() -> None:
    with pytest.raises(pa.ArrowTypeError):
        to_numpy(pa.array([1, None]))


def test_pandas_is_not_imported() -> None:
    code = (
        "import sys, numpy, pyarrow; from data_tools.arrow import to_arrow, to_numpy; "
        "to_numpy(pyarrow.chunked_array([to_arrow(numpy.arange(3))])); sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
