"""Crops a second of many GPUs, predicted from what one does and from what they send each other.

A step takes the time of one GPU's share of the batch, plus the part of the traffic that does not go on beside the backward
pass. How much that is depends on machine and library, so two bounds are given: the reduction of the gradients hidden as far as
the backward pass is long enough, and nothing hidden.

Every number comes with its source. Where no GPU has been measured, an assumption stands in its place and says so.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from _communication import ring_bytes
from _tables import Result, Table

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
GPUS_PER_NODE = 8
PAPER_EPOCHS, PAPER_CROPS, PAPER_PAIRS = 200, 189_051, 512
BACKWARD_SHARE = 2 / 3  # of a step: the backward pass has twice the FLOPs of the forward pass
_REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}


class Input(NamedTuple):
    """A number of the prediction and where it comes from; assumed, unless this engine was measured."""

    what: str
    value: float
    unit: str
    source: str
    is_measured: bool


# What nobody here can measure. Bandwidths are of one GPU in one direction, as an all-reduce reaches them.
_PRODUCT = Input("large bf16 product of an H200", 790.0, "TFLOP/s", "the design's facts: seen on such GPUs", is_measured=False)
_MFU = Input("MFU of the step", 60.0, "%", "the design's goal, not a measurement", is_measured=False)
_NODE = Input("bandwidth within a node of 8", 300.0, "GB/s", "two thirds of NVLink 4's nominal 450", is_measured=False)
_NETWORK = Input("bandwidth of a GPU between nodes", 40.0, "GB/s", "four fifths of a 400 Gb/s adapter", is_measured=False)
PRICE = Input("price of a GPU-hour", 3.0, "USD", "a round figure: put your own in its place", is_measured=False)


class Cluster(NamedTuple):
    """What the prediction is made from.

    Attributes:
        step_seconds: (pairs, seconds) of a step of one GPU, ascending in pairs.
        traffic: stage of ZeRO -> bytes of each kind of collective in a step.
        node_bandwidth: bytes/s that a GPU sends within a node.
        network_bandwidth: the same if the ring goes through several nodes.
    """

    step_seconds: Sequence[tuple[int, float]]
    traffic: Mapping[int, Mapping[str, float]]
    node_bandwidth: float
    network_bandwidth: float

    def compute_seconds(self, pairs: float) -> float:
        """A step of one GPU: straight lines between the given batches, in proportion below and above them."""
        points = self.step_seconds
        for (low, low_seconds), (high, high_seconds) in pairwise(points):
            if low <= pairs <= high:
                return low_seconds + (high_seconds - low_seconds) * (pairs - low) / (high - low)
        nearest, seconds = points[0] if pairs < points[0][0] else points[-1]
        return seconds * pairs / nearest

    def step_bounds(self, num_gpus: int, pairs: float, stage: int) -> tuple[float, float]:
        """Seconds of a step with ``pairs`` on each GPU: the reduction hidden as far as it goes, and nothing hidden."""
        compute = self.compute_seconds(pairs)
        bandwidth = self.node_bandwidth if num_gpus <= GPUS_PER_NODE else self.network_bandwidth
        seconds = {kind: ring_bytes(kind, size, num_gpus) / bandwidth for kind, size in self.traffic[stage].items()}
        reduction = sum(value for kind, value in seconds.items() if kind in _REDUCTIONS)
        others = sum(seconds.values()) - reduction
        return compute + others + max(0.0, reduction - BACKWARD_SHARE * compute), compute + others + reduction


def scaling_page(results: Mapping[str, Result]) -> str:
    """The text of SCALING.md."""
    # Those of the base model, the one with most ranks last.
    scalings = [result for result in results.values() if result["benchmark"] == "scaling" and _is_base(result)]
    scalings.sort(key=lambda result: max(int(world["ranks"]) for world in result["figures"]["worlds"]))
    parts = ["# Scaling", _INTRODUCTION]
    if not scalings:
        return "\n\n".join(
            [*parts, "No results of `scaling.py` are recorded: without the traffic of a step there is no prediction."]
        )
    inputs, cluster = _gpu_cluster(results, scalings[-1])
    rows: list[list[object]] = [
        [each.what, each.value, each.unit, "measured" if each.is_measured else "**assumed**", each.source] for each in inputs
    ]
    parts += ["## What goes in", Table("", ["what", "value", "unit", "", "source"], rows).markdown()]
    if not any(each.is_measured for each in inputs if each.unit == "crops/s"):
        parts.append(
            "**No GPU has been measured yet: the speed of one GPU is the design's goal. What follows shows what communication "
            "would cost a GPU of that speed, not what this engine does.**"
        )
    for title, weak in (("512 pairs on each GPU", True), ("The paper's batch: 512 pairs over all GPUs", False)):
        parts += [f"## {title}", _prediction(cluster, weak=weak).markdown()]
    on_cpu = [result for result in scalings if not result["environment"]["gpus"]]
    if on_cpu:
        parts += ["## The same rule on the CPU", _cpu_check(on_cpu[-1])]
    return "\n\n".join(parts)


def _is_base(result: Result) -> bool:
    return not any(word.startswith(("model.", "objective.")) for word in result["config"]["overrides"])


_INTRODUCTION = """Written by `report.py` from `results/`. Crops/s and cost of 1 to 64 GPUs, predicted from the step of one GPU
and the traffic of a step, which `scaling.py` counts at the collectives. A step takes the time of the GPU's share of the batch,
plus what of the traffic is not hidden. The first figure hides nothing; the second hides the reduction of the gradients behind
the backward pass, as far as that is long enough. Below the smallest measured batch a step shrinks in proportion, which is
hopeful. Left out: waiting for the slowest GPU, latencies, the growth of the objective's own small gather, and loading, which is
measured apart. Traffic goes around a ring; one that leaves the node is as fast as the network."""


def _gpu_cluster(results: Mapping[str, Result], scaling: Result) -> tuple[list[Input], Cluster]:
    """From a recorded GPU step where there is one, else from the assumptions."""
    worlds = scaling["figures"]["worlds"]
    largest = max(worlds, key=lambda world: int(world["ranks"]))
    traffic = {stage["zero_stage"]: stage["collective_bytes"] for stage in largest["stages"]}
    sent = Input("parameters, in fp32", 4e-6 * largest["stages"][0]["num_parameters"], "MB", "scaling.py", is_measured=True)
    bandwidths = (1e9 * _NODE.value, 1e9 * _NETWORK.value)
    name = _gpu_steps(results)
    if name is not None:
        result = results[name]
        steps = [step for step in result["figures"]["steps"] if step["precision"] == "bf16"]
        points = sorted((int(step["pairs"]), float(step["step_seconds"]["median"])) for step in steps)
        gpu = result["environment"]["gpus"][0]
        inputs = [
            Input(f"{gpu}, {pairs} pairs", pairs / seconds, "crops/s", f"results/{name}.json", is_measured=True)
            for pairs, seconds in points
        ]
        return [*inputs, sent, _NODE, _NETWORK, PRICE], Cluster(points, traffic, *bandwidths)
    stage = largest["stages"][0]
    flops = stage["tflop_per_step"] * 1e12 / (stage["pairs_per_rank"] * largest["ranks"])
    rate = _PRODUCT.value * 1e12 * _MFU.value / 100 / flops
    speed = Input("one H200 at that product and MFU", rate, "crops/s", "follows from the two", is_measured=False)
    points = [(PAPER_PAIRS, PAPER_PAIRS / rate)]
    return [_PRODUCT, _MFU, speed, sent, _NODE, _NETWORK, PRICE], Cluster(points, traffic, *bandwidths)


def _gpu_steps(results: Mapping[str, Result]) -> str | None:
    """Of the recorded steps of the base model on one GPU those of most batches, and among these the fastest."""
    found: dict[str, tuple[int, float]] = {}
    for name, result in results.items():
        if result["benchmark"] != "train_step" or not result["environment"]["gpus"] or result["config"]["ranks"] != 1:
            continue
        steps = [step for step in result["figures"]["steps"] if step["precision"] == "bf16"]
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
        f"GPU-hours and cost of {PAPER_EPOCHS} epochs of {PAPER_CROPS:,} crops of 10 s (half of it if they are 5-s segments), "
        f"at ZeRO-{1 if 1 in cluster.traffic else min(cluster.traffic)} with nothing hidden."
    )
    return Table(caption, ["GPUs", "batch", *stages, "GPU-hours", f"cost, {PRICE.unit}"], rows)


def _cpu_check(scaling: Result) -> str:
    """What the rule says of the recorded ranks, next to what they did."""
    worlds = {int(world["ranks"]): world for world in scaling["figures"]["worlds"]}
    if 1 not in worlds or len(worlds) < 2:
        return "Needs results of one rank and of several in one file."
    single = {stage["zero_stage"]: stage for stage in worlds[1]["stages"]}
    rows: list[list[object]] = []
    for num_ranks, world in worlds.items():
        for stage in world["stages"] if num_ranks > 1 else []:
            number = stage["zero_stage"]
            points = [(stage["pairs_per_rank"], single[number]["step_seconds"]["median"])]
            bandwidth = 1e9 * world["all_reduce_gb_per_second"]
            cluster = Cluster(points, {number: stage["collective_bytes"]}, bandwidth, bandwidth)
            low, high = cluster.step_bounds(num_ranks, stage["pairs_per_rank"], number)
            rows.append([num_ranks, str(number), low, high, stage["step_seconds"]["median"], _verdict(stage, low, high)])
    caption = (
        "Ranks on one machine, one rank's step at the same number of threads, the all-reduce's measured bandwidth. Beyond the "
        "second bound lies what the ranks take from each other in memory and cache, and what DeepSpeed does besides sending."
    )
    return Table(caption, ["ranks", "ZeRO", "all hidden, s", "nothing hidden, s", "measured, s", ""], rows).markdown()


def _verdict(stage: Mapping[str, Any], low: float, high: float) -> str:
    seconds = stage["step_seconds"]["median"]
    return "within" if low <= seconds <= high else "faster" if seconds < low else f"{seconds / high - 1:.0%} beyond"
