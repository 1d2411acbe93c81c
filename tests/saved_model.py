"""Tiny models, saved as model folders."""

from pathlib import Path
from typing import Any

import torch
from tiny_model import tiny_encoder_options, tiny_model
from torch import Tensor

from data_tools.labels import LabelDefinition
from data_tools.leads import LEADS
from engine.interop.native import objective_section
from engine.models import ClassificationHead, Encoder, ModelConfig, save


def save_tiny_encoder(folder: Path, **config: Any) -> Path:
    """Saves a tiny encoder with weights from a fixed seed; ``config`` are keys of its ModelConfig, such as leads."""
    options = tiny_encoder_options(dropout=0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = Encoder(options, len(config.get("leads", LEADS)))
    content = {"kind": "encoder", "encoder": options.model_dump()} | config
    tensors = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    save(folder, ModelConfig.model_validate(content), tensors)
    return folder


def save_tiny_classifier(folder: Path, definition: LabelDefinition | None = None, **config: Any) -> Path:
    """Saves a tiny classifier with random weights; without a definition it has the labels x and y, like a converted model."""
    names = definition.classes if definition else ("x", "y")
    options = tiny_encoder_options()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.pop("seed", 0))
        modules = {
            "encoder": Encoder(options, len(config.get("leads", LEADS))),
            "head": ClassificationHead(options.width, len(names)),
        }
    content = {"kind": "classifier", "encoder": options.model_dump(), "labels": names, "label_definition": definition} | config
    tensors = {f"{prefix}.{name}": value for prefix, module in modules.items() for name, value in module.state_dict().items()}
    save(folder, ModelConfig.model_validate(content), tensors)
    return folder


LABELS = ("AF", "LBBB", "NSR")


def random_tensors(kind: str) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A tiny model of a kind, with weights that differ from those of a new module."""
    model = tiny_model("w2v_cmsc")
    tensors = model.state_dict()
    objective = None
    if kind == "pretraining":
        options = {"w2v": {"final_width": 16, "code_width": 16, "num_codes": 10, "num_negatives": 20}}
        objective = objective_section("w2v_cmsc", options)
    else:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}
    if kind == "classifier":
        head = ClassificationHead(model.encoder.options.width, len(LABELS))
        tensors |= {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    config = ModelConfig.model_validate(
        {
            "kind": kind,
            "encoder": model.encoder.options,
            "objective": objective,
            "labels": LABELS if kind == "classifier" else None,
            "provenance": {"source": "a test"},
        }
    )
    return config, tensors
