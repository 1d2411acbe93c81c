import pytest
import torch
from distributed_helpers import run_ranks


def run_all_collectives(rank: int) -> dict[str, dict[str, int]]:
    import sys
    from pathlib import Path

    import torch.distributed as dist

    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
    from _communication import counting

    with counting() as traffic:
        x = torch.ones(6)
        dist.all_reduce(x)
        dist.all_reduce(tensor=x)
        dist.broadcast(x, 0)
        full = torch.empty(12, dtype=torch.float64)
        dist.all_gather_into_tensor(full, torch.ones(6, dtype=torch.float64))
        dist.all_gather([torch.empty(6), torch.empty(6)], x)
        dist.reduce_scatter_tensor(torch.empty(3), x)
        dist.reduce(x, dst=0)
    dist.all_reduce(x)  # no longer counted
    return {"calls": dict(traffic.calls), "bytes": dict(traffic.bytes)}


def test_every_collective_is_counted_with_its_full_size() -> None:
    for counted in run_ranks(run_all_collectives, 2):
        assert counted["calls"] == {"all_reduce": 2, "broadcast": 1, "all_gather": 2, "reduce_scatter": 1, "reduce": 1}
        assert counted["bytes"] == {
            "all_reduce": 2 * 24, "broadcast": 24, "all_gather": 96 + 48, "reduce_scatter": 24, "reduce": 24,
        }  # fmt: skip


def test_ring_traffic_matches_the_literature() -> None:
    from _communication import ring_bytes

    assert ring_bytes("all_reduce", 1000, 4) == 1500
    assert ring_bytes("all_gather", 1000, 4) == ring_bytes("reduce_scatter", 1000, 4) == 750
    assert ring_bytes("broadcast", 1000, 4) == 1000
    assert {ring_bytes(kind, 1000, 1) for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")} == {
        0.0
    }


@pytest.mark.parametrize(("stage", "times"), [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)])
def test_zero_requires_two_or_three_times_the_parameter_bytes(stage: int, times: float) -> None:
    from _communication import required_bytes, ring_bytes

    required = required_bytes(stage, [1000, 3000], persistence_threshold=10)
    many = 10**9
    sent = sum(ring_bytes(kind, size, many) for kind, size in required.items())
    assert sent == pytest.approx(times * 4 * 4000, rel=1e-6)


def test_small_parameters_are_gathered_once_in_stage_3() -> None:
    from _communication import required_bytes

    assert required_bytes(3, [10, 3000], persistence_threshold=10)["all_gather"] == 4 * (10 + 2 * 3000)
