"""Reads and writes the folder of a model: weights, configuration and model card.

DIR/model.safetensors   tensors by module name: encoder.*, objective.* (pre-training heads), head.* (classifier)
DIR/config.json         a ModelConfig: architecture, leads in order, sampling rate, unit, normalization, labels, provenance
DIR/README.md           a short model card
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_tools.files import sync, write_text
from engine.models.hub import WEIGHTS_FILE
from engine.models.model_card import CARD_FILE, model_card
from engine.models.model_config import CONFIG_FILE, ModelConfig, read_config
from engine.models.model_weights import check_tensors
from engine.options import UserError

MODEL_FOLDER = "model"  # in the folder of a run: the model that it exported
INITIAL_MODEL_FOLDER = "init_model"  # the model that the run started from, if it was converted
RUN_CONFIG_FILE = "config.yaml"


def find_folder(path: Path) -> Path:
    """Returns the folder of a model: the path itself, or for the folder of a fine-tuning run the model that the run exported.

    Raises:
        UserError: the run has not exported a model.
    """
    if not (path / CONFIG_FILE).exists():
        if (path / MODEL_FOLDER / CONFIG_FILE).exists():
            return path / MODEL_FOLDER
        if (path / RUN_CONFIG_FILE).exists():
            raise UserError(
                f"{path}: the run has no model yet: finish fine-tuning, or export a checkpoint of pre-training with "
                f"`engine/convert.py deepspeed {path} OUT_DIR`"
            )
    return path


def read_folder(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Reads a model's folder; returns its configuration and its tensors by name, as saved.

    Raises:
        UserError: the folder does not contain a model, a file is damaged, or the tensors do not match the configuration.
    """
    config = read_config(folder)
    file = folder / WEIGHTS_FILE
    try:
        tensors = load_file(file)
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error}); choose the folder of a model") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{file}: not a valid safetensors file ({error}); get another copy of the model") from None
    check_tensors(str(file), config, tensors)
    return config, tensors


def save(folder: Path | str, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Writes a model's folder atomically.

    Args:
        folder: a new or empty folder.
        config: the contents of ``config.json``.
        tensors: tensors by name, with the prefixes ``encoder.``, ``objective.`` and ``head.``; written in fp32.

    Raises:
        UserError: the folder is not empty or cannot be written, or the tensors do not match the configuration.
    """
    folder = Path(folder)
    check_tensors(str(folder), config, tensors)
    check_new_folder(folder)
    target = folder.absolute()  # gives "." a name
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.mkdir(parents=True)
            weights = {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()}
            save_file(weights, temporary / WEIGHTS_FILE, metadata={"format": "pt"})
            sync(temporary / WEIGHTS_FILE)
            write_text(temporary / CONFIG_FILE, json.dumps(config.model_dump(mode="json"), indent=1) + "\n")
            shutil.copymode(temporary / CONFIG_FILE, temporary / WEIGHTS_FILE)  # safetensors lets only the owner read it
            write_text(temporary / CARD_FILE, model_card(config))
            sync(temporary)
            temporary.rename(target)
            sync(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def check_new_folder(folder: Path) -> None:
    """Checks that a folder does not exist or is empty.

    Raises:
        UserError: it exists and is not empty.
    """
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder}: already exists: choose a new folder")
