"""Checkpoints of a run, written by DeepSpeed, to the native folder.

With ZeRO 0 to 2 one file contains all weights. With ZeRO 3 each rank's file contains a part of each weight, see
:func:`_join_partitions`. No code in the files is run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from data_tools.leads import LEADS
from data_tools.validation import describe_validation_error
from engine.data import find_leads
from engine.interop.native import empty_tensors, save_model
from engine.interop.torch_files import plain_tensors, read_torch_file
from engine.models import ModelConfig
from engine.models.model_weights import check_shapes
from engine.models.pretrained import check_new_folder
from engine.options import UserError
from engine.training.checkpoint import CheckpointInfo, read_checkpoint
from engine.training.deepspeed_backend import weights_folder


class _Placeholder:
    """Replaces DeepSpeed's own objects in its files, so that none of its code is run."""

    def __init__(self, *_arguments: object) -> None:
        pass


_DEEPSPEED_OBJECTS = [
    (_Placeholder, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Placeholder, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    # Python 3.11.0 to 3.11.3 pickle a member of an enumeration as getattr(class, name), which is not looked up here either.
    (_Placeholder, "builtins.getattr"),
]


def import_checkpoint(checkpoint: Path, folder: Path) -> list[str]:
    """Converts a checkpoint of a pre-training run, of any ZeRO stage and number of ranks, to a native folder.

    Args:
        checkpoint: folder of a checkpoint, such as ``RUN/checkpoints/step-00001000``; the hash of each file is verified.
        folder: the native folder to write.

    Returns:
        Notes for the user.

    Raises:
        UserError: the checkpoint cannot be converted; nothing was written.
    """
    check_new_folder(folder)
    info = read_checkpoint(checkpoint)
    config = _read_config(checkpoint, info)
    try:
        tensors = _read_partitions(checkpoint, info) if info.zero_stage == 3 else _read_module(checkpoint)
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{checkpoint}: its files are not those of a DeepSpeed checkpoint ({error!r})") from None
    tensors = plain_tensors(f"{checkpoint}: module", tensors)
    check_shapes(str(checkpoint), tensors, empty_tensors(str(checkpoint), config))
    save_model(folder, config, tensors)
    return ["ignored: optimizer state and position in the data, which only resuming the run needs"]


def _read_config(checkpoint: Path, info: CheckpointInfo) -> ModelConfig:
    where = f"{checkpoint}/checkpoint.json"
    try:
        # Older checkpoints have the leads among the data's options.
        leads = info.config["leads"] if "leads" in info.config else info.config["data"]["leads"]
        return ModelConfig.model_validate(
            {
                "kind": "pretraining",
                "encoder": info.config["model"],
                "objective": info.config["objective"],
                "leads": [LEADS[row] for row in find_leads(leads)],
                "provenance": {
                    "source": "ecg-engine run",
                    "step": info.step,
                    "dataset": str(info.loader.get("fingerprint", "")),
                    "versions": " ".join(f"{name}={number}" for name, number in sorted(info.versions.items())),
                },
            }
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"{where}: is damaged: 'config' has no {error}") from None
    except ValidationError as error:
        raise UserError(f"{where}: {describe_validation_error(error)}; use the release that wrote it") from None


def _read_module(checkpoint: Path) -> dict[str, Tensor]:
    return dict(read_torch_file(weights_folder(checkpoint) / "mp_rank_00_model_states.pt")["module"])


def _read_partitions(checkpoint: Path, info: CheckpointInfo) -> dict[str, Tensor]:
    folder = weights_folder(checkpoint)
    states = read_torch_file(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", _DEEPSPEED_OBJECTS)
    shapes = {name: torch.Size(shape) for group in states["param_shapes"] for name, shape in group.items()}
    parts = []
    for rank in range(info.world_size):
        file = folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        optimizer: Mapping[str, Any] = read_torch_file(file, _DEEPSPEED_OBJECTS)["optimizer_state_dict"]
        groups = optimizer["fp32_flat_groups"]
        parts.append(groups[0] if len(groups) == 1 else torch.cat(groups))
    try:
        tensors = _join_partitions(parts, shapes)
    except ValueError as error:
        raise UserError(f"{checkpoint}: is incomplete: {error}") from None
    return tensors | {name: states["module"][name] for name in states["buffer_names"]}


def _join_partitions(parts: list[Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Returns the weights from the ranks' flat parts.

    ZeRO 3 cuts each flattened weight into one piece per rank, of equal lengths, with the last one padded; a rank's part is the
    concatenation of its pieces.

    Args:
        parts: each rank's part, fp32 [sum of pieces].
        shapes: shapes of the weights by name, in the order of the pieces.

    Raises:
        ValueError: the length of a part does not match the shapes.
    """
    num_ranks = len(parts)
    lengths = {name: -(-shape.numel() // num_ranks) for name, shape in shapes.items()}
    for part in parts:
        if part.numel() != sum(lengths.values()):
            raise ValueError(f"a rank has {part.numel()} values, expected {sum(lengths.values())}")
    tensors: dict[str, Tensor] = {}
    offset = 0
    for name, shape in shapes.items():
        pieces = [part[offset : offset + lengths[name]] for part in parts]
        tensors[name] = torch.cat(pieces)[: shape.numel()].view(shape)
        offset += lengths[name]
    return tensors
