"""Exports the best checkpoint of a run as a model's folder."""

import shutil

from torch import Tensor

from engine.models.model_folder import MODEL_FOLDER
from engine.options import UserError
from engine.training.checkpoint import read_weights
from engine.training.trainer import Trainer


def export_model(trainer: Trainer) -> int:
    """Loads the best checkpoint, evaluates it, and writes it to ``OUTPUT_DIR/model``, replacing what is there.

    All ranks call this together after the last step; the trainer cannot train afterwards.

    Returns:
        The step of the best checkpoint.

    Raises:
        UserError: no checkpoint is intact.
    """
    best = trainer.checkpoints.best()
    if best is None:
        raise UserError(f"{trainer.config.output_dir}: contains no intact checkpoint to export")
    path, info = best
    trainer.checkpoints.load(path, info, trainer.backend)
    if trainer.data.valid is not None:
        trainer.evaluate()  # which sets the thresholds of a classifier
    trainer.ranks.on_main_rank(lambda: _write(trainer, read_weights(path, info)))
    return info.step


def _write(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    folder = trainer.config.output_dir / MODEL_FOLDER
    new = folder.with_name(f".{MODEL_FOLDER}.new")
    shutil.rmtree(new, ignore_errors=True)
    trainer.task.export(new, weights)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
