import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import FinetuneConfig, PretrainConfig, RunConfig, load_config
from engine.config.reference import Key, reference, sections
from engine.options import Options

CONFIGS = Path(__file__).parents[4] / "configs"
PRESETS = [
    *((PretrainConfig, file, "data.path=x") for file in sorted((CONFIGS / "pretrain").glob("*.yaml")) if file.stem != "base"),
    *(
        (FinetuneConfig, file, "init_from=random")
        for file in sorted((CONFIGS / "finetune").glob("*.yaml"))
        if file.stem != "base"
    ),
]


def keys(config_class: type[Options]) -> dict[str, Key]:
    return {key.path: key for section in sections(config_class) for key in section.keys}


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize(("config_class", "file", "override"), PRESETS, ids=lambda value: getattr(value, "stem", ""))
def test_every_key_of_a_preset_is_described(config_class: type[RunConfig], file: Path, override: str) -> None:
    described = keys(config_class)
    unknown = [key for key in leaves(load_config(config_class, [file], [override]).model_dump()) if key not in described]
    assert unknown == []


@pytest.mark.parametrize("config_class", [PretrainConfig, FinetuneConfig])
def test_every_key_has_type_default_and_meaning(config_class: type[Options]) -> None:
    described = keys(config_class)
    assert len(described) > 80
    assert [key.path for key in described.values() if not (key.type and key.default and key.meaning)] == []


def test_a_key_has_its_type_default_range_and_meaning() -> None:
    described = keys(PretrainConfig)
    assert described["train.steps"] == Key(
        "train.steps", "int \\| `null`", "`null`", "> 0", "Optimizer steps; takes precedence over epochs."
    )
    assert described["seed"].range == "≥ 0, < 2^63"
    assert described["objective.name"].default == "required"
    assert described["objective.cmsc.form"].type == "`ntxent` \\| `symmetric`"
    assert described["optimizer.groups[].first_step"].default == "`0`"
    assert described["output_dir"].type == "path"


def test_the_reference_is_markdown_with_five_columns() -> None:
    text = reference()
    assert "``" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert "| `train.steps` | int \\| `null` | `null` | > 0 |" in text
