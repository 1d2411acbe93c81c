"""Finding the model that a command line names."""

from pathlib import Path

from engine.models import PretrainedModel, load
from engine.models.model_config import CONFIG_FILE
from engine.options import UserError

_RUN_FILE, _MODEL_FOLDER = "config.yaml", "model"


def load_model(path: Path) -> PretrainedModel:
    """Returns the model in a folder; for the folder of a fine-tuning run, the model in ``RUN/model``.

    Raises:
        UserError: the folder contains no model, or the run has not exported one.
    """
    if not (path / CONFIG_FILE).exists() and (path / _RUN_FILE).exists():
        if not (path / _MODEL_FOLDER).is_dir():
            raise UserError(
                f"{path}: the run has no model yet: finish fine-tuning, or export a checkpoint of pre-training with "
                "`engine/convert.py deepspeed`"
            )
        return load(path / _MODEL_FOLDER)
    return load(path)
