"""Splits that the ranks of a machine share.

To open a split, its tables are read and sorted. With a rank per GPU, a machine would do that eight times at once and keep the
result eight times: one rank does it, and all map the arrays that it has written to a file.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from data_tools.labels import LabelDefinition
from data_tools.scratch_database import scratch_folder
from engine.data import CropStore, Split
from engine.training.distributed import Ranks

_LABELS = "labels"


class _Stored(NamedTuple):
    """A split whose arrays are in files.

    Attributes:
        values: the attributes of its store that are not arrays.
        arrays: the files of those that are.
        labels: file of the labels, if there are some.
        definition: what they mean.
    """

    values: dict[str, Any]
    arrays: dict[str, Path]
    labels: Path | None
    definition: LabelDefinition | None


def share_splits(open_splits: Callable[[], dict[str, Split]], ranks: Ranks) -> dict[str, Split]:
    """Opens splits on one rank of each machine, and returns them on all ranks; their arrays are then read-only.

    While all ranks map the arrays, their files are in ``TMPDIR`` (default: ``/var/tmp``).

    Args:
        open_splits: opens them.
        ranks: all ranks call this together.

    Raises:
        UserError, DatasetError: those of ``open_splits`` on any machine, or the files cannot be written; on every rank.
    """
    if ranks.world_size == 1:
        return open_splits()
    folder, stored = ranks.on_each_machine(lambda: _write(open_splits()))
    splits = {name: _map(split) for name, split in stored.items()}
    dist.barrier(ranks.machine)
    if dist.get_rank(ranks.machine) == 0:
        shutil.rmtree(folder, ignore_errors=True)  # the files live on until the last process has ended
    return splits


def _write(splits: Mapping[str, Split]) -> tuple[Path, dict[str, _Stored]]:
    """Writes the arrays of splits to files in a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="ecg-engine-", dir=scratch_folder()))
    try:
        return folder, {name: _write_split(split, folder / str(number)) for number, (name, split) in enumerate(splits.items())}
    except BaseException:
        shutil.rmtree(folder)
        raise


def _write_split(split: Split, folder: Path) -> _Stored:
    folder.mkdir()
    values = split.store.__getstate__()
    arrays = {name: values.pop(name) for name in list(values) if isinstance(values[name], np.ndarray)}
    labels = {} if split.labels is None else {_LABELS: split.labels}
    for name, array in {**arrays, **labels}.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    files = {name: folder / f"{name}.npy" for name in arrays}
    return _Stored(values, files, folder / f"{_LABELS}.npy" if labels else None, split.definition)


def _map(stored: _Stored) -> Split:
    store = CropStore.__new__(CropStore)
    store.__setstate__(stored.values | {name: _map_array(path) for name, path in stored.arrays.items()})
    return Split(store, None if stored.labels is None else _map_array(stored.labels), stored.definition)


def _map_array(path: Path) -> Any:
    return np.load(path, mmap_mode="r").view(np.ndarray)
