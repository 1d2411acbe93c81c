"""The traffic between ranks in a step: counted in the collectives, and computed from the model's size.

Traffic is what one rank sends if collectives use a ring of W ranks, as NCCL's do for large tensors. For a full tensor of n
bytes (not one rank's part), an all-reduce sends 2 (W - 1) / W n, a reduce-scatter or all-gather (W - 1) / W n, and a broadcast
or reduce n.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor

# Name in torch.distributed -> (kind, argument that holds the full tensor).
_COLLECTIVES: dict[str, tuple[str, str]] = {
    "all_reduce": ("all_reduce", "tensor"),
    "all_gather": ("all_gather", "tensor_list"),
    "all_gather_into_tensor": ("all_gather", "output_tensor"),
    "_all_gather_base": ("all_gather", "output_tensor"),
    "reduce_scatter": ("reduce_scatter", "input_list"),
    "reduce_scatter_tensor": ("reduce_scatter", "input"),
    "_reduce_scatter_base": ("reduce_scatter", "input"),
    "broadcast": ("broadcast", "tensor"),
    "reduce": ("reduce", "tensor"),
}
# Position of that argument.
_POSITIONS = {"tensor": 0, "tensor_list": 0, "output_tensor": 0, "input_list": 1, "input": 1}


def ring_bytes(kind: str, num_bytes: float, world_size: int) -> float:
    """Returns the bytes that one rank sends for one collective of ``num_bytes``."""
    share = (world_size - 1) / world_size
    return num_bytes * {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": share}.get(kind, float(world_size > 1))


@dataclass
class Traffic:
    """Number of collectives and their bytes, by kind."""

    calls: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, num_bytes: int) -> None:
        """Counts one collective."""
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.bytes[kind] = self.bytes.get(kind, 0) + num_bytes

    def ring_bytes(self, world_size: int) -> float:
        """Returns the bytes that one rank sends for all collectives."""
        return sum(ring_bytes(kind, num_bytes, world_size) for kind, num_bytes in self.bytes.items())

    def clear(self) -> None:
        """Resets all counts."""
        self.calls.clear()
        self.bytes.clear()


@contextmanager
def counting() -> Iterator[Traffic]:
    """Counts the collectives on tensors that are called through ``torch.distributed`` in the context, including DeepSpeed's.

    Enter it before DeepSpeed is initialized, because DeepSpeed keeps references to some functions. :meth:`Ranks.gather` and
    similar calls use collectives too: clear the traffic after them.
    """
    traffic = Traffic()
    originals = {name: getattr(dist, name) for name in _COLLECTIVES if hasattr(dist, name)}
    for name, original in originals.items():
        setattr(dist, name, _counted(original, *_COLLECTIVES[name], traffic))
    try:
        yield traffic
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def _counted(original: Callable[..., Any], kind: str, argument: str, traffic: Traffic) -> Callable[..., Any]:
    @wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        # DeepSpeed and torch name the input of a reduce-scatter differently.
        names = (argument, "input_tensor") if argument == "input" else (argument,)
        full = next((kwargs[name] for name in names if name in kwargs), None)
        full = args[_POSITIONS[argument]] if full is None else full
        tensors = [full] if isinstance(full, Tensor) else full
        traffic.add(kind, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
        return original(*args, **kwargs)

    return collective


def required_bytes(stage: int, parameter_sizes: list[int], persistence_threshold: int, element_size: int = 4) -> dict[str, int]:
    """Returns the bytes that a step must communicate for gradients and parameters, by kind of collective.

    S. Rajbhandari et al., "ZeRO", https://arxiv.org/abs/1910.02054, section 7. Gradients and parameters are fp32 whatever the
    precision of the arithmetic.

    Args:
        stage: ZeRO stage. Stage 0 averages all gradients; 1 and 2 reduce each part of the gradients to its owner and gather the
            updated parameters; 3 gathers the parameters for the forward pass and again for the backward pass, and reduces the
            gradients to their owners.
        parameter_sizes: number of elements of each parameter.
        persistence_threshold: parameters up to this size are not partitioned in stage 3, and are gathered once.
        element_size: bytes per element.
    """
    all_parameters = element_size * sum(parameter_sizes)
    if stage == 0:
        return {"all_reduce": all_parameters}
    if stage < 3:
        return {"reduce_scatter": all_parameters, "all_gather": all_parameters}
    large = element_size * sum(size for size in parameter_sizes if size > persistence_threshold)
    return {"reduce_scatter": all_parameters, "all_gather": all_parameters + large}
