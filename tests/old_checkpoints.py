"""Checkpoints of format version 2, as an older release wrote them: with the pickles of DeepSpeed."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

NUM_UPDATES = 5


class MemberByName:
    """Pickles as a member of an enumeration does in Python 3.11.0 to 3.11.3."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (ZeroStageEnum, "weights")


def moments_of(weight: Tensor) -> dict[str, Tensor]:
    """The moments that are written of a weight."""
    return {"exp_avg": 2 * weight, "exp_avg_sq": 3 * weight}


def write_old_checkpoint(
    folder: Path, weights: dict[str, Tensor], stage: int, num_ranks: int, config: dict[str, Any], **changes: Any
) -> None:
    """Writes a checkpoint with the files that DeepSpeed writes for the stage."""
    files = folder / "deepspeed"
    files.mkdir(parents=True)
    if stage < 3:
        states = {number: {"step": torch.tensor(NUM_UPDATES), **moments_of(w)} for number, w in enumerate(weights.values())}
        torch.save({"module": weights, "optimizer": {"state": states}}, files / "mp_rank_00_model_states.pt")
    if stage in {1, 2}:
        _write_slices(files, weights, num_ranks)
    if stage == 3:
        _write_pieces(files, weights, num_ranks)
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    write_old_description(folder, stage, num_ranks, config, **{"shapes": shapes, **changes})


def write_old_description(folder: Path, stage: int, num_ranks: int, config: dict[str, Any], **changes: Any) -> None:
    """Writes ``checkpoint.json`` for the files that DeepSpeed has written."""
    content = {
        "format_version": 2,
        "step": 7,
        "loader": {"fingerprint": "abc", "cursor": 28},
        "config": config,
        "world_size": num_ranks,
        "zero_stage": stage,
        "score": 0.25,
        "best_score": 0.125,
        "versions": {"torch": "2"},
        "files": {str(path.relative_to(folder)): describe(path) for path in sorted((folder / "deepspeed").iterdir())},
    }
    (folder / "checkpoint.json").write_text(json.dumps(content | changes))


def describe(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def replace_file(folder: Path, name: str, content: object) -> None:
    """Puts something else into a file and its hash into the description, as someone with bad intentions would."""
    torch.save(content, folder / name)
    description = json.loads((folder / "checkpoint.json").read_text())
    description["files"][name] = describe(folder / name)
    (folder / "checkpoint.json").write_text(json.dumps(description))


def partition(tensors: dict[str, Tensor], num_ranks: int) -> list[Tensor]:
    """What ZeRO 3 gives each rank: a piece of each flattened tensor, the last one padded."""
    parts: list[list[Tensor]] = [[] for _ in range(num_ranks)]
    for tensor in tensors.values():
        flat = tensor.flatten()
        length = -(-len(flat) // num_ranks)
        padded = torch.cat([flat, torch.full((length * num_ranks - len(flat),), 99.0)])
        for part, piece in zip(parts, padded.split(length), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


def _write_slices(folder: Path, weights: dict[str, Tensor], num_ranks: int) -> None:
    flat = torch.cat([weight.flatten() for weight in weights.values()])
    length = -(-len(flat) // num_ranks)
    for rank in range(num_ranks):
        part = flat[rank * length : (rank + 1) * length]
        addresses, offset = {}, 0
        for name, weight in weights.items():
            start, stop = max(offset, rank * length), min(offset + weight.numel(), (rank + 1) * length)
            if start < stop:
                addresses[name] = fragment_address(numel=stop - start, start=start - rank * length)
            offset += weight.numel()
        state = {"step": torch.tensor(NUM_UPDATES), **moments_of(torch.cat([part, torch.zeros(3)]))}
        optimizer = {"base_optimizer_state": {"state": {0: state}}, "param_slice_mappings": [addresses]}
        torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def _write_pieces(folder: Path, weights: dict[str, Tensor], num_ranks: int) -> None:
    shapes = [{name: tensor.shape for name, tensor in weights.items()}]
    for rank, part in enumerate(partition(weights, num_ranks)):
        states = {"module": {name: torch.zeros(0) for name in weights}, "param_shapes": shapes, "buffer_names": []}
        torch.save(states, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        groups = list(part.split(1000)) if rank == 0 else [part]
        state = {number: {"step": torch.tensor(NUM_UPDATES), **moments_of(group)} for number, group in enumerate(groups)}
        objects = {"zero_stage": ZeroStageEnum.weights, "in Python 3.11.2": MemberByName()}
        optimizer = {"fp32_flat_groups": groups, "optimizer_state_dict": {"state": state}, **objects}
        torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
