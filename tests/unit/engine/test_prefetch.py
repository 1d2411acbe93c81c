"""Prefetching."""

import threading
import time
from collections.abc import Iterator

import pytest

from engine.prefetch import prefetch


def reader_threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


@pytest.mark.parametrize("num_threads", [1, 2, 7])
@pytest.mark.parametrize("lengths", [[], [0], [3], [1] * 100, [0, 50, 0, 1, 200, 2], [100, 100]])
def test_items_come_in_the_order_of_the_parts(lengths: list[int], num_threads: int) -> None:
    def read(part: tuple[int, int]) -> Iterator[tuple[int, int]]:
        number, length = part
        time.sleep(0.001 * (number % 3 == 0))  # later parts overtake it
        yield from ((number, i) for i in range(length))

    parts = list(enumerate(lengths))
    expected = [(number, i) for number, length in parts for i in range(length)]
    assert list(prefetch(parts, read, num_threads=num_threads)) == expected
    assert reader_threads() == 0


def test_threads_read_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10)

    def read(part: int) -> Iterator[int]:
        together.wait()
        yield part

    assert list(prefetch(range(6), read, num_threads=3)) == list(range(6))


def test_an_error_comes_in_its_turn_and_ends_the_threads() -> None:
    def read(part: int) -> Iterator[int]:
        yield part
        if part == 2:
            raise ValueError("broken")

    taken: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        taken.extend(prefetch(range(10), read, num_threads=4))
    assert reader_threads() == 0
    items = prefetch(range(10), read, num_threads=4)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_closing_ends_threads_that_wait() -> None:
    def read(part: int) -> Iterator[int]:
        while True:
            yield part

    items = prefetch(range(5), read, num_threads=3)
    assert next(items) == 0
    items.close()
    assert reader_threads() == 0


def test_what_is_read_ahead_is_bounded() -> None:
    num_read, lock = 0, threading.Lock()

    def read(part: int) -> Iterator[int]:
        nonlocal num_read
        for _ in range(10_000):
            with lock:
                num_read += 1
            yield part

    items = prefetch(range(3), read, num_threads=2)
    next(items)
    time.sleep(0.1)
    items.close()
    assert num_read < 100
    started = []

    def note(part: int) -> Iterator[int]:
        started.append(part)
        yield part

    parts = iter(range(1000))
    items = prefetch(parts, note, num_threads=2)
    next(items)
    assert next(parts) < 40
    items.close()
