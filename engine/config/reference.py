"""Describes every configuration key in Markdown, for docs/configuration.md.

python -m engine.config.reference
"""

import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.config.base import RunConfig
from engine.config.finetune import FinetuneConfig
from engine.config.pretrain import PretrainConfig
from engine.options import Options

_HEADERS = ("key", "type", "default", "range", "meaning")
_BOUNDS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Ge: ("≥", lambda bound: bound.ge),
    Gt: (">", lambda bound: bound.gt),
    Le: ("≤", lambda bound: bound.le),
    Lt: ("<", lambda bound: bound.lt),
}


class Key(NamedTuple):
    """The documentation of a key."""

    path: str
    type: str
    default: str
    range: str
    meaning: str


class Section(NamedTuple):
    """Keys with a common prefix, such as ``train``, or of one choice, such as ``objective.name: cmsc``."""

    title: str
    description: str
    keys: list[Key]


def sections(config_class: type[Options], exclude: frozenset[str] = frozenset()) -> Iterator[Section]:
    """Yields the sections of a configuration; the first one has the keys at the top level.

    Args:
        config_class: the configuration.
        exclude: names of keys at the top level to leave out.
    """
    yield from _sections(config_class, "", "", "", exclude)


def reference() -> str:
    """Returns the reference of all keys in Markdown: of every run, of pre-training and of fine-tuning."""
    common = frozenset(RunConfig.model_fields)
    parts = [
        ("Every run", sections(RunConfig)),
        ("Pre-training", sections(PretrainConfig, common)),
        ("Fine-tuning", sections(FinetuneConfig, common)),
    ]
    lines: list[str] = []
    for title, part in parts:
        lines += [f"## {title}", ""]
        for section in part:
            lines += _markdown(section)
    return "\n".join(lines)


def _sections(kind: type[BaseModel], title: str, prefix: str, description: str, exclude: frozenset[str]) -> Iterator[Section]:
    rows: list[Key] = []
    nested: list[Iterator[Section]] = []
    for name, field in kind.model_fields.items():
        if name in exclude:
            continue
        path = f"{prefix}{name}"
        meaning = " ".join((field.description or "").split())
        classes = _option_classes(field.annotation)
        names = [option.model_fields["name"].default for option in classes if "name" in option.model_fields]
        is_section = bool(classes) and type(None) not in get_args(field.annotation) and not _is_sequence(field.annotation)
        if not is_section:
            rows.append(_describe(path, field, meaning))
        elif names:
            default = field.default.get("name") if isinstance(field.default, dict) else None
            choices = " \\| ".join(f"`{name}`" for name in names)
            rows.append(Key(f"{path}.name", choices, f"`{default}`" if default else "required", "", meaning))
        if names:
            for choice, option in zip(names, classes, strict=True):
                about = (option.__doc__ or "").partition("\n")[0]
                nested.append(_sections(option, f"{path}.name: {choice}", f"{path}.", about, frozenset({"name"})))
        elif classes:
            suffix = "[]" if _is_sequence(field.annotation) else ""
            nested.extend(_sections(option, f"{path}{suffix}", f"{path}{suffix}.", meaning, frozenset()) for option in classes)
    if rows or title:
        yield Section(title, description, rows)
    for inner in nested:
        yield from inner


def _describe(path: str, field: FieldInfo, meaning: str) -> Key:
    return Key(path, _type(field.annotation), _default(field), _range(field), meaning)


def _option_classes(annotation: Any) -> list[type[Options]]:
    if isinstance(annotation, type) and issubclass(annotation, Options):
        return [annotation]
    return [option for argument in get_args(annotation) for option in _option_classes(argument)]


def _is_sequence(annotation: Any) -> bool:
    return get_origin(annotation) in {tuple, list}


def _type(annotation: Any) -> str:
    """Returns the type in words, with literal values in backticks."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in {Union, types.UnionType}:
        return " \\| ".join(_type(argument) for argument in arguments)
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)} {_type(arguments[0])}"
    if annotation is type(None):
        return "`null`"
    if isinstance(annotation, type) and issubclass(annotation, Options):
        return "mapping"
    return "path" if annotation is Path else str(annotation.__name__)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, float):
        return f"`{value:g}`"
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True).removesuffix("\n...\n").strip()
    return f"`{text}`"


def _range(field: FieldInfo) -> str:
    bounds = [bound for bound in field.metadata if type(bound) in _BOUNDS]
    return ", ".join(f"{_BOUNDS[type(bound)][0]} {_number(_BOUNDS[type(bound)][1](bound))}" for bound in bounds)


def _number(value: float) -> str:
    if value == math.pi:
        return "π"
    exponent = math.log2(value) if value > 0 else 0.0
    return f"2^{exponent:g}" if exponent.is_integer() and exponent > 32 else f"{value:g}"


def _markdown(section: Section) -> list[str]:
    lines = [f"### `{section.title}`", ""] if section.title else []
    if section.description:
        lines += [_prose(section.description), ""]
    if section.keys:
        lines += [f"| {' | '.join(_HEADERS)} |", f"|{' --- |' * len(_HEADERS)}"]
    for key in section.keys:
        cells = (f"`{key.path}`", key.type, key.default, key.range, _prose(key.meaning).replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _prose(text: str) -> str:
    """Returns a docstring's text in Markdown: names in single backticks, addresses as links."""
    text = re.sub(r":\w+:`([^`]*)`|``([^`]*)``", lambda found: f"`{found[1] or found[2]}`", text)
    return re.sub(r"https?://[^\s);]*[^\s);.,]", lambda found: f"<{found[0]}>", text)


if __name__ == "__main__":
    sys.stdout.write(reference())
