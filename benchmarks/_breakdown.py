"""FLOPs, memory traffic and time of each part of a training step, forward and backward.

All instances of a part, such as the twelve blocks with their own weights, run one after the other: first all forward passes,
then all backward passes. Bytes are the minimum that a part must move in its present form: inputs, weights, outputs and saved
tensors, each once. Intermediate results count only if they are saved for the backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from _step_parts import BACKWARD_FLOPS, Call, Part, make_parts
from _timing import DeviceTimer, HeadStart, Roofline
from torch import Tensor

from engine.config import PretrainConfig
from engine.data import Batch
from engine.objectives import PretrainingModel
from engine.tasks import PretrainingTask
from engine.training.optimizer import make_optimizer


@dataclass
class PassCost:
    """Cost of one pass; ``limit_seconds`` is the least time that the device needs for its FLOPs and bytes."""

    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    limit_seconds: float = 0.0


@dataclass
class PartCost:
    """Cost of a part; seconds are medians over the repeats."""

    name: str
    part_of: str | None
    forward: PassCost = field(default_factory=PassCost)
    backward: PassCost = field(default_factory=PassCost)


def measure_parts(config: PretrainConfig, batch: Batch, roofline: Roofline, repeats: int) -> list[PartCost]:
    """Measures every part of one micro-batch of one rank, and the optimizer's step.

    Args:
        config: the run's configuration; parts are compiled if it says so.
        batch: the micro-batch, on the device and in the precision of the step.
        roofline: the device's peak rates, for the limits.
        repeats: number of timed repeats, after one warm-up.
    """
    device = batch.segments.device
    model = PretrainingTask(config).model.to(device)
    compiled = config.compute.compile is not None
    parts = make_parts(model, batch.segments, batch.patient)
    costs = [measure_part(part, device, repeats, compiled=compiled) for part in parts]
    costs.append(_measure_optimizer(model, config, device, repeats))
    for cost in costs:
        for one in (cost.forward, cost.backward):
            one.limit_seconds = roofline.seconds(one.flops, one.bytes)
    return costs


def _tensors(values: Any) -> list[Tensor]:
    """Returns all tensors in nested tuples and lists."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, tuple | list):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def _differentiable(call: Call) -> list[Tensor]:
    """Returns the inputs and weights that receive a gradient."""
    return [tensor for tensor in [*_tensors(call.inputs), *call.weights] if tensor.requires_grad]


def _num_bytes(tensors: Sequence[Tensor]) -> int:
    """Returns the bytes of the tensors' storages; of several views of one storage only the largest counts."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        key = tensor.untyped_storage().data_ptr()
        sizes[key] = max(sizes.get(key, 0), tensor.numel() * tensor.element_size())
    return sum(sizes.values())


def count_bytes(call: Call) -> tuple[int, int]:
    """Returns the minimum memory traffic of a call in bytes, forward and backward, as defined at the top of this file."""
    saved: list[Tensor] = []

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        outputs = _tensors(call.run(*call.inputs))
    ends = [tensor for tensor in outputs if tensor.requires_grad]
    forward = _num_bytes([*_tensors(call.inputs), *call.weights, *outputs, *saved])
    if not ends:
        return forward, 0
    # Read: gradients of the outputs and saved tensors; written: gradients of inputs and weights.
    return forward, _num_bytes(ends) + _num_bytes(saved) + _num_bytes(_differentiable(call))


def measure_part(part: Part, device: torch.device, repeats: int, *, compiled: bool) -> PartCost:
    """Times a part and counts its bytes; medians over ``repeats``, after one warm-up."""
    cost = PartCost(part.name, part.part_of)
    counts = [count_bytes(call) for call in part.calls]
    cost.forward.flops = part.flops
    cost.forward.bytes, cost.backward.bytes = (float(sum(values)) for values in zip(*counts, strict=True))
    # Each part is compiled for its own shapes only, as in a run.
    torch.compiler.reset()
    runs = [torch.compile(call.run, dynamic=False) if compiled else call.run for call in part.calls]
    head_start, seconds = HeadStart(device), []
    for _ in range(1 + repeats):
        head_start.launch()
        timer = DeviceTimer(device)
        timer.mark()
        outputs = [
            [tensor for tensor in _tensors(run(*call.inputs)) if tensor.requires_grad]
            for run, call in zip(runs, part.calls, strict=True)
        ]
        timer.mark()
        gradients = [[torch.ones_like(tensor) for tensor in ends] for ends in outputs]
        timer.mark()
        for call, ends, grads in zip(reversed(part.calls), reversed(outputs), reversed(gradients), strict=True):
            if ends:
                torch.autograd.grad(ends, _differentiable(call), grads, allow_unused=True)
        timer.mark()
        seconds.append(timer.seconds())
        has_backward = any(outputs)
        del outputs, gradients
    cost.forward.seconds = median(forward for forward, _, _ in seconds[1:])
    if has_backward:
        cost.backward.flops = BACKWARD_FLOPS * part.flops
        cost.backward.seconds = median(backward for _, _, backward in seconds[1:])
    return cost


def _measure_optimizer(model: PretrainingModel, config: PretrainConfig, device: torch.device, repeats: int) -> PartCost:
    """Measures AdamW's step, which is listed as a forward pass."""
    optimizer, _ = make_optimizer(model, config.optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    head_start, seconds = HeadStart(device), []
    for _ in range(repeats):
        head_start.launch()
        timer = DeviceTimer(device)
        timer.mark()
        optimizer.step()
        timer.mark()
        seconds += timer.seconds()
    # Parameters and two moments are read and written, gradients are read.
    num_bytes = 7 * _num_bytes(list(model.parameters()))
    model.zero_grad()
    return PartCost("optimizer", None, PassCost(bytes=float(num_bytes), seconds=median(seconds)))
