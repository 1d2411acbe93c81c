"""Makes loaders of a test's dataset, and compares batches."""

from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from dataset_fixtures import crop_signal
from numpy.typing import NDArray

from data_tools.shards.dataset import Dataset
from engine.data import Batch, CropStore, DataOptions, Loader, SampleOrder, make_loader
from engine.data.dali_loader import is_dali_installed
from engine.options import SegmentPair

SEED = 5
MASKED: dict[str, Any] = {"random_lead_masking": {"p": 0.5}}
PLAIN: dict[str, Any] = {"augmentations": {}}


def make(
    name: str,
    dataset: Dataset,
    *,
    split: str = "pretrain",
    batch_size: int = 6,
    rank: int = 0,
    world_size: int = 1,
    device: str = "cpu",
    seed: int = SEED,
    block_size: int = 4,
    leads: int | list[str] = 12,
    pair: SegmentPair = "adjacent",
    labeled: bool = False,
    **options: Any,
) -> Loader:
    store = CropStore(dataset, split, unit="segment" if labeled else "crop")
    return make_loader(
        DataOptions.model_validate({"loader": name, "augmentations": MASKED, **options}),
        store,
        SampleOrder(store.num_samples, seed, block_size=block_size, window_blocks=3),
        leads=leads,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        device=device,
        pair="single" if labeled and pair == "adjacent" else pair,
        labels=number_labels(store) if labeled else None,
    )


def number_labels(store: CropStore) -> NDArray[np.float32]:
    """Returns a label for each segment that tells its crop and half."""
    assert store.half is not None
    return np.stack([store.crop, store.half], axis=1).astype(np.float32)


def take(loader: Loader, count: int) -> list[Batch]:
    return list(islice(loader, count))


def join(batches: list[Batch]) -> Batch:
    columns = {field.name: [getattr(batch, field.name) for batch in batches] for field in fields(Batch)}
    return Batch(**{name: torch.cat(column).cpu() for name, column in columns.items() if column[0] is not None})


def assert_same(one: Batch, other: Batch) -> None:
    assert (one.labels is None) == (other.labels is None)
    for name in tensor_names(one):
        assert torch.equal(getattr(one, name), getattr(other, name)), f"{name} differs"


def part(batch: Batch, rows: slice) -> Batch:
    return Batch(**{name: getattr(batch, name)[rows] for name in tensor_names(batch)})


def tensor_names(batch: Batch) -> list[str]:
    return [field.name for field in fields(Batch) if getattr(batch, field.name) is not None]


def expected_segments(store: CropStore, rows: list[int]) -> NDArray[np.float64]:
    numbers = [int(key.split("-")[1]) for key in store.keys(rows)]
    crops = np.stack([crop_signal(store.split, number) for number in numbers]).astype(np.float64)
    return crops.reshape(len(rows), 12, 2, 2500).transpose(0, 2, 1, 3) / 1000


@dataclass(frozen=True)
class LoaderFactory:
    """Makes the loader under test."""

    name: str
    device: str

    def make(self, dataset: Dataset, **changes: Any) -> Loader:
        return make(self.name, dataset, device=self.device, **changes)

    def read(self, dataset: Dataset, count: int, **changes: Any) -> Batch:
        with self.make(dataset, **changes) as loader:
            return join(take(loader, count))


needs_dali = pytest.mark.skipif(not is_dali_installed(), reason="needs DALI")
_on_gpu = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
LOADERS = [
    pytest.param(LoaderFactory("torch", "cpu"), id="torch"),
    pytest.param(LoaderFactory("dali", "cpu"), id="dali", marks=needs_dali),
    pytest.param(LoaderFactory("torch", "cuda"), id="torch-gpu", marks=_on_gpu),
    pytest.param(LoaderFactory("dali", "cuda"), id="dali-gpu", marks=(needs_dali, *_on_gpu)),
]
"""All loaders, which the contract tests compare."""
