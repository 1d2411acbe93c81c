"""A dataset of any size from a few recordings: their crops are repeated, each copy rotated in time so that all differ."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from _peer import SPLIT, read_crops

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES
from data_tools.shards.dataset import Dataset
from data_tools.synthetic import write_cohort

_STORED_BYTES = 2 * len(LEADS) * CROP_SAMPLES
_CROPS_PER_SHARD = 512
_CROPS_PER_FILE = 1000
# Coprime to CROP_SAMPLES, so that the rotations of a crop repeat only after CROP_SAMPLES copies.
_SAMPLES_PER_ROTATION = 7
_NUM_PATIENTS = 100


def make_repeated_dataset(recordings: Path | None, num_bytes: float, folder: Path) -> Path:
    """Builds a dataset in tar shards, about ``num_bytes`` large, whose crops are all complete and all different.

    Args:
        recordings: folder of recordings in the format of PhysioNet 2021; None to simulate a cohort.
        num_bytes: size of the signals.
        folder: new folder for the dataset and its intermediate files.

    Raises:
        ValueError: there are too few complete crops for this size.
    """
    if recordings is None:
        recordings = folder / "cohort"
        write_cohort(recordings, _NUM_PATIENTS, seed=1)
    build_dataset(BuildOptions("physionet2021", (recordings,), valid_fraction=0), folder / "once")
    num_crops = max(1, round(num_bytes / _STORED_BYTES))
    (folder / "arrays").mkdir()
    part: list[np.ndarray[Any, np.dtype[np.int16]]] = []
    for number, crop in enumerate(_rotated(folder / "once", num_crops), 1):
        part.append(crop)
        if len(part) == _CROPS_PER_FILE or number == num_crops:
            np.save(folder / "arrays" / f"{number:08d}.npy", np.stack(part))
            part.clear()
    axes = ["recording", "lead", "sample"]
    layout = {"files": "arrays/*.npy", "axes": axes, "leads": list(LEADS), "sampling_rate": 500, "unit": "uV"}
    (folder / "layout.yaml").write_text(yaml.safe_dump(layout))
    options = BuildOptions("numpy", (folder / "layout.yaml",), valid_fraction=0, crops_per_shard=_CROPS_PER_SHARD)
    build_dataset(options, folder / "dataset")
    counts = Dataset.open(folder / "dataset").manifest.counts[SPLIT]
    assert counts.crops == counts.complete_crops == num_crops, "every crop must arrive whole"
    return folder / "dataset"


def _rotated(dataset: Path, num_crops: int) -> Iterator[np.ndarray[Any, np.dtype[np.int16]]]:
    """Yields ``num_crops`` crops; none begins or ends with zeros, which a build would strip as padding."""
    complete = [crop for crop in read_crops(dataset) if crop[:, 0].any() and crop[:, -1].any()]
    num_left = num_crops
    for rotation in range(CROP_SAMPLES):
        for crop in complete:
            rotated = np.roll(crop, rotation * _SAMPLES_PER_ROTATION, axis=1)
            if num_left and rotated[:, 0].any() and rotated[:, -1].any():
                num_left -= 1
                yield rotated
        if not num_left:
            return
    raise ValueError(
        f"rotating {len(complete)} complete crops yields fewer than the {num_crops} needed; use a smaller --size-gb"
    )
