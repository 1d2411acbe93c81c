"""Checkpoints of a run to the native folder."""

import math
from pathlib import Path

from pydantic import ValidationError

from data_tools.leads import LEADS
from data_tools.validation import describe_validation_error
from engine.data import find_leads, join_training_sets
from engine.interop.deepspeed_files import read_old_info, read_old_weights
from engine.interop.native import empty_tensors
from engine.models import ModelConfig
from engine.models.model_folder import check_new_folder, save
from engine.models.model_weights import check_shapes
from engine.options import UserError
from engine.training.checkpoint import read_checkpoint, read_weights
from engine.training.checkpoint_info import FOLDER_NAME, OLD_VERSIONS, CheckpointInfo, read_description


def import_checkpoint(checkpoint: Path, folder: Path) -> list[str]:
    """Converts a checkpoint of a pre-training run, of any ZeRO stage and number of ranks, to a native folder.

    Args:
        checkpoint: folder of a checkpoint, such as ``RUN/checkpoints/step-00001000``, or of the run, whose checkpoint with the
            lowest validation loss is converted; the hash of each file is verified.
        folder: the native folder to write.

    Returns:
        Notes for the user.

    Raises:
        UserError: the checkpoint cannot be converted; nothing was written.
    """
    check_new_folder(folder)
    notes = []
    if (checkpoint / "checkpoints").is_dir():
        checkpoint, note = _best_checkpoint(checkpoint / "checkpoints")
        notes.append(note)
    if read_description(checkpoint).get("format_version") in OLD_VERSIONS:
        info = read_old_info(checkpoint)
        config = _read_config(checkpoint, info)
        tensors = read_old_weights(checkpoint, info)
    else:
        info = read_checkpoint(checkpoint)
        config = _read_config(checkpoint, info)
        tensors = read_weights(checkpoint, info)
    check_shapes(str(checkpoint), tensors, empty_tensors(str(checkpoint), config))
    save(folder, config, tensors)
    return notes


def _best_checkpoint(folder: Path) -> tuple[Path, str]:
    """Returns the checkpoint with the lowest validation loss, or the newest if none has one; and a note that says so."""
    saved = sorted(path for path in folder.iterdir() if FOLDER_NAME.fullmatch(path.name))
    if not saved:
        raise UserError(f"{folder}: contains no checkpoint; choose the folder of a run that has saved one")
    scores = {path: _read_score(path) for path in saved}
    if not any(map(math.isfinite, scores.values())):
        return saved[-1], f"converted {saved[-1].name}, the newest checkpoint; none has a validation loss"
    best = min(scores, key=lambda path: scores[path])
    return best, f"converted {best.name}, which has the lowest validation loss"


def _read_score(checkpoint: Path) -> float:
    """Returns the validation loss of a checkpoint; infinity if it has none, or one that is not a finite number."""
    score = read_description(checkpoint).get("score")
    return float(score) if isinstance(score, int | float) and math.isfinite(score) else math.inf


def _read_config(checkpoint: Path, info: CheckpointInfo) -> ModelConfig:
    where = f"{checkpoint}/checkpoint.json"
    initial = info.provenance.get("initial_model")
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
                    "run": checkpoint.resolve().parents[1].name,
                    "step": info.step,
                    "dataset": str(info.loader.get("fingerprint", "")),
                    "initial_model": str(initial) if initial is not None else None,
                    "pretraining_set": join_training_sets(info.loader.get("samples"), info.provenance.get("pretraining_set")),
                    "finetuning_set": join_training_sets(info.provenance.get("finetuning_set")),
                    "versions": " ".join(f"{name}={number}" for name, number in sorted(info.versions.items())),
                },
            }
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"{where}: is damaged: 'config' lacks {error}") from None
    except ValidationError as error:
        raise UserError(f"{where}: {describe_validation_error(error)}; use the release that wrote it") from None
