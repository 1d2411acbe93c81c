"""What every loader guarantees. To test a new loader, add a line to ``LOADERS`` of ``tests/loader_factory.py``."""

import gc
import shutil
import subprocess
import sys
import threading
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dataset_fixtures import crop_signal, write_dataset
from loader_factory import (
    MASKED,
    PLAIN,
    LoaderFactory,
    assert_same,
    expected_segments,
    join,
    make,
    needs_dali,
    number_labels,
    part,
    take,
    tensor_names,
)

from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from engine.data import Batch, CropStore
from engine.data.loader import STATE_VERSION, LoaderStateError


def test_batches_are_the_crops_of_the_stream_in_millivolts(loaders: LoaderFactory, dataset: Dataset) -> None:
    store = CropStore(dataset, "pretrain")
    with loaders.make(dataset, **PLAIN) as loader:
        batches = take(loader, 5)
        for number, batch in enumerate(batches):
            assert batch.segments.shape == (6, 2, 12, 2500)
            assert batch.segments.dtype == torch.float32
            assert batch.segments.is_contiguous()
            assert {getattr(batch, name).device.type for name in tensor_names(batch)} == {loaders.device}
            rows = loader.order.indices(6 * number, 6)
            assert batch.row.tolist() == rows.tolist()
            assert batch.position.tolist() == list(range(6 * number, 6 * number + 6))
            assert batch.recording.tolist() == store.recording[rows].tolist()
            assert batch.patient.tolist() == store.patient[rows].tolist()
            np.testing.assert_allclose(batch.segments.cpu(), expected_segments(store, rows.tolist()), rtol=1e-6)


def test_epochs_follow_each_other_within_a_batch_and_no_padded_crop_appears(loaders: LoaderFactory, dataset: Dataset) -> None:
    store = CropStore(dataset, "pretrain")
    num_crops = store.num_samples
    assert num_crops == 72
    joined = loaders.read(dataset, 45, batch_size=5, **PLAIN)  # 225 crops: three epochs and a bit, straddled
    for epoch in joined.row[: 3 * num_crops].view(3, num_crops):
        assert epoch.sort().values.tolist() == list(range(num_crops))
    assert not torch.equal(joined.row[:num_crops], joined.row[num_crops : 2 * num_crops])
    np.testing.assert_allclose(joined.segments, expected_segments(store, joined.row.tolist()), rtol=1e-6)


def test_a_batch_may_be_larger_than_the_split(loaders: LoaderFactory, dataset: Dataset) -> None:
    joined = loaders.read(dataset, 2, split="valid", batch_size=20)
    assert sorted(joined.row[:8].tolist()) == list(range(8))
    assert joined.row.shape == (40,)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_partition_the_global_batch(loaders: LoaderFactory, dataset: Dataset, world_size: int) -> None:
    whole = loaders.read(dataset, 4, batch_size=6 * world_size)
    by_rank = []
    for rank in range(world_size):
        with loaders.make(dataset, rank=rank, world_size=world_size) as loader:
            by_rank.append(take(loader, 4))
            assert loader.state_dict()["cursor"] == 4 * 6 * world_size
    assert_same(join([batches[number] for number in range(4) for batches in by_rank]), whole)


def test_labeled_segments_are_each_complete_segment_with_its_label(loaders: LoaderFactory, dataset: Dataset) -> None:
    store = CropStore(dataset, "pretrain", unit="segment")
    batch = loaders.read(dataset, -(-store.num_samples // 6), labeled=True, **PLAIN)
    assert batch.labels is not None
    assert batch.segments.shape[1:] == (1, 12, 2500)
    assert sorted(batch.row[: store.num_samples].tolist()) == list(range(store.num_samples))
    torch.testing.assert_close(batch.labels, torch.from_numpy(number_labels(store)[batch.row]))
    crops = np.stack([crop_signal("pretrain", int(crop)) for crop in batch.labels[:, 0]]) / 1000
    halves = crops.reshape(-1, 12, 2, 2500)[np.arange(len(crops)), :, batch.labels[:, 1].int()]
    np.testing.assert_allclose(batch.segments[:, 0], halves, rtol=1e-6)


@pytest.mark.parametrize("leads", [6, 3, 1, ["V6", "aVR"]])
def test_fewer_leads_are_those_channels_in_canonical_order(
    loaders: LoaderFactory, dataset: Dataset, leads: int | list[str]
) -> None:
    rows = {6: range(6), 3: (0, 1, 7), 1: (0,)}.get(leads, (3, 11)) if isinstance(leads, int) else (3, 11)
    full, fewer = loaders.read(dataset, 3, **PLAIN), loaders.read(dataset, 3, leads=leads, **PLAIN)
    assert torch.equal(fewer.segments, full.segments[:, :, list(rows)])
    if len(list(rows)) > 1:
        masked = loaders.read(dataset, 3, leads=leads)
        assert masked.segments.shape == fewer.segments.shape
        assert 0 < (masked.segments == 0).all(-1).sum() < masked.segments[..., 0].numel()


@pytest.mark.parametrize("num_before", [0, 1, 7, 13])
def test_resuming_is_exact_also_with_other_ranks_and_batches(loaders: LoaderFactory, dataset: Dataset, num_before: int) -> None:
    whole = loaders.read(dataset, 30)
    with loaders.make(dataset) as loader:
        take(loader, num_before)
        state = loader.state_dict()
    assert state["cursor"] == 6 * num_before
    with loaders.make(dataset) as same:
        same.load_state_dict(state)
        after = join(take(same, 5))
        assert same.state_dict()["cursor"] == 6 * (num_before + 5)
    begin = state["cursor"]
    assert_same(after, part(whole, slice(begin, begin + 30)))
    by_rank = []
    for rank in range(2):
        with loaders.make(dataset, batch_size=5, rank=rank, world_size=2) as other:
            other.load_state_dict(state)
            by_rank.append(take(other, 3))
    joined = join([batches[number] for number in range(3) for batches in by_rank])
    assert_same(joined, after)


def test_seek_goes_anywhere_at_any_time(loaders: LoaderFactory, dataset: Dataset) -> None:
    whole = loaders.read(dataset, 20)
    with loaders.make(dataset) as loader:
        for cursor in (60, 0, 0, 33):
            loader.seek(cursor)
            joined = join(take(loader, 3))
            assert_same(joined, part(whole, slice(cursor, cursor + 18)))
            assert loader.state_dict()["cursor"] == cursor + 18


def test_a_state_of_something_else_is_refused_in_one_line(loaders: LoaderFactory, dataset: Dataset) -> None:
    with loaders.make(dataset) as loader:
        state = loader.state_dict()
        changes = {
            "version": STATE_VERSION + 1,
            "fingerprint": "f" * 64,
            "num_crops": 7,
            "seed": 9,
            "split": "valid",
            "block_size": 64,
        }
        for key, value in changes.items():
            shown = f"{'f' * 12}..." if key == "fingerprint" else value
            with pytest.raises(LoaderStateError, match=f"loader has {key}={shown}, but this run has") as error:
                loader.load_state_dict({**state, key: value})
            assert "\n" not in str(error.value)
        for cursor in (-1, None, "3"):
            with pytest.raises(LoaderStateError, match="cursor="):
                loader.load_state_dict({**state, "cursor": cursor})
        with pytest.raises(LoaderStateError, match="version=None"):
            loader.load_state_dict({})
        with pytest.raises(ValueError, match="-1"):
            loader.seek(-1)


def test_batches_stay_as_they_are_while_they_are_held(loaders: LoaderFactory, dataset: Dataset) -> None:
    with loaders.make(dataset) as loader:
        held = take(loader, 6)
        copies = [batch.segments.clone() for batch in held]
        views = [batch.segments[2:3, 1] for batch in take(loader, 2)]
        view_copies = [view.clone() for view in views]
        take(loader, 20)
    gc.collect()
    assert all(torch.equal(batch.segments, copy) for batch, copy in zip(held, copies, strict=True))
    assert all(torch.equal(view, copy) for view, copy in zip(views, view_copies, strict=True))


def test_closing_ends_the_threads_and_is_final(loaders: LoaderFactory, dataset: Dataset) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    loader = loaders.make(dataset, prefetch=8, num_threads=4)
    take(loader, 3)
    loader.close()
    loader.close()
    assert {thread.ident for thread in threading.enumerate()} <= before
    assert loader.state_dict()["cursor"] == 18
    with pytest.raises(ValueError, match="closed"):
        next(loader)
    with pytest.raises(ValueError, match="closed"):
        loader.seek(0)


def test_a_loader_nobody_holds_is_freed_and_its_batches_live_on(loaders: LoaderFactory, dataset: Dataset) -> None:
    loader = loaders.make(dataset)
    batch = next(loader)
    copy = batch.segments.clone()
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert torch.equal(batch.segments, copy)


def test_a_program_that_does_not_close_its_loader_ends(loaders: LoaderFactory, dataset: Dataset) -> None:
    """A process of its own, because what is tested is the end of the interpreter."""
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from data_tools.shards.dataset import Dataset\n"
        "from loader_factory import make\n"
        "loader = make(sys.argv[3], Dataset.open(sys.argv[2]), device=sys.argv[4], prefetch=8)\n"
        "print(len(next(loader)))\n"
    )
    tests = Path(__file__).parents[1]
    words = [sys.executable, "-c", program, str(tests), str(dataset.path), loaders.name, loaders.device]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=tests.parent)
    assert (result.returncode, result.stdout) == (0, "6\n"), result.stderr


def test_a_shard_removed_while_training_is_named(loaders: LoaderFactory, dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(dataset.path, folder)
    loader = loaders.make(Dataset.open(folder), prefetch=1)
    next(loader)
    for shard in (folder / "shards").glob("*.tar"):
        with shard.open("rb+") as file:
            file.truncate(1000)
    with pytest.raises(DatasetError, match=r"shards/pretrain-00000\d\.tar is truncated at byte") as error:
        take(loader, 20)
    assert "\n" not in str(error.value)
    assert loader.state_dict()["cursor"] % 6 == 0
    with pytest.raises(ValueError, match="has failed"):
        next(loader)


def test_the_format_of_the_shards_makes_no_difference(loaders: LoaderFactory, tmp_path: Path) -> None:
    tar = Dataset.open(write_dataset(tmp_path / "tar", {"pretrain": 12}, crops_per_shard=5))
    zarr = Dataset.open(
        write_dataset(tmp_path / "zarr", {"pretrain": 12}, crops_per_shard=5, encoding="zarr", compression="pcodec")
    )
    for leads in (12, 3):
        assert_same(loaders.read(zarr, 3, leads=leads), loaders.read(tar, 3, leads=leads))


def test_draws_depend_on_the_seed(loaders: LoaderFactory, dataset: Dataset) -> None:
    one, other = loaders.read(dataset, 12), loaders.read(dataset, 12, seed=6)
    assert not torch.equal(one.row, other.row)
    order = other.row.argsort()[one.row.argsort().argsort()]
    assert torch.equal(one.row, other.row[order])
    zeros = [(segments == 0).all(-1) for segments in (one.segments, other.segments[order])]
    assert 0.4 < (zeros[0] == zeros[1]).float().mean() < 0.6


@needs_dali
@pytest.mark.parametrize("leads", [12, 2])
@pytest.mark.parametrize("augmentations", [MASKED, {}], ids=["masked", "plain"])
def test_both_loaders_give_the_same_batches(dataset: Dataset, leads: int | list[str], augmentations: dict[str, Any]) -> None:
    one, other = (join(take(make(name, dataset, leads=leads, augmentations=augmentations), 15)) for name in ("torch", "dali"))
    assert_same(one, other)


@needs_dali
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_dali_batches_equal_those_of_the_cpu_while_the_device_is_busy(dataset: Dataset) -> None:
    """Copies and kernels of several batches overlap with a long computation on torch's stream."""
    expected = join(take(make("torch", dataset), 60))
    busy = torch.randn(4096, 4096, device="cuda")
    with make("dali", dataset, device="cuda") as loader:
        batches = []
        for batch in islice(loader, 60):
            busy = (busy @ busy).clamp(-1, 1)
            batches.append(Batch(**{name: getattr(batch, name) * 1 for name in tensor_names(batch)}))
    assert_same(join(batches), expected)
