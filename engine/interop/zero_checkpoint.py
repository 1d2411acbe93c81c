"""From a checkpoint of a run, which DeepSpeed wrote, to a native folder.

ZeRO 0 to 2: one file holds all weights. ZeRO 3: every rank's file holds a part of each weight, see
:func:`_join_partitions`. The files are read as data only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from data_tools.leads import LEADS
from engine.data import find_leads
from engine.interop.native import empty_tensors, save_model
from engine.interop.torch_files import plain_tensors, read_torch_file
from engine.models import ModelConfig
from engine.models.pretrained import check_free, compare_shapes, describe_mistake
from engine.options import UserError
from engine.training.checkpoint import CheckpointInfo, read_checkpoint
from engine.training.deepspeed_backend import weights_folder


class _Ignored:
    """Takes the place of DeepSpeed's own objects in its files, so that none of its code is run."""

    def __init__(self, *_arguments: object) -> None:
        pass


_DEEPSPEED_OBJECTS = [
    (_Ignored, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Ignored, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    # Python 3.11.0 to 3.11.3 write a member of an enumeration as getattr(class, name). Nothing is looked up here either.
    (_Ignored, "builtins.getattr"),
]


def import_checkpoint(checkpoint: Path, folder: Path) -> list[str]:
    """Converts a checkpoint of a pre-training run, of any ZeRO stage and number of ranks, to a native folder.

    Args:
        checkpoint: the folder of a checkpoint, such as ``RUN/checkpoints/step-00001000``; each file is compared with the hash
            that was written beside it.
        folder: the native folder to make.

    Returns:
        Lines for the user: what was ignored and why.

    Raises:
        UserError: one line; nothing was written.
    """
    check_free(folder)
    info = read_checkpoint(checkpoint)
    config = _config(checkpoint, info)
    try:
        tensors = _partitioned(checkpoint, info) if info.zero_stage == 3 else _whole(checkpoint)
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{checkpoint}: its files are not those that DeepSpeed writes of a run ({error!r})") from None
    tensors = plain_tensors(f"{checkpoint}: module", tensors)
    expected = empty_tensors(str(checkpoint), config)
    compare_shapes(str(checkpoint), {n: t.shape for n, t in tensors.items()}, {n: t.shape for n, t in expected.items()})
    save_model(folder, config, tensors)
    return ["ignored: the optimizer's state and the place in the data, which only the run itself goes on from"]


def _config(checkpoint: Path, info: CheckpointInfo) -> ModelConfig:
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
        raise UserError(f"{where}: its configuration lacks {error}: it is damaged") from None
    except ValidationError as error:
        raise UserError(f"{where}: {describe_mistake(error)}: take the engine that wrote it") from None


def _whole(checkpoint: Path) -> dict[str, Tensor]:
    return dict(read_torch_file(weights_folder(checkpoint) / "mp_rank_00_model_states.pt")["module"])


def _partitioned(checkpoint: Path, info: CheckpointInfo) -> dict[str, Tensor]:
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
        raise UserError(f"{checkpoint}: is not whole: {error}") from None
    return tensors | {name: states["module"][name] for name in states["buffer_names"]}


def _join_partitions(parts: list[Tensor], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Weights from the ranks' flat parts.

    ZeRO 3 cuts each weight, flattened, into as many equal pieces as there are ranks, the last one padded; a rank's part is its
    pieces one after another.

    Args:
        parts: of each rank, fp32 [sum of pieces].
        shapes: of the weights by name, in the order of the pieces.

    Raises:
        ValueError: if the parts are of another length than the shapes call for.
    """
    num_ranks = len(parts)
    lengths = {name: -(-shape.numel() // num_ranks) for name, shape in shapes.items()}
    for part in parts:
        if part.numel() != sum(lengths.values()):
            raise ValueError(f"a rank holds {part.numel()} numbers instead of {sum(lengths.values())}")
    tensors: dict[str, Tensor] = {}
    offset = 0
    for name, shape in shapes.items():
        pieces = [part[offset : offset + lengths[name]] for part in parts]
        tensors[name] = torch.cat(pieces)[: shape.numel()].view(shape)
        offset += lengths[name]
    return tensors
