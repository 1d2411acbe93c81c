"""Plans from the options of a command line, and these options from plans."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from data_tools.shards.manifest import PlanInfo
from data_tools.splits.cohort import PlanError
from data_tools.splits.plans import ColumnPlan, KFoldPlan, PaperPlan, PlanOptions, RandomPlan

_SPLITS = ("train", "valid", "test")
_RANGE = re.compile(r"(\d+)-(\d+)")
_MAX_VALUES = 10_000

# Kind of plan -> the options it takes.
_OPTIONS = {
    "paper": (),
    "random": ("name", "fractions", "hold_out"),
    "kfold": ("name", "folds"),
    "column": ("name", "table", "column", *_SPLITS, "hold_out"),
}


def parse_plan(kind: str, given: Mapping[str, Any]) -> PlanOptions:
    """Returns the plan that the options of ``ecg-data split`` describe.

    Args:
        kind: value of ``--plan``.
        given: the other given options by name: ``fractions``, ``hold_out``, …

    Raises:
        PlanError: the kind is unknown, does not take an option, or an option is invalid.
    """
    if kind not in _OPTIONS:
        raise PlanError(f"unknown plan '{kind}'; plans are {', '.join(_OPTIONS)}")
    for name in given:
        if name not in _OPTIONS[kind]:
            takes = ", ".join(map(_flag, _OPTIONS[kind])) or "no options but --patients and --seed"
            raise PlanError(f"{_flag(name)} does not apply to --plan {kind}, which takes {takes}")
    make: dict[str, Callable[[Mapping[str, Any]], PlanOptions]] = {
        "paper": lambda _: PaperPlan(),
        "random": _random,
        "kfold": lambda given: KFoldPlan(given.get("name", "kfold"), given.get("folds", 10)),
        "column": _column,
    }
    return make[kind](given)


def format_options(name: str, plan: PlanInfo) -> str:
    """Returns the options of ``ecg-data split`` that make a plan, as text."""
    given: dict[str, Any] = {"plan": plan.kind}
    if plan.kind not in {name, PaperPlan.kind}:
        given["name"] = name
    options = dict(plan.options)
    if "fractions" in options:
        given["fractions"] = [f"{fraction:g}" for fraction in options["fractions"]]
    given |= {key: options[key] for key in ("table", "column") if key in options} | options.get("values", {})
    if "num_folds" in options:
        given["folds"] = options["num_folds"]
    if plan.held_out and plan.kind != PaperPlan.kind:
        given["hold_out"] = plan.held_out
    if plan.patients is not None:
        given["patients"] = "FILE"
    if plan.kind != ColumnPlan.kind:
        given["seed"] = plan.seed
    texts = {key: ",".join(value) if isinstance(value, list | tuple) else str(value) for key, value in given.items()}
    return " ".join(f"{_flag(key)} {shlex.quote(text)}" for key, text in texts.items())


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _random(given: Mapping[str, Any]) -> PlanOptions:
    text = given.get("fractions", "0.8,0.1,0.1")
    try:
        fractions = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise PlanError(f"--fractions must be numbers separated by commas, such as 0.8,0.1,0.1, got '{text}'") from None
    return RandomPlan(given.get("name", "random"), fractions, _hold_out(given, _SPLITS[: len(fractions)]))


def _column(given: Mapping[str, Any]) -> PlanOptions:
    for name in ("table", "column", "train"):
        if name not in given:
            raise PlanError(f"--plan column needs {_flag(name)}")
    values = {split: _values(split, given[split]) for split in _SPLITS if split in given}
    name = given.get("name", given["column"].lower())
    return ColumnPlan(name, Path(given["table"]), given["column"], values, _hold_out(given, tuple(values)))


def _values(split: str, text: str) -> tuple[str, ...]:
    """Returns the values in "1-3,9": 1, 2, 3 and 9.

    Raises:
        PlanError: a range is reversed or too long.
    """
    values: list[str] = []
    for part in map(str.strip, text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            values.append(part)
            continue
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise PlanError(f"--{split}: the range {part} is reversed; write {high}-{low}")
        if high - low >= _MAX_VALUES:
            raise PlanError(f"--{split}: the range {part} has more than {_MAX_VALUES} values; choose a column with fewer")
        values += map(str, range(low, high + 1))
    return tuple(values)


def _hold_out(given: Mapping[str, Any], splits: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(given["hold_out"].split(",")) if "hold_out" in given else ()
    for name in names:
        if name not in splits[1:]:
            raise PlanError(f"--hold-out: '{name}' cannot be held out from pre-training; choose among {', '.join(splits[1:])}")
    return names
