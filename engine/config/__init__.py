"""Run configurations: typed, strict, read from YAML.

base.py       options of all runs
pretrain.py   pre-training
finetune.py   fine-tuning
schedules.py  learning-rate schedules
loading.py    reads files and overrides
printing.py   writes a configuration as commented YAML
"""

from engine.config.base import RANDOM, OptimizerOptions, ParameterGroup, RunConfig
from engine.config.finetune import FinetuneConfig
from engine.config.loading import load_config
from engine.config.pretrain import PretrainConfig
from engine.config.printing import to_yaml
from engine.config.schedules import SCHEDULES

__all__ = [
    "RANDOM",
    "SCHEDULES",
    "FinetuneConfig",
    "OptimizerOptions",
    "ParameterGroup",
    "PretrainConfig",
    "RunConfig",
    "load_config",
    "to_yaml",
]
