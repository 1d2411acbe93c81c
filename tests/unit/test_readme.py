"""Facts in the README and the documentation: settings, presets, measurements."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from engine.config import PretrainConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
# benchmarks/report.py writes this part from benchmarks/results, and a test of it compares both.
RESULTS = re.compile(r"<!-- results -->.*<!-- end of results -->", re.DOTALL)
MEASUREMENT = re.compile(
    r"\d[\d.,]* ?(crops/s|recordings/s|crops a second|GB|MB|TFLOP|ms|minutes|hours|%|times as|x as)(?![a-z])"
)
SECTIONS = "|".join(PretrainConfig.model_fields)
# In backticks, or as key.path=value in a command.
SETTING = re.compile(rf"`((?:{SECTIONS})(?:\.[a-z_]+)+)(?:[=:][^`]*)?`|\s((?:{SECTIONS})(?:\.[a-z_]+)+)=")
FILE_SUFFIXES = (".py", ".safetensors", ".yaml")


def setting_exists(path: str) -> bool:
    """Returns whether a configuration has a key; in a choice by name, whether any of the choices has it."""
    types: list[object] = [PretrainConfig]
    for key in path.split("."):
        fields = [model.model_fields.get(key) for model in types if isinstance(model, type) and issubclass(model, BaseModel)]
        types = [part for field in fields if field is not None for part in flatten(field.annotation)]
    return bool(types)


def settings_in(text: str) -> set[str]:
    """Returns the settings that a text mentions, except in a first column "old"."""
    before, header, after = text.partition("| old | new |")
    text = before + header + re.sub(r"^\|[^|]*\|", "|", after, flags=re.MULTILINE)
    return {path for found in SETTING.findall(text) for path in found if path and not path.endswith(FILE_SUFFIXES)}


def flatten(annotation: object) -> list[object]:
    """Returns the types in unions and Annotated."""
    parts = get_args(annotation)
    return [annotation, *(inner for part in parts for inner in flatten(part))]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/GPU_PLAN.md", *GUIDES])
def test_every_setting_that_a_page_mentions_exists(page: str) -> None:
    unknown = {path for path in settings_in((ROOT / page).read_text()) if not setting_exists(path)}
    assert unknown == set()


def test_setting_exists_recognizes_unknown_keys() -> None:
    assert setting_exists("compute.compile")
    assert setting_exists("objective.cmsc.form")
    assert not setting_exists("train.compile")
    assert not setting_exists("objective.cmsc.no_such_option")


def test_settings_are_found_in_text_and_commands() -> None:
    text = "`train.steps=2`, `model.safetensors`\n\n    x.py zero.stage=2\n\n| old | new |\n| `train.leads` | `leads` |"
    assert settings_in(text) == {"train.steps", "zero.stage"}
    assert len(settings_in((ROOT / "docs" / "pretraining.md").read_text())) > 15


def test_the_presets_table_lists_every_preset() -> None:
    papers = re.findall(r"^\| `(\w+)\.yaml` \|", README, re.MULTILINE)
    # The text above the table says so; the normalization is that of the official code in all other presets.
    listed = [*papers, *(f"official_{preset}" for preset in papers if not preset.endswith("_layer_norm"))]
    assert sorted(listed) == sorted(file.stem for file in (ROOT / "configs/pretrain").glob("*.yaml") if file.stem != "base")


@pytest.mark.parametrize("page", ["README.md", "docs/choosing.md"])
def test_measurements_come_from_recorded_results(page: str) -> None:
    text, num_blocks = RESULTS.subn("", (ROOT / page).read_text())
    assert num_blocks == 1
    assert MEASUREMENT.search("trains at 3,000 crops/s")
    unsourced = [line for line in text.splitlines() if MEASUREMENT.search(line)]
    assert unsourced == []
