"""Resolves the ``init_from`` of a run to the folder of a model."""

import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from engine.config import RANDOM, RunConfig
from engine.interop.fairseq import import_fairseq
from engine.interop.zero_checkpoint import import_checkpoint
from engine.models.hub import WEIGHTS_FILE
from engine.models.model_config import CONFIG_FILE, read_config
from engine.models.model_folder import INITIAL_MODEL_FOLDER, MODEL_FOLDER
from engine.options import UserError
from engine.training.checkpoint_info import FOLDER_NAME, CheckpointInfo, read_info
from engine.training.distributed import Ranks

_Config = TypeVar("_Config", bound=RunConfig)


def find_initial_model(config: _Config, ranks: Ranks, program: str) -> _Config:
    """Returns the configuration with ``init_from`` replaced by the folder of a model, which is made if need be.

    Args:
        config: the run's configuration.
        ranks: all ranks call this together.
        program: name of the script, for its messages.

    Raises:
        UserError: see :func:`resolve_initial_model`; or the model is missing on a machine, or another one. The same on every
            rank.
    """
    if config.init_from == RANDOM:
        return config
    source = Path(config.init_from)
    folder, notes = ranks.on_main_rank(lambda: resolve_initial_model(source, config.output_dir))
    if ranks.is_main:
        sys.stderr.writelines(f"{program}: {note}\n" for note in notes)
    models = ranks.gather(ranks.on_each_machine(lambda: _identify(folder)))
    if len(set(models)) > 1:
        raise UserError(f"init_from: {folder} differs between the machines: copy the same model to all of them")
    return config.model_copy(update={"init_from": str(folder)})


def _identify(folder: Path) -> tuple[str, int]:
    """Returns the configuration of a model and the size of its weights."""
    return read_config(folder).model_dump_json(), (folder / WEIGHTS_FILE).stat().st_size


def resolve_initial_model(source: Path, output_dir: Path) -> tuple[Path, list[str]]:
    """Returns the folder of the model that ``init_from`` names, and notes for the user.

    The folder of a model is returned as it is. A checkpoint of a pre-training run, or of the official implementation, is
    converted to ``output_dir/init_model``; a run that already has checkpoints keeps the model that was converted at its start.

    Args:
        source: a model's folder; a run's folder: its exported model, else its checkpoint with the lowest validation loss, else
            its newest; a checkpoint's folder; or a ``.pt`` file of the official implementation.
        output_dir: the run's folder.

    Raises:
        UserError: none of these, the run's own folder, or it cannot be converted.
    """
    if os.path.realpath(source) == os.path.realpath(output_dir):
        raise UserError(f"init_from: {source} is the output_dir of this run: set another output_dir")
    if (source / CONFIG_FILE).is_file():
        return source, []
    if (source / MODEL_FOLDER / CONFIG_FILE).is_file():
        return source / MODEL_FOLDER, [f"init_from: using {source / MODEL_FOLDER}"]
    convert, path = _find_checkpoint(source)
    folder = output_dir / INITIAL_MODEL_FOLDER
    if folder.is_dir() and any((output_dir / "checkpoints").glob("step-*")):
        return folder, [f"init_from: using {folder}, which was converted when the run started"]
    shutil.rmtree(folder, ignore_errors=True)
    notes = convert(path, folder)
    return folder, [*notes, f"init_from: converted {path} to {folder}"]


def _find_checkpoint(source: Path) -> tuple[Callable[[Path, Path], list[str]], Path]:
    """Returns the function that converts a checkpoint, and its path."""
    if source.is_file():
        return import_fairseq, source
    if (source / "checkpoint.json").is_file():
        return import_checkpoint, source
    saved = sorted(path for path in (source / "checkpoints").glob("*") if FOLDER_NAME.fullmatch(path.name))
    if not saved:
        raise UserError(
            f"init_from: {source} is not the folder of a model, run or checkpoint, nor a .pt file of the official "
            f"implementation; use one of these, or random"
        )
    return import_checkpoint, min(saved, key=lambda path: _sort_key(read_info(path)))


def _sort_key(info: CheckpointInfo) -> tuple[float, int]:
    """Sorts the lowest loss first; checkpoints without a loss come last, the newest of them first."""
    loss = math.inf if info.score is None or not math.isfinite(info.score) else info.score
    return loss, -info.step
