"""A backend without DeepSpeed, and descriptions, to write checkpoints in tests."""

from collections.abc import Callable
from typing import cast

import torch

from engine.training.checkpoint import Checkpoints
from engine.training.checkpoint_files import MOMENTS, ParameterSlice
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo
from engine.training.deepspeed_backend import DeepSpeedBackend

WEIGHTS, OPTIMIZER = "weights-00000.safetensors", "optimizer-00000.safetensors"


class SliceBackend:
    """Stands in for the DeepSpeed backend: holds one parameter and its optimizer state."""

    def __init__(self) -> None:
        self.slice = ParameterSlice("weight", 0, torch.arange(6.0), {key: torch.full((6,), 0.5) for key in MOMENTS})
        self.updates = 9

    def owned_slices(self) -> list[ParameterSlice]:
        return [self.slice]

    def num_updates(self) -> int:
        return self.updates

    def load(self, read: Callable[[list[ParameterSlice]], None], num_updates: int) -> None:
        read([self.slice])
        self.updates = num_updates


def backend() -> DeepSpeedBackend:
    return cast("DeepSpeedBackend", SliceBackend())


def info(step: int, score: float | None = None) -> CheckpointInfo:
    return CheckpointInfo(
        format_version=FORMAT_VERSION,
        step=step,
        loader={"cursor": step * 16},
        config={"seed": 1, "optimizer": {"groups": []}},
        world_size=1,
        zero_stage=1,
        shapes={"weight": [2, 3]},
        score=score,
    )


def steps(checkpoints: Checkpoints) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.iterdir())
