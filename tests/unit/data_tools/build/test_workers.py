import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Generator, Iterator

import pytest

import data_tools.build.workers
from data_tools.build.workers import Workers


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> int:
    raise OSError(28, f"number {number}")


@pytest.fixture(scope="module", params=["this process", "behind a scheduler"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    if request.param == "this process":
        with Workers(1) as pool:
            yield pool
        return
    distributed = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Workers(scheduler=cluster.scheduler_address) as pool,
    ):
        yield pool


def test_one_worker_is_this_process_and_takes_no_dask() -> None:
    program = """
import os, sys
from data_tools.build.workers import Workers
with Workers(1) as pool:
    assert list(pool.map_unordered(os.readlink, ["/proc/self"])) == [str(os.getpid())]
assert not {"dask", "distributed"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_task_gives_one_result(workers: Workers) -> None:
    assert sorted(workers.map_unordered(double, range(20))) == list(range(0, 40, 2))
    assert list(workers.map_unordered(double, [])) == []


def test_tasks_are_drawn_only_as_they_are_needed(workers: Workers) -> None:
    drawn = []

    def tasks() -> Iterator[int]:
        for number in range(50):
            drawn.append(number)
            yield number

    results = workers.map_unordered(double, tasks())
    assert isinstance(results, Generator)
    for num_results in range(1, 20):
        next(results)
        assert len(drawn) <= num_results + 2
    results.close()


def test_the_error_of_a_task_is_raised_as_it_is(workers: Workers) -> None:
    with pytest.raises(OSError, match="number 3") as caught:
        list(workers.map_unordered(fail, [3]))
    assert caught.value.errno == 28
    assert list(workers.map_unordered(double, [1])) == [2]


def test_several_workers_are_processes() -> None:
    # Functions of a test module cannot be found by another process; this one tells whose process it is.
    with Workers(2) as pool:
        assert str(os.getpid()) not in set(pool.map_unordered(os.readlink, ["/proc/self"] * 4))


def test_a_scheduler_lends_its_workers() -> None:
    distributed = importlib.import_module("distributed")

    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0") as cluster:
        with Workers(scheduler=cluster.scheduler_address) as pool:
            assert sorted(pool.map_unordered(double, range(5))) == [0, 2, 4, 6, 8]
        cluster.scale(0)
        cluster.sync(cluster._correct_state)
        with pytest.raises(ValueError, match="has no workers"), Workers(scheduler=cluster.scheduler_address):
            pass


def test_workers_without_this_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = importlib.import_module("distributed")

    # What workers answer is the true version.
    versions = iter(["0.0.1"])
    monkeypatch.setattr(data_tools.build.workers, "version", lambda _: next(versions, "0.1.0"))
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        pytest.raises(ValueError, match=r"does not have ecg-engine 0\.0\.1"),
        Workers(scheduler=cluster.scheduler_address),
    ):
        pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1:port", "tls://127.0.0.1:9"])
def test_a_scheduler_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(data_tools.build.workers, "_CONNECT_SECONDS", 0.3)
    with pytest.raises(ValueError, match="no Dask scheduler at") as caught, Workers(scheduler=address):
        pass
    assert "\n" not in str(caught.value)
    gc.collect()  # nothing half-made is left that would warn
