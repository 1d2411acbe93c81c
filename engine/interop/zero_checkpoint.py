"""Checkpoints of a run to the native folder."""

from pathlib import Path

from pydantic import ValidationError

from data_tools.leads import LEADS
from data_tools.validation import describe_validation_error
from engine.data import find_leads
from engine.interop.deepspeed_files import read_old_info, read_old_weights
from engine.interop.native import empty_tensors
from engine.models import ModelConfig
from engine.models.model_weights import check_shapes
from engine.models.pretrained import check_new_folder, save
from engine.options import UserError
from engine.training.checkpoint import read_checkpoint, read_weights
from engine.training.checkpoint_info import OLD_VERSIONS, CheckpointInfo, read_description


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
                    "pretraining_set": info.loader.get("samples"),
                    "versions": " ".join(f"{name}={number}" for name, number in sorted(info.versions.items())),
                },
            }
        )
    except (KeyError, TypeError) as error:
        raise UserError(f"{where}: is damaged: 'config' has no {error}") from None
    except ValidationError as error:
        raise UserError(f"{where}: {describe_validation_error(error)}; use the release that wrote it") from None
