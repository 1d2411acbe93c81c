from typing import Any

import pytest
from _scaling_model import BACKWARD_SHARE, GPUS_PER_NODE, Cluster, scaling_page

POINTS = [(64, 0.04), (512, 0.2)]
TRAFFIC = {0: {"all_reduce": 4e8}, 1: {"all_reduce": 4e8, "all_gather": 4e8}}


def cluster(node: float = 300e9, network: float = 40e9) -> Cluster:
    return Cluster(POINTS, TRAFFIC, node, network)


def test_one_gpu_takes_the_measured_time() -> None:
    for pairs, seconds in POINTS:
        assert cluster().step_bounds(1, pairs, 0) == pytest.approx((seconds, seconds))


@pytest.mark.parametrize(("pairs", "seconds"), [(32, 0.02), (288, 0.12), (1024, 0.4)])
def test_time_is_interpolated_between_batches_and_proportional_beyond(pairs: int, seconds: float) -> None:
    assert cluster().compute_seconds(pairs) == pytest.approx(seconds)


def test_gradient_reduction_overlaps_only_with_a_fast_network() -> None:
    low, high = cluster().step_bounds(8, 512, 0)
    assert low == pytest.approx(0.2)
    assert high == pytest.approx(0.2 + 2 * 7 / 8 * 4e8 / 300e9)
    low, high = cluster(node=1e9).step_bounds(8, 512, 0)
    assert low == pytest.approx(high - BACKWARD_SHARE * 0.2)


def test_gathering_parameters_never_overlaps() -> None:
    low, _ = cluster().step_bounds(2, 512, 1)
    assert low == pytest.approx(0.2 + 0.5 * 4e8 / 300e9)


def test_a_ring_over_several_nodes_is_as_fast_as_the_network() -> None:
    within, beyond = (cluster().step_bounds(num, 512, 0)[1] for num in (GPUS_PER_NODE, 2 * GPUS_PER_NODE))
    assert beyond - 0.2 > 5 * (within - 0.2)


def scaling_result() -> dict[str, object]:
    def run(ranks: int, seconds: float) -> dict[str, object]:
        stage = {
            "zero_stage": 0,
            "pairs_per_rank": 4,
            "tflop_per_step": 4 * 0.176 * ranks,
            "num_parameters": 90_900_000,
            "collective_bytes": {"all_reduce": 4e8},
            "step_seconds": {"median": seconds},
        }
        return {"ranks": ranks, "all_reduce_gb_per_second": 1.0 if ranks > 1 else None, "stages": [stage]}

    environment: dict[str, list[str]] = {"gpus": []}
    config: dict[str, list[str]] = {"overrides": []}
    return {
        "benchmark": "scaling",
        "config": config,
        "environment": environment,
        "metrics": {"runs": [run(1, 2.0), run(2, 2.3)]},
    }


def test_without_gpu_results_the_page_says_that_the_speed_is_assumed() -> None:
    page = scaling_page({"scaling-cpu": scaling_result()})
    assert "No GPU has been measured yet" in page
    assert "within bounds" in page  # the measured 2.3 s are below 2.0 s + 0.4 s of traffic
    first = next(line for line in page.splitlines() if line.startswith("| 1 |"))
    rate = float(first.split("|")[3].replace(",", ""))
    assert rate == pytest.approx(790e12 * 0.6 / 0.176e12, rel=0.01)


def gpu_step(seconds: float, pairs: tuple[int, ...] = (512,)) -> dict[str, Any]:
    times = {"step_seconds": {"median": seconds}}
    steps = [{"precision": "bf16", "pairs": n, "crops_per_second": {"median": n / seconds}, **times} for n in pairs]
    return {
        "benchmark": "train_step",
        "environment": {"gpus": ["NVIDIA H200"]},
        "config": {"ranks": 1, "overrides": ["compute.compile=blocks"]},
        "metrics": {"steps": steps},
    }


def test_among_gpu_results_the_page_uses_most_batch_sizes_then_speed() -> None:
    results = {"scaling-cpu": scaling_result(), "a": gpu_step(0.3), "b": gpu_step(0.25), "c": gpu_step(0.28)}
    assert "results/b.json" in scaling_page(results)
    assert "results/d.json" in scaling_page(results | {"d": gpu_step(0.3, (64, 512))})


def test_with_a_gpu_result_the_page_uses_its_step() -> None:
    page = scaling_page({"scaling-cpu": scaling_result(), "train-step-cuda": gpu_step(0.25)})
    assert "No GPU has been measured yet" not in page
    assert "| 1 | 512 | 2,048 |" in page
    assert "results/train-step-cuda.json" in page


def test_results_of_another_model_are_not_used() -> None:
    small = scaling_result() | {"config": {"overrides": ["model.depth=2"]}}
    assert "no prediction is possible" in scaling_page({"scaling-cpu": small})


def test_without_traffic_there_is_no_prediction() -> None:
    assert "no prediction is possible" in scaling_page({})
