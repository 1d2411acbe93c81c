"""The sample order: world sizes are values here, no process is started."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.data import SampleOrder

orders = st.builds(
    SampleOrder,
    num_samples=st.integers(1, 700),
    seed=st.integers(0, 2**40),
    block_size=st.integers(1, 64),
    window_blocks=st.integers(1, 9),
)
# Epochs of a few crops may be shorter than a batch; with more crops in it than these, the tests would shuffle most of the time.
batch_sizes = st.integers(1, 12)


def read_by_ranks(
    order: SampleOrder, cursor: int, world_size: int, batch_size: int, num_batches: int
) -> tuple[NDArray[np.int64], int]:
    """What all ranks together read in some micro-batches, in the order of the stream, and the cursor after it."""
    pieces = []
    for _ in range(num_batches):
        pieces += [order.indices(cursor + rank * batch_size, batch_size) for rank in range(world_size)]
        cursor += world_size * batch_size
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64), cursor


@settings(deadline=None, max_examples=60)
@given(
    order=orders,
    world_size=st.integers(1, 64),
    batch_size=batch_sizes,
    num_before=st.integers(0, 12),
    other_world_size=st.integers(1, 64),
    other_batch_size=batch_sizes,
)
def test_each_crop_exactly_once_an_epoch_also_when_stopped_and_resumed_with_other_ranks(
    order: SampleOrder, world_size: int, batch_size: int, num_before: int, other_world_size: int, other_batch_size: int
) -> None:
    num_before = min(num_before, 1 + 3 * order.num_samples // (world_size * batch_size))
    before, cursor = read_by_ranks(order, 0, world_size, batch_size, num_before)
    missing = max(0, 2 * order.num_samples - cursor)
    after, _ = read_by_ranks(
        order, cursor, other_world_size, other_batch_size, -(-missing // (other_world_size * other_batch_size))
    )
    stream = np.concatenate([before, after])
    num_epochs = len(stream) // order.num_samples
    assert num_epochs >= 2
    for epoch in stream[: num_epochs * order.num_samples].reshape(num_epochs, order.num_samples):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(order.num_samples))


@settings(deadline=None, max_examples=40)
@given(order=orders, world_size=st.integers(1, 64), batch_size=batch_sizes)
def test_the_global_order_does_not_depend_on_the_number_of_ranks(order: SampleOrder, world_size: int, batch_size: int) -> None:
    stream, _ = read_by_ranks(order, 0, world_size, batch_size, 2)
    np.testing.assert_array_equal(stream, order.indices(0, len(stream)))


@settings(deadline=None, max_examples=40)
@given(order=orders, start=st.integers(0, 600), count=st.integers(0, 300))
def test_any_piece_of_the_stream_is_the_same_from_a_fresh_order(order: SampleOrder, start: int, count: int) -> None:
    order.indices(start // 2, 50)  # something else in the caches
    fresh = SampleOrder(order.num_samples, order.seed, order.block_size, order.window_blocks)
    whole = fresh.indices(0, start + count)
    np.testing.assert_array_equal(order.indices(start, count), whole[start:])


@settings(deadline=None, max_examples=60)
@given(order=orders, epoch=st.integers(0, 3))
def test_each_window_touches_only_its_own_few_blocks(order: SampleOrder, epoch: int) -> None:
    crops = order.indices(epoch * order.num_samples, order.num_samples)
    blocks = crops // order.block_size
    position = 0
    seen: set[int] = set()
    while position < len(crops):
        # A window ends where as many blocks as it may touch have been read to their ends.
        window: dict[int, int] = {}
        while position < len(crops):
            block = int(blocks[position])
            if block not in window and len(window) == order.window_blocks:
                break
            window[block] = window.get(block, 0) + 1
            position += 1
        for block, num_read in window.items():
            assert num_read == min(order.block_size, order.num_samples - block * order.block_size)
        assert not seen & window.keys()
        seen |= window.keys()


def test_crops_are_mixed_within_the_window_and_windows_spread_over_the_split() -> None:
    order = SampleOrder(4096, seed=1, block_size=16, window_blocks=8)
    crops = order.indices(0, 4096)
    assert np.mean(np.diff(crops) == 1) < 0.05
    first_window = crops[: 16 * 8]
    assert first_window.min() < 1024
    assert first_window.max() > 3072


def test_epochs_and_seeds_differ() -> None:
    order = SampleOrder(500, seed=1, block_size=16, window_blocks=4)
    first, second = order.indices(0, 500), order.indices(500, 500)
    other = SampleOrder(500, seed=2, block_size=16, window_blocks=4).indices(0, 500)
    assert np.mean(first == second) < 0.05
    assert np.mean(first == other) < 0.05


def test_every_place_of_an_epoch_is_equally_likely_for_a_crop() -> None:
    """Over many seeds the mean place of each crop is the middle; its standard error is 100 / sqrt(12 * 400) = 1.4."""
    places = np.stack([np.argsort(SampleOrder(100, seed, 8, 3).indices(0, 100)) for seed in range(400)])
    assert np.abs(places.mean(axis=0) - 49.5).max() < 5 * 1.45


def test_the_order_is_the_same_on_every_machine() -> None:
    """Written down once: a change of it would break every run that resumes."""
    order = SampleOrder(20, seed=7, block_size=4, window_blocks=2)
    assert order.indices(0, 20).tolist() == [9, 12, 14, 13, 11, 10, 8, 15, 18, 2, 3, 1, 16, 17, 0, 19, 5, 6, 7, 4]


def test_ten_million_crops_need_little_memory() -> None:
    order = SampleOrder(10_000_000, seed=3)
    last = order.indices(10_000_000 - 64, 128)
    assert len(np.unique(last[:64])) == 64
    blocks, starts = order._epoch(0)
    assert blocks.nbytes + starts.nbytes < 1_000_000
