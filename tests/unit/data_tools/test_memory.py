"""Memory does not grow with the number of crops: every step on a small and on a large input, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import large_inputs
import pytest

SMALL, LARGE = 1_500_000, 2_500_000
MEGABYTE = 1 << 20


def peak_mb(step: str, folder: Path, num_crops: int) -> float:
    folder.mkdir()
    # Little memory, which both inputs fill; and the allocator that gives back what it does not need.
    options = ["--crops", str(num_crops), "--memory", "64", "--rows-per-group", "2000"]
    result = subprocess.run(
        [sys.executable, large_inputs.__file__, step, str(folder), *options],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)},
    )
    peak: float = json.loads(result.stdout)["peak_mb"]
    return peak


# A scratch database may use 10 bytes per row. The store keeps 24 bytes of each crop, and briefly more.
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("step", "bytes_per_crop"), [("plan", 10), ("verify", 10), ("info", 10), ("duplicates", 10), ("store", 70)]
)
def test_memory_does_not_grow_with_the_number_of_crops(tmp_path: Path, step: str, bytes_per_crop: int) -> None:
    small, large = (peak_mb(step, tmp_path / str(num_crops), num_crops) for num_crops in (SMALL, LARGE))
    # A list of keys alone would take 80 MB more; the allocators' share varies by some.
    assert large - small < 30 + (LARGE - SMALL) * bytes_per_crop / MEGABYTE
