"""Keeping freed memory."""

import subprocess
import sys

import pytest

# Page faults of allocating and freeing the same arrays repeatedly, before and after.
_SCRIPT = """
import resource
import numpy as np
from engine.cpu_kernels import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        # The larger one is at the end of the heap, which would be trimmed.
        arrays = [np.ones(2 << 20), np.ones(6 << 20)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_reallocated_array_needs_no_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 10
