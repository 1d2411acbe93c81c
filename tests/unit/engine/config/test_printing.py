from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml

from engine.config import PretrainConfig, load_config, to_yaml
from engine.options import Options

PRESETS = Path(__file__).parents[4] / "configs" / "pretrain"


def test_each_key_is_printed_with_its_explanation() -> None:
    text = to_yaml(load_config(PretrainConfig, [PRESETS / "w2v_cmsc_rlm.yaml"]))
    lines = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert lines["learning_rate"].endswith("# Peak learning rate")
    assert all(" # " in line for line in text.splitlines()), text


@pytest.mark.parametrize("preset", ["w2v_cmsc_rlm", "3kg", "w2v_cmsc_rlm_physio4"])
def test_a_choice_begins_with_its_name(preset: str) -> None:
    config = load_config(PretrainConfig, [PRESETS / f"{preset}.yaml"])
    text = to_yaml(config)
    assert yaml.safe_load(text) == config.model_dump(mode="json")
    after_objective = text.partition("\nobjective:")[2].splitlines()[1]
    assert after_objective.strip().startswith(f"name: {config.objective.name}") or config.objective.name == "3kg"


def option_classes(options: type[Options]) -> Iterator[type[Options]]:
    yield options
    for field in options.model_fields.values():
        annotations = [field.annotation]
        while annotations:
            annotation = annotations.pop()
            if isinstance(annotation, type) and issubclass(annotation, Options):
                yield from option_classes(annotation)
            annotations += get_args(annotation)


def test_every_key_has_an_explanation() -> None:
    missing = {
        f"{options.__name__}.{name}"
        for options in option_classes(PretrainConfig)
        for name, field in options.model_fields.items()
        if not field.description and name != "name"
    }
    assert not missing
