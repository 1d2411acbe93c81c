"""Configurations of a tiny model, for tests of fine-tuning."""

from typing import Any

from engine.config import FinetuneConfig

SIZES = {"width": 16, "depth": 1, "num_heads": 2, "mlp_width": 16, "feature_channels": 8, "pos_kernel": 4, "pos_groups": 2}


def finetune_config(**changes: Any) -> FinetuneConfig:
    """Returns the configuration of one step from random weights; ``changes`` replace whole sections, and name the task."""
    content = {
        "output_dir": "runs/none",
        "data": {"path": "datasets/none"},
        "init_from": "random",
        "model": SIZES,
        "train": {"steps": 1},
    }
    return FinetuneConfig.model_validate(content | changes)
