"""Reads a run's configuration.

A configuration file is YAML. ``base: FILE`` (relative to the file that says so) starts from another file; several files and
``key.path=value`` words are laid over each other in the order given. An unknown key is an error that names the file it
came from and the nearest key that exists. ``leads`` is short for ``data.leads``.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from engine.config import ObjectiveChoice, RunConfig
from engine.data import find_leads
from engine.objectives import OBJECTIVES
from engine.options import Options, UserError


def load_config(files: Sequence[Path], overrides: Sequence[str] = ()) -> RunConfig:
    """Reads configuration files, lays them and the overrides over each other, and checks the result.

    Args:
        files: YAML files, later ones over earlier ones.
        overrides: ``key.path=value`` words, values in YAML (``zero.stage=2``, ``leads=[I, II]``).

    Raises:
        UserError: one line that names the file or word, the key, and what would be right.
    """
    words = [_parse_override(word) for word in overrides]
    _write_out_leads(reduce(_merge, words, _Layers({}, {})))  # refuses words that contradict each other
    return _validate(reduce(_merge, [*(_read(file, ()) for file in files), *map(_write_out_leads, words)], _Layers({}, {})))


class _Layers(NamedTuple):
    values: dict[str, Any]
    sources: dict[str, str]  # dotted path of a leaf -> the file or word it came from

    def source(self, path: str) -> str:
        """Where the value at a path came from; for a path that nobody wrote, the nearest parent's or sibling's source."""
        while path:
            hits = [self.sources[leaf] for leaf in self.sources if leaf == path or leaf.startswith(path + ".")]
            if hits:
                return hits[-1]
            path = path.rpartition(".")[0]
        return next(reversed(self.sources.values()), "configuration")


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is written twice, which YAML would resolve silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not a word", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is written twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _load_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 -- a SafeLoader, only stricter
    except (yaml.YAMLError, ValueError) as error:  # ValueError: what looks like a date and is none
        raise UserError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from None


def _read(file: Path, parents: tuple[Path, ...]) -> _Layers:
    if file.resolve() in parents:
        raise UserError(f"{file}: its chain of 'base:' files comes back to itself")
    try:
        text = file.read_text()
    except OSError as error:
        hint = _nearest_file(file) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{file}: cannot be read: {error.strerror}{hint}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not a text file in UTF-8: {error}") from None
    values = _load_yaml(text, str(file))
    if not isinstance(values, dict):
        raise UserError(f"{file}: must hold a mapping of keys to values, got {type(values).__name__}")
    base = values.pop("base", None)
    own = _write_out_leads(_Layers(values, {leaf: str(file) for leaf in _leaves(values)}))
    if base is None:
        return own
    return _merge(_read(file.parent / str(base), (*parents, file.resolve())), own)


def _parse_override(word: str) -> _Layers:
    key, equals, text = word.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"'{word}': an override is written key.path=value, such as train.steps=100")
    values = _load_yaml(text, f"'{word}'")
    for part in reversed(key.split(".")):
        values = {part: values}
    return _Layers(values, dict.fromkeys(_leaves(values), f"'{word}'"))


def _write_out_leads(layer: _Layers) -> _Layers:
    """Writes ``leads`` out as ``data.leads``, within one file or within the words of the command line."""
    data = layer.values.get("data", {})
    if "leads" not in layer.values or not isinstance(data, dict):
        return layer
    leads, source = layer.values["leads"], layer.source("leads")
    if data.get("leads", leads) != leads:
        raise UserError(
            f"{source}: leads={leads} is short for data.leads, which {layer.source('data.leads')} sets to {data['leads']}: "
            f"give one of them"
        )
    values = {key: value for key, value in layer.values.items() if key != "leads"}
    return _Layers(values | {"data": data | {"leads": leads}}, layer.sources | {"data.leads": source})


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, path + ".")
        else:
            yield path


def _merge(under: _Layers, over: _Layers) -> _Layers:
    return _Layers(_merge_values(under.values, over.values), under.sources | over.sources)


def _merge_values(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        # Another objective has other options: those of the one it replaces mean nothing to it.
        renamed = isinstance(old, dict) and isinstance(value, dict) and "name" in value and value["name"] != old.get("name")
        merged[key] = _merge_values(old, value) if isinstance(old, dict) and isinstance(value, dict) and not renamed else value
    return merged


def _validate(layers: _Layers) -> RunConfig:
    values = dict(layers.values)
    values["objective"] = _objective(layers)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise _config_error(error, RunConfig, layers, ()) from None
    num_leads = len(find_leads(config.data.leads))
    if "num_leads" not in config.model.model_fields_set:
        config = config.model_copy(update={"model": config.model.model_copy(update={"num_leads": num_leads})})
    if config.model.num_leads != num_leads:
        raise UserError(
            f"{layers.source('model.num_leads')}: model.num_leads={config.model.num_leads}, but data.leads gives {num_leads}: "
            f"leave model.num_leads out, it follows from the leads"
        )
    try:
        OBJECTIVES[config.objective.name].check_encoder(config.model)
    except UserError as error:
        raise UserError(f"{layers.source('data.leads')}: {error}") from None
    return config


def _objective(layers: _Layers) -> ObjectiveChoice:
    section = layers.values.get("objective")
    if not isinstance(section, dict) or "name" not in section:
        raise UserError(f"{layers.source('objective')}: objective.name is missing; known: {', '.join(OBJECTIVES)}")
    name = section["name"]
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise UserError(
            f"{layers.source('objective.name')}: objective.name: no objective is called '{name}'"
            f"{_nearest(str(name), OBJECTIVES)}"
        )
    options_class = OBJECTIVES[name].options_class
    try:
        options = options_class.model_validate({key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        raise _config_error(error, options_class, layers, ("objective",)) from None
    return ObjectiveChoice(name=name, options=options)


def _config_error(error: ValidationError, root: type[Options], layers: _Layers, prefix: tuple[str, ...]) -> UserError:
    """Turns pydantic's report into one line; of several mistakes it tells the first and counts the others."""
    mistakes = error.errors()
    first = mistakes[0]
    path = ".".join([*prefix, *(str(part) for part in first["loc"])])
    where = f"{layers.source(path)}: {path}"
    if first["type"] == "extra_forbidden":
        parent, key = first["loc"][:-1], str(first["loc"][-1])
        known = _fields(root, parent) + ["leads"] * (root is RunConfig and not parent)
        text = f"no such key{_nearest(key, known, '.'.join([*prefix, *map(str, parent)]))}"
    elif first["type"] == "missing":
        text = "is missing"
    elif first["type"] == "value_error":
        text = str(first["ctx"]["error"])
        if path not in layers.sources:  # of several keys together: which of their sources is to blame, nobody knows
            where = path or layers.source("train")
    else:
        text = f"{first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}"
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    return UserError(f"{where}: {text}{more}")


def _fields(model: type[Options], location: Sequence[int | str]) -> list[str]:
    """The keys that exist at a place in a tree of options."""
    for part in location:
        field = model.model_fields.get(str(part))
        candidates = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        nested = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Options)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)


def _nearest_file(file: Path) -> str:
    """Names the configuration file in the same folder that was probably meant."""
    known = {other.stem: other for other in file.parent.glob("*.yaml")}
    near = difflib.get_close_matches(file.stem, known, n=1, cutoff=0.5)
    return f"; did you mean '{known[near[0]]}'?" if near else ""


def _nearest(key: str, known: Sequence[str] | Mapping[str, object], parent: str = "") -> str:
    matches = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    if matches:
        return f"; did you mean '{parent + '.' if parent else ''}{matches[0]}'?"
    return f"; known here: {', '.join(known)}" if parent or len(known) < 20 else ""
