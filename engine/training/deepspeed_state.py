"""Weights and optimizer state under DeepSpeed, by parameter name, as this rank holds them.

DeepSpeed 0.19 keeps them in flat fp32 tensors, each updated by AdamW as one parameter:

    ZeRO 0      every parameter is its own; all ranks hold the same
    ZeRO 1, 2   one tensor per parameter group: the group's parameters end to end, cut into equal pieces, one per rank
    ZeRO 3      one or more tensors per group: this rank's piece of each parameter, the last rank's padded
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from engine.training.checkpoint_files import MOMENTS, ParameterSlice


def held_slices(engine: Any, rank: int) -> list[ParameterSlice]:
    """Returns the slices that this rank holds: views, so that filling them changes weights and optimizer state.

    At ZeRO 0, and for frozen parameters up to ZeRO 2, that is the same on every rank. After the slices have been filled,
    :func:`refresh_weights` must follow.
    """
    stage = engine.zero_optimization_stage()
    slices = _of_zero_3(engine, rank) if stage == 3 else _of_zero_1_and_2(engine) if stage else _of_zero_0(engine)
    return [piece for piece in slices if piece.weight.numel()]


def owned_slices(engine: Any, rank: int, world_size: int) -> list[ParameterSlice]:
    """Returns the slices that this rank writes: over all ranks, each element of each parameter exactly once."""
    stage = engine.zero_optimization_stage()
    held = held_slices(engine, rank)
    if stage == 3:
        return held
    replicated = [piece for piece in held if not (stage and piece.moments)]
    total, offset = sum(piece.weight.numel() for piece in replicated), 0
    owned = [piece for piece in held if stage and piece.moments]
    for piece in replicated:
        start = max(total * rank // world_size - offset, 0)
        stop = min(total * (rank + 1) // world_size - offset, piece.stop)
        if start < stop:
            owned.append(piece.cut(start, stop))
        offset += piece.stop
    return owned


def num_updates(engine: Any) -> int:
    """Returns the number of AdamW's updates, which is the same for all parameters."""
    counts = {int(state["step"]) for state in _adamw(engine).state.values()}
    assert len(counts) <= 1, counts
    return counts.pop() if counts else 0


def set_num_updates(engine: Any, count: int) -> None:
    """Sets how often AdamW has updated the parameters."""
    for state in _adamw(engine).state.values():
        state["step"].fill_(count)


def refresh_weights(engine: Any) -> None:
    """Updates the model after the fp32 weights of :func:`held_slices` have been filled; all ranks together."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage in {1, 2}:
        optimizer.update_lp_params()
    elif stage == 3:
        for number in range(len(optimizer.fp32_partitioned_groups_flat)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)  # noqa: SLF001 -- as after DeepSpeed's own step
        if optimizer.persistent_parameters:
            # Small parameters that every rank keeps whole: drop the old values, then gather the new ones.
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def _of_zero_0(engine: Any) -> Iterator[ParameterSlice]:
    for name, parameter in engine.module.named_parameters():
        moments = _moments(engine, parameter) if parameter.requires_grad else {}
        yield ParameterSlice(name, 0, _flat(parameter), {key: _flat(moment) for key, moment in moments.items()})


def _of_zero_1_and_2(engine: Any) -> Iterator[ParameterSlice]:
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            yield ParameterSlice(name, 0, _flat(parameter), {})
            continue
        mapping = parameter._hp_mapping  # noqa: SLF001 -- there is no public way to this rank's slice
        if mapping is not None:
            flat = engine.optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
            address = mapping.get_hp_fragment_address()
            whole = ParameterSlice(name, 0, flat.data, _moments(engine, flat))
            piece = whole.cut(address.start, address.start + address.numel)
            yield piece._replace(start=mapping.lp_fragment_address.start)


def _of_zero_3(engine: Any, rank: int) -> Iterator[ParameterSlice]:
    optimizer = engine.optimizer
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad:
            group, offset, length = optimizer.grad_position[optimizer.get_param_id(parameter)]
            flat = optimizer.fp32_partitioned_groups_flat[group]
            whole = ParameterSlice(name, 0, flat.data, _moments(engine, flat))
        else:
            offset, length = 0, parameter.ds_tensor.numel()
            whole = ParameterSlice(name, 0, parameter.ds_tensor.data, {})
        start = rank * length
        piece = whole.cut(offset, offset + max(0, min(length, parameter.ds_numel - start)))
        yield piece._replace(start=start)


def _adamw(engine: Any) -> torch.optim.Optimizer:
    adamw: torch.optim.Optimizer = engine.optimizer.optimizer if engine.zero_optimization_stage() else engine.optimizer
    return adamw


def _moments(engine: Any, parameter: Tensor) -> dict[str, Tensor]:
    """Returns AdamW's moments of a tensor that it updates; creates them if it has not been updated yet."""
    state = _adamw(engine).state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for key in MOMENTS:
            state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {key: state[key].data for key in MOMENTS}


def _flat(tensor: Tensor) -> Tensor:
    assert tensor.is_contiguous()
    return tensor.data.view(-1)
