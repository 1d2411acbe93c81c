"""Predicts the crops/s of many GPUs from the step of one GPU and the traffic between them.

A step takes the time of one GPU's share of the batch plus the communication that does not overlap with the backward pass. The
overlap depends on machine and library, so there are two bounds: gradient reduction overlaps with the whole backward pass, or
nothing overlaps.

Every number is listed with its source. Where no GPU has been measured, an assumption takes its place and is marked as such.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from _cluster_model import RANKS_PER_MACHINE, cluster_costs
from _communication import ring_bytes
from _data_demand import data_demand
from _results import Result, Table

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
GPUS_PER_NODE = 8
PAPER_EPOCHS, PAPER_CROPS, PAPER_PAIRS = 200, 189_051, 512
BACKWARD_SHARE = 2 / 3  # of a step's time: the backward pass has twice the FLOPs of the forward pass
_REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}


class Input(NamedTuple):
    """A number that the prediction uses, and its source; it is an assumption unless measured with this engine."""

    name: str
    value: float
    unit: str
    source: str
    is_measured: bool


# Assumptions. Bandwidths are those of one GPU in one direction, as achieved by an all-reduce.
_MATMUL = Input("large bf16 matmul on an H200", 790.0, "TFLOP/s", "seen on such GPUs", is_measured=False)
_MFU = Input("MFU of the step", 60.0, "%", "the goal, not a measurement", is_measured=False)
_NODE = Input("bandwidth within a node of 8", 300.0, "GB/s", "two thirds of NVLink 4's nominal 450", is_measured=False)
_NETWORK = Input("bandwidth of a GPU between nodes", 40.0, "GB/s", "four fifths of a 400 Gb/s adapter", is_measured=False)
PRICE = Input("price of a GPU-hour", 3.0, "USD", "a round number: insert your own", is_measured=False)


class Cluster(NamedTuple):
    """The inputs of the prediction.

    Attributes:
        step_seconds: (pairs, seconds) of steps on one GPU, in ascending order of pairs.
        traffic: for each ZeRO stage, the bytes of each kind of collective in a step.
        node_bandwidth: bytes/s that a GPU sends within a node.
        network_bandwidth: bytes/s that a GPU sends if the ring spans several nodes.
    """

    step_seconds: Sequence[tuple[int, float]]
    traffic: Mapping[int, Mapping[str, float]]
    node_bandwidth: float
    network_bandwidth: float

    def compute_seconds(self, pairs: float) -> float:
        """Returns the seconds of a step on one GPU: interpolated between measured batches, proportional outside of them."""
        points = self.step_seconds
        for (low, low_seconds), (high, high_seconds) in pairwise(points):
            if low <= pairs <= high:
                return low_seconds + (high_seconds - low_seconds) * (pairs - low) / (high - low)
        nearest, seconds = points[0] if pairs < points[0][0] else points[-1]
        return seconds * pairs / nearest

    def step_bounds(self, num_gpus: int, pairs: float, stage: int) -> tuple[float, float]:
        """Returns the seconds of a step with ``pairs`` per GPU: with gradient reduction overlapped, and without overlap."""
        compute = self.compute_seconds(pairs)
        bandwidth = self.node_bandwidth if num_gpus <= GPUS_PER_NODE else self.network_bandwidth
        seconds = {kind: ring_bytes(kind, size, num_gpus) / bandwidth for kind, size in self.traffic[stage].items()}
        reduction = sum(value for kind, value in seconds.items() if kind in _REDUCTIONS)
        others = sum(seconds.values()) - reduction
        return compute + others + max(0.0, reduction - BACKWARD_SHARE * compute), compute + others + reduction


def scaling_page(results: Mapping[str, Result]) -> str:
    """Returns the text of SCALING.md."""
    # Results of the base model; the one with the most ranks is last.
    scalings = [result for result in results.values() if result["benchmark"] == "scaling" and _is_base(result)]
    scalings.sort(key=lambda result: max(int(run["ranks"]) for run in result["metrics"]["runs"]))
    parts = ["# Scaling", _INTRODUCTION]
    if not scalings:
        return "\n\n".join(
            [*parts, "No results of `scaling.py` are recorded: without the traffic of a step, no prediction is possible."]
        )
    inputs, cluster = _gpu_cluster(results, scalings[-1])
    rows: list[list[object]] = [
        [each.name, each.value, each.unit, "measured" if each.is_measured else "**assumed**", each.source] for each in inputs
    ]
    parts += ["## Inputs", Table("", ["input", "value", "unit", "", "source"], rows).markdown()]
    if not any(each.is_measured for each in inputs if each.unit == "crops/s"):
        parts.append(
            "**No GPU has been measured yet: the speed of one GPU is the goal. The tables show what communication would cost a "
            "GPU of that speed, not what this engine achieves.**"
        )
    for title, weak in (("512 pairs per GPU", True), ("The paper's batch: 512 pairs in total", False)):
        parts += [f"## {title}", _prediction(cluster, weak=weak).markdown()]
    costs = [result for result in results.values() if result["benchmark"] == "cluster"]
    if costs:
        stages = {stage["zero_stage"]: stage["collective_bytes"] for stage in scalings[-1]["metrics"]["runs"][-1]["stages"]}
        traffic = stages.get(costs[-1]["config"]["zero"], {})
        table = cluster_costs(costs[-1], traffic, cluster.node_bandwidth, cluster.network_bandwidth)
        parts += ["## Start-up, checkpoints and communication", _costs_introduction(costs[-1]), table.markdown()]
    parts += data_demand(results)
    on_cpu = [result for result in scalings if not result["environment"]["gpus"]]
    if on_cpu:
        parts += ["## The model compared with CPU ranks", _cpu_check(on_cpu[-1])]
    return "\n\n".join(parts)


def _costs_introduction(result: Result) -> str:
    machine = result["environment"]
    device = ", ".join(machine["gpus"]) or f"{machine['cores']} cores, other programs' load {machine['load_at_start']:g}"
    return (
        f"Measured by `cluster.py` with ranks on one machine ({device}), in seconds of the slowest rank; ranks that "
        f"outnumber the cores take turns. Predicted for machines of {RANKS_PER_MACHINE} ranks, with each line's assumption."
    )


def _is_base(result: Result) -> bool:
    return not any(word.startswith(("model.", "objective.")) for word in result["config"]["overrides"])


_INTRODUCTION = """Written by `report.py` from `results/`. Crops/s and cost of 1 to 64 GPUs, predicted from the step of one GPU
and the traffic of a step, which `scaling.py` counts in the collectives. A step takes the time of the GPU's share of the batch
plus the communication that does not overlap with computation. The first number of a range assumes no overlap; the second
overlaps gradient reduction with the backward pass, as far as that is long enough. Below the smallest measured batch, step time
is taken as proportional to the batch, which is optimistic. Not included: waiting for the slowest GPU, latencies, the growth of
the objective's own small gather, and loading, which is measured separately. Collectives use a ring; a ring that leaves the node
is as fast as the network."""


def _gpu_cluster(results: Mapping[str, Result], scaling: Result) -> tuple[list[Input], Cluster]:
    """Returns the inputs for the table, and the cluster: from a recorded GPU step if there is one, else from assumptions."""
    runs = scaling["metrics"]["runs"]
    largest = max(runs, key=lambda run: int(run["ranks"]))
    traffic = {stage["zero_stage"]: stage["collective_bytes"] for stage in largest["stages"]}
    sent = Input("parameters, in fp32", 4e-6 * largest["stages"][0]["num_parameters"], "MB", "scaling.py", is_measured=True)
    bandwidths = (1e9 * _NODE.value, 1e9 * _NETWORK.value)
    name = _gpu_steps(results)
    if name is not None:
        result = results[name]
        steps = [step for step in result["metrics"]["steps"] if step["precision"] == "bf16"]
        points = sorted((int(step["pairs"]), float(step["step_seconds"]["median"])) for step in steps)
        gpu = result["environment"]["gpus"][0]
        inputs = [
            Input(f"{gpu}, {pairs} pairs", pairs / seconds, "crops/s", f"results/{name}.json", is_measured=True)
            for pairs, seconds in points
        ]
        return [*inputs, sent, _NODE, _NETWORK, PRICE], Cluster(points, traffic, *bandwidths)
    stage = largest["stages"][0]
    flops = stage["tflop_per_step"] * 1e12 / (stage["pairs_per_rank"] * largest["ranks"])
    rate = _MATMUL.value * 1e12 * _MFU.value / 100 / flops
    speed = Input("one H200 at that rate and MFU", rate, "crops/s", "follows from these two", is_measured=False)
    points = [(PAPER_PAIRS, PAPER_PAIRS / rate)]
    return [_MATMUL, _MFU, speed, sent, _NODE, _NETWORK, PRICE], Cluster(points, traffic, *bandwidths)


def _gpu_steps(results: Mapping[str, Result]) -> str | None:
    """Returns the name of the base model's result on one GPU with the most batch sizes; in a tie, the fastest."""
    found: dict[str, tuple[int, float]] = {}
    for name, result in results.items():
        if result["benchmark"] != "train_step" or not result["environment"]["gpus"] or result["config"]["ranks"] != 1:
            continue
        steps = [step for step in result["metrics"]["steps"] if step["precision"] == "bf16"]
        if steps and _is_base(result):
            found[name] = (len(steps), max(step["crops_per_second"]["median"] for step in steps))
    return max(found, key=lambda name: found[name], default=None)


def _prediction(cluster: Cluster, *, weak: bool) -> Table:
    rows: list[list[object]] = []
    for num_gpus in GPU_COUNTS:
        pairs = PAPER_PAIRS if weak else PAPER_PAIRS / num_gpus
        row: list[object] = [num_gpus, f"{pairs * num_gpus:,.0f}"]
        hours: tuple[float, ...] = ()
        for stage in sorted(cluster.traffic):
            rates = [pairs * num_gpus / seconds for seconds in cluster.step_bounds(num_gpus, pairs, stage)]
            row.append(" to ".join(dict.fromkeys(f"{rate:,.0f}" for rate in reversed(rates))))
            if stage == 1 or not hours:
                hours = tuple(PAPER_EPOCHS * PAPER_CROPS / rate / 3600 * num_gpus for rate in rates)
        rows.append([*row, f"{hours[1]:,.1f}", f"{PRICE.value * hours[1]:,.0f}"])
    stages = [f"ZeRO-{stage}, crops/s" for stage in sorted(cluster.traffic)]
    caption = (
        f"GPU-hours and cost of {PAPER_EPOCHS} epochs of {PAPER_CROPS:,} crops of 10 s (the paper's "
        f"{PAPER_CROPS:,} samples of 5 s take half of that), at ZeRO-{1 if 1 in cluster.traffic else min(cluster.traffic)} "
        "without overlap."
    )
    return Table(caption, ["GPUs", "batch", *stages, "GPU-hours", f"cost, {PRICE.unit}"], rows)


def _cpu_check(scaling: Result) -> str:
    """Returns a table of predicted and measured step times of CPU ranks."""
    runs = {int(run["ranks"]): run for run in scaling["metrics"]["runs"]}
    if 1 not in runs or len(runs) < 2:
        return "No comparison: this needs a results file with runs of one rank and of several ranks."
    single = {stage["zero_stage"]: stage for stage in runs[1]["stages"]}
    rows: list[list[object]] = []
    for num_ranks, run in runs.items():
        for stage in run["stages"] if num_ranks > 1 else []:
            number = stage["zero_stage"]
            points = [(stage["pairs_per_rank"], single[number]["step_seconds"]["median"])]
            bandwidth = 1e9 * run["all_reduce_gb_per_second"]
            cluster = Cluster(points, {number: stage["collective_bytes"]}, bandwidth, bandwidth)
            low, high = cluster.step_bounds(num_ranks, stage["pairs_per_rank"], number)
            rows.append([num_ranks, str(number), low, high, stage["step_seconds"]["median"], _verdict(stage, low, high)])
    caption = (
        "Step times of ranks on one machine: measured, and predicted with full overlap (lower bound) and without (upper bound) "
        "from one rank's step with the same number of threads and the measured bandwidth of an all-reduce. Time beyond the "
        "upper bound is contention for memory and cache, and DeepSpeed's other work."
    )
    return Table(caption, ["ranks", "ZeRO", "full overlap, s", "no overlap, s", "measured, s", ""], rows).markdown()


def _verdict(stage: Mapping[str, Any], low: float, high: float) -> str:
    seconds = stage["step_seconds"]["median"]
    return "within bounds" if low <= seconds <= high else "faster" if seconds < low else f"{seconds / high - 1:.0%} slower"
