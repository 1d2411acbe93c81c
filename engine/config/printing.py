"""Writes a configuration as YAML, each key with its one-line explanation as a comment."""

from collections.abc import Iterator

import yaml

from engine.options import Options

_COMMENT_COLUMN = 44


def to_yaml(config: Options) -> str:
    """Returns the configuration as a commented YAML file, which :func:`engine.config.load_config` reads back."""
    return "".join(f"{line}\n" for line in _lines(config, ""))


def _lines(options: Options, indent: str) -> Iterator[str]:
    values = options.model_dump(mode="json")
    fields = type(options).model_fields
    for name in sorted(fields, key=lambda name: name != "name"):  # what a section chooses comes first
        field = fields[name]
        value = getattr(options, name)
        if isinstance(value, Options):
            yield _with_comment(f"{indent}{name}:", field.description)
            yield from _lines(value, indent + "  ")
        else:
            text = yaml.safe_dump(values[name], default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
            yield _with_comment(f"{indent}{name}: {text}", field.description)


def _with_comment(line: str, description: str | None) -> str:
    """Appends the first sentence of a description."""
    if not description:
        return line
    sentence = " ".join(description.split()).partition(". ")[0].removesuffix(".")
    return f"{line:<{_COMMENT_COLUMN}} # {sentence}"
