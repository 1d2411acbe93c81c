"""Prefetching batches."""

import threading
from collections.abc import Generator

import numpy as np
import torch

from data_tools.augmentations.chain import AugmentationChain
from engine.data import CropStore, DataOptions, SampleOrder
from engine.data.loader import LoaderSetup
from engine.data.reader import RawBatch
from engine.data.transform import Transform


def read_batches(
    store: CropStore, order: SampleOrder, rank: int = 0, world_size: int = 1, cursor: int = 0
) -> Generator[RawBatch, None, None]:
    setup = LoaderSetup(
        store,
        order,
        batch_size=5,
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
        leads=tuple(range(12)),
        transform=Transform(AugmentationChain([], 12), 12, seed=order.seed),
        options=DataOptions(prefetch=3, num_threads=2),
    )
    return setup.prefetch_batches(setup.make_raw_reader(), cursor)


def num_reader_threads() -> int:
    return sum(thread.name.startswith("crop-reader") for thread in threading.enumerate())


def test_batches_come_in_order_with_their_rows_and_positions(store: CropStore) -> None:
    order = SampleOrder(store.num_samples, seed=3, block_size=4, window_blocks=2)
    reader = read_batches(store, order, rank=1, world_size=3)
    for number in range(12):
        raw = next(reader)
        assert raw.start == number * 15 + 5
        np.testing.assert_array_equal(raw.rows, order.indices(raw.start, 5))
        expected = np.empty_like(raw.signals)
        store.read(raw.rows, expected)
        np.testing.assert_array_equal(raw.signals, expected)
    reader.close()


def test_batches_start_at_a_cursor(store: CropStore) -> None:
    reader = read_batches(store, SampleOrder(store.num_samples, seed=3), rank=1, world_size=2, cursor=1000)
    assert [next(reader).start for _ in range(2)] == [1005, 1015]
    reader.close()


def test_threads_end_on_close_and_when_the_reader_is_gone(store: CropStore) -> None:
    order = SampleOrder(store.num_samples, seed=3)
    before = num_reader_threads()
    closed, dropped = read_batches(store, order), read_batches(store, order)
    next(closed), next(dropped)
    assert num_reader_threads() > before
    closed.close()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("crop-reader")]
    del dropped
    for thread in threads:
        thread.join(timeout=20)
    assert num_reader_threads() == before
