from typing import Any

import pytest
from _cluster_model import FILE_SYSTEM_BANDWIDTH, NETWORK_HOP, RANK_COUNTS, cluster_costs
from _scaling_model import scaling_page


def run(ranks: int, **seconds: float) -> dict[str, Any]:
    defaults = {"start": 5, "connect": 1, "tables": 2, "model": 3, "write": 80, "verify": 4, "load": 6, "hop": 0.001}
    times = {f"{name}_seconds": {"median": value, "min": value, "max": value} for name, value in (defaults | seconds).items()}
    return {"ranks": ranks, "device": "cpu", "checkpoint_bytes": 3e9, "num_crops": 1000, **times}


def result() -> dict[str, Any]:
    return {
        "benchmark": "cluster",
        "config": {"zero": 1, "overrides": []},
        "environment": {"gpus": [], "cores": 2, "load_at_start": 0.5},
        "metrics": {"runs": [run(1), run(2), run(4, connect=1.3, hop=0.006, tables=9)]},
    }


def predicted(name: str) -> list[float]:
    table = cluster_costs(result(), {"all_reduce": 4e8}, 300e9, 40e9)
    (row,) = (row for row in table.rows if str(row[0]).startswith(name))
    return [float(str(value)) for value in row[4:7]]


def test_what_each_machine_does_once_takes_as_long_as_with_one_rank() -> None:
    assert predicted("opening the dataset") == [2, 2, 2]
    assert predicted("processes") == [5, 5, 5]


def test_connecting_takes_longer_with_each_rank() -> None:
    assert predicted("connecting") == pytest.approx([1 + 0.1 * (num - 1) for num in RANK_COUNTS])


def test_ranks_share_a_checkpoint_until_the_file_system_is_busy() -> None:
    busy = 3e9 / FILE_SYSTEM_BANDWIDTH
    assert predicted("writing") == pytest.approx([80 / 8, busy, busy])
    assert predicted("loading") == pytest.approx([6, 8, 64])


def test_traffic_leaves_the_machine_beyond_eight_ranks() -> None:
    assert predicted("traffic")[0] == pytest.approx(2 * 7 / 8 * 4e8 / 300e9)
    assert predicted("traffic")[1] == pytest.approx(2 * 63 / 64 * 4e8 / 40e9)
    hops = [2 * (num - 1) * 0.001 for num in RANK_COUNTS]
    assert predicted("an all-reduce") == pytest.approx([hops[0], hops[1] + 14 * NETWORK_HOP, hops[2] + 126 * NETWORK_HOP])


def test_without_results_the_page_has_no_costs() -> None:
    assert "Start-up" not in scaling_page({})
