"""Predicts the cost of start-up, checkpoints and communication for many ranks from a few ranks on one machine.

Each prediction is a short formula with its assumption beside it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from _communication import ring_bytes
from _results import Result, Table

RANK_COUNTS = (8, 64, 512)
RANKS_PER_MACHINE = 8
# Assumptions that no recorded result replaces.
FILE_SYSTEM_BANDWIDTH = 1e9
"""Bytes/s of the file system that holds the run's folder, for all machines together: a 10 Gb/s network file system."""
NETWORK_HOP = 20e-6
"""Latency of a message between two machines, seconds."""


class _Cost(NamedTuple):
    """A row of the table.

    Attributes:
        name: what takes the time.
        key: key of the measurement in a result; None if it was not measured.
        predict: returns the predicted seconds for a number of ranks.
        assumption: what the prediction assumes.
    """

    name: str
    key: str | None
    predict: Callable[[int], float]
    assumption: str


def cluster_costs(result: Result, traffic: Mapping[str, float], node_bandwidth: float, network_bandwidth: float) -> Table:
    """Returns the table of measured and predicted seconds.

    Args:
        result: a result of cluster.py.
        traffic: bytes of each kind of collective in a step.
        node_bandwidth: bytes/s that a rank sends within a machine.
        network_bandwidth: bytes/s that a rank sends to another machine.
    """
    runs = sorted(result["metrics"]["runs"], key=lambda run: int(run["ranks"]))

    def step(num_ranks: int) -> float:
        bandwidth = node_bandwidth if num_ranks <= RANKS_PER_MACHINE else network_bandwidth
        return sum(ring_bytes(kind, size, num_ranks) for kind, size in traffic.items()) / bandwidth

    speeds = f"{node_bandwidth / 1e9:g} GB/s within a machine and {network_bandwidth / 1e9:g} GB/s between machines"
    costs = [*_start_costs(runs[0], runs[-1]), *_checkpoint_costs(runs[0]), _latency(runs[-1])]
    costs.append(_Cost("traffic of a step", None, step, f"a ring with {speeds}; nothing overlaps"))
    rows: list[list[object]] = []
    for cost in costs:
        measured = ["-" if cost.key is None else _median(run, cost.key) for run in runs]
        rows.append([cost.name, *measured, *map(cost.predict, RANK_COUNTS), cost.assumption])
    headers = ["seconds", *(f"{run['ranks']} measured" for run in runs), *(f"{num} predicted" for num in RANK_COUNTS)]
    return Table("", [*headers, "assumption"], rows)


def _start_costs(first: Mapping[str, Any], largest: Mapping[str, Any]) -> list[_Cost]:
    num_more = max(1, int(largest["ranks"]) - int(first["ranks"]))
    connect = max(0.0, _median(largest, "connect_seconds") - _median(first, "connect_seconds")) / num_more

    def constant(name: str, key: str, assumption: str) -> _Cost:
        return _Cost(name, key, lambda _: _median(first, key), assumption)

    return [
        constant("processes and imports", "start_seconds", "a core per rank; Python is on each machine's own disk"),
        _Cost(
            "connecting the ranks",
            "connect_seconds",
            lambda num: _median(first, "connect_seconds") + (num - 1) * connect,
            f"one rank answers all: {1e3 * connect:.3g} ms for each further rank, as here",
        ),
        constant(
            f"opening the dataset, {first['num_crops']:,} crops",
            "tables_seconds",
            "one rank of each machine reads the tables; the file system serves all machines at once",
        ),
        constant("model and optimizer", "model_seconds", "a core per rank"),
    ]


def _checkpoint_costs(first: Mapping[str, Any]) -> list[_Cost]:
    num_bytes = float(first["checkpoint_bytes"])
    file_system = f"{FILE_SYSTEM_BANDWIDTH / 1e9:g} GB/s for all machines together"

    def shared(key: str) -> Callable[[int], float]:
        return lambda num: max(_median(first, key) / num, num_bytes / FILE_SYSTEM_BANDWIDTH)

    def load(num_ranks: int) -> float:
        num_machines = -(-num_ranks // RANKS_PER_MACHINE)
        return max(_median(first, "load_seconds"), num_machines * num_bytes / 3 / FILE_SYSTEM_BANDWIDTH)

    rate = num_bytes / _median(first, "write_seconds") / 1e9
    name = f"writing a checkpoint, {num_bytes / 1e9:.2f} GB"
    return [
        _Cost(name, "write_seconds", shared("write_seconds"), f"each rank writes its part at {rate:.2g} GB/s; {file_system}"),
        _Cost("verifying it", "verify_seconds", shared("verify_seconds"), f"the ranks share the files; {file_system}"),
        _Cost("loading it", "load_seconds", load, f"each machine reads the weights, a third of it; {file_system}"),
    ]


def _latency(largest: Mapping[str, Any]) -> _Cost:
    hop = _median(largest, "hop_seconds") / max(1, 2 * (int(largest["ranks"]) - 1))

    def predict(num_ranks: int) -> float:
        num_machines = -(-num_ranks // RANKS_PER_MACHINE)
        return 2 * (num_ranks - 1) * hop + 2 * (num_machines - 1) * NETWORK_HOP

    assumption = f"a ring with {1e6 * hop:.3g} us per hop, as here, and {1e6 * NETWORK_HOP:g} us more between machines"
    return _Cost("an all-reduce of one number", "hop_seconds", predict, assumption)


def _median(run: Mapping[str, Any], key: str) -> float:
    return float(run[key]["median"])
