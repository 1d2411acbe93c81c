"""Reads a run configuration from YAML files and ``key.path=value`` overrides.

``base: FILE`` (relative to the file that says so) starts from another file. Files and overrides are merged in the order
given: later values win, mappings are merged key by key, and an empty mapping ``{}`` clears what it is merged into. Choosing
another ``name`` in a section drops the options of the previous choice. Unknown keys are errors that name the file they come
from and the nearest known key.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from data_tools.remote.locations import hide_passwords
from data_tools.validation import explain_mistake, suggest
from engine.config.base import RunConfig
from engine.config.strict_yaml import parse_yaml
from engine.options import Options, UserError

_Config = TypeVar("_Config", bound=RunConfig)
# Far beyond any configuration: a foreign file is refused instead of read into memory.
_MAX_BYTES = 1_000_000
_PACKAGE = Path(__file__).parents[1]


def load_config(
    config_class: type[_Config],
    files: Sequence[Path],
    overrides: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> _Config:
    """Reads and merges configuration files and overrides, and validates the result.

    Args:
        config_class: the class to read, such as :class:`engine.config.PretrainConfig`.
        files: YAML files; later ones win over earlier ones. A file that does not exist is looked up in the
            installed package, which contains ``configs/``.
        overrides: ``key.path=value`` strings with values in YAML (``zero.stage=2``, ``leads=[I, II]``).
        notify: called with a line for each option that is dropped or has no effect.

    Raises:
        UserError: one line that names the file or override, the key, and a remedy.
    """
    merged = _Layer({}, {})
    for layer in [*(_read(_find(file), (), notify) for file in files), *map(_parse_override, overrides)]:
        merged = _merge(merged, layer, notify)
    try:
        config = config_class.model_validate(merged.values)
    except ValidationError as error:
        raise UserError(_describe(error, config_class, merged)) from None
    for key, reason in config.ignored_options().items():
        # Presets may set both; an override that does nothing was meant to do something.
        if key in merged.sources and merged.sources[key] in {f"'{override}'" for override in overrides}:
            notify(f"{merged.sources[key]} has no effect: {reason}")
    for notice in config.notices():
        notify(notice)
    return config


class _Layer(NamedTuple):
    values: dict[str, Any]
    sources: dict[str, str]  # dotted path of a leaf -> the file or override it comes from

    def source(self, path: str) -> str:
        """Returns where the value at a path comes from; for a missing path, the source of its nearest parent or sibling."""
        while path:
            found = [self.sources[leaf] for leaf in self.sources if leaf == path or leaf.startswith(path + ".")]
            if found:
                return found[-1]
            path = path.rpartition(".")[0]
        return next(reversed(self.sources.values()), "configuration")


def _find(file: Path) -> Path:
    packaged = _PACKAGE / file
    return packaged if packaged.is_file() and not file.exists() else file


def _read(file: Path, parents: tuple[Path, ...], notify: Callable[[str], None]) -> _Layer:
    if file.resolve() in parents:
        raise UserError(f"{file}: its 'base:' files form a cycle: remove one of them")
    if file.exists() and not (file.is_file() or file.is_dir()):  # a named pipe would block
        raise UserError(f"{file}: cannot be read: not a regular file")
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UserError(f"{file}: larger than {_MAX_BYTES:,} bytes: not a configuration file")
        text = content.decode()
    except OSError as error:
        hint = _suggest_file(file) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{file}: cannot be read: {error.strerror}{hint}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text: {error}") from None
    values = parse_yaml(text, str(file))
    if not isinstance(values, dict):
        raise UserError(f"{file}: expected a mapping of keys to values, got {type(values).__name__}")
    base = values.pop("base", None)
    layer = _Layer(values, {leaf: str(file) for leaf in _leaves(values)})
    if base is None:
        return layer
    return _merge(_read(file.parent / str(base), (*parents, file.resolve()), notify), layer, notify)


def _parse_override(override: str) -> _Layer:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"'{override}': expected an override key.path=value, such as train.steps=100")
    values = parse_yaml(text, f"'{override}'")
    for part in reversed(key.split(".")):
        values = {part: values}
    return _Layer(values, dict.fromkeys(_leaves(values), f"'{override}'"))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, path + ".")
        else:
            yield path


def _merge(under: _Layer, over: _Layer, notify: Callable[[str], None]) -> _Layer:
    sources = dict(under.sources)

    def merge(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        merged = dict(old)
        for key, value in new.items():
            before, path = merged.get(key), f"{prefix}{key}"
            if isinstance(before, dict) and isinstance(value, dict) and value and not _renames(before, value):
                merged[key] = merge(before, value, f"{path}.")
                continue
            merged[key] = value
            dropped = [leaf for leaf in sources if leaf == path or leaf.startswith(f"{path}.")]
            if isinstance(before, dict) and isinstance(value, dict) and value:
                others = ", ".join(f"{leaf} ({sources[leaf]})" for leaf in dropped if leaf != f"{path}.name")
                if others:
                    source = over.source(f"{path}.name")
                    notify(f"{source}: {path}.name={value['name']} drops options of {before.get('name')}: {others}")
            for leaf in dropped:
                del sources[leaf]
        return merged

    values = merge(under.values, over.values, "")
    return _Layer(values, sources | over.sources)


def _renames(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Returns whether a section chooses another entry of a table, whose options differ."""
    return "name" in new and new["name"] != old.get("name")


def _describe(error: ValidationError, config_class: type[Options], layer: _Layer) -> str:
    """Formats pydantic's report as one line: the first mistake, and the number of others."""
    mistakes = error.errors()
    first = min(mistakes, key=lambda mistake: mistake["type"] == "missing")  # a misspelled key is missing, too
    path = _key_path(first["loc"], layer.values)
    where = layer.source(path)
    if path and not where.startswith(f"'{path}="):  # an override names its key
        where += f": {path}"
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    if first["type"] == "value_error" and path not in layer.sources:
        where = layer.source(path)  # the mistake involves several keys, which the message names
    return hide_passwords(f"{where}: {_explain(first, path, config_class, layer.values)}{more}")


def _explain(mistake: ErrorDetails, path: str, config_class: type[Options], values: Mapping[str, Any]) -> str:
    kind = mistake["type"]
    if kind == "extra_forbidden":
        key = path.rpartition(".")[2]
        elsewhere = [place for place in _all_keys(config_class, values) if key in _short_forms(place.rpartition(".")[2])]
        if elsewhere:
            return f"no such key; did you mean '{elsewhere[0]}'?"
        known = [name for section in _candidates(config_class, mistake["loc"][:-1])[:1] for name in section.model_fields]
        return f"no such key{suggest(key, known, path.removesuffix(key))}"
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        known = [str(choice.model_fields["name"].default) for choice in _candidates(config_class, mistake["loc"])]
        if kind == "union_tag_not_found":
            return f"'name' is missing; known: {', '.join(known)}"
        return f"unknown name '{mistake['ctx']['tag']}'{suggest(str(mistake['ctx']['tag']), known)}"
    return explain_mistake(mistake)


def _short_forms(key: str) -> tuple[str, str]:
    """Returns a key and its initials, such as lr for learning_rate."""
    return key, "".join(word[0] for word in key.split("_") if word)


def _key_path(location: Sequence[int | str], values: Any) -> str:
    """Returns the dotted key of an error's location, in which pydantic inserts the names of choices."""
    parts = []
    for part in location:
        if isinstance(values, dict) and values.get("name") == part and part not in values:
            continue
        parts.append(str(part))
        values = values.get(part) if isinstance(values, dict) else None
    return ".".join(parts)


def _candidates(model: type[Options], location: Sequence[int | str]) -> list[type[Options]]:
    """Returns the options classes that a location in a tree of options may hold."""
    candidates = [model]
    for part in location:
        chosen = [kind for kind in candidates if getattr(kind.model_fields.get("name"), "default", None) == part]
        fields = [kind.model_fields[str(part)] for kind in candidates if part in kind.model_fields]
        if chosen:
            candidates = chosen
        elif not isinstance(part, int):
            candidates = [nested for field in fields for nested in _option_classes(field.annotation)]
    return candidates


def _all_keys(model: type[Options], values: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted paths of all keys of a configuration; for a choice, only those of the entry that ``values`` choose."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        chosen = values.get(name) if isinstance(values, dict) else None
        for nested in _option_classes(field.annotation):
            own_name = nested.model_fields.get("name")
            if own_name is None or (isinstance(chosen, dict) and chosen.get("name") == own_name.default):
                yield from _all_keys(nested, chosen, f"{prefix}{name}.")


def _option_classes(annotation: Any) -> Iterator[type[Options]]:
    if isinstance(annotation, type) and issubclass(annotation, Options):
        yield annotation
    for argument in get_args(annotation):
        yield from _option_classes(argument)


def _suggest_file(file: Path) -> str:
    """Suggests the file that was probably meant: in the same folder, or a preset."""
    known = {path.stem: path.relative_to(_PACKAGE) for path in (_PACKAGE / "configs").rglob("*.yaml")}
    known |= {path.stem: path for path in file.parent.glob("*.yaml")}
    near = difflib.get_close_matches(file.stem, known, n=1, cutoff=0.5)
    return f"; did you mean '{known[near[0]]}'?" if near else ""
