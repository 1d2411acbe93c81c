"""Shared by the tables of all benchmarks: the table class, the line about hardware and versions, and the cells of a spread."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from _common import format_cell

Result = Mapping[str, Any]


class Table(NamedTuple):
    """A table with a caption."""

    caption: str
    headers: list[str]
    rows: list[list[object]]

    def markdown(self) -> str:
        """Returns the table as GitHub Markdown; columns of numbers are right-aligned."""
        is_number = [
            bool(self.rows) and all(isinstance(row[column], int | float) for row in self.rows)
            for column in range(len(self.headers))
        ]
        lines = [self.headers, ["---:" if right else "---" for right in is_number]]
        lines += [[format_cell(value) for value in row] for row in self.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.caption}\n\n{text}" if self.caption else text


def describe_environment(result: Result, *, commit: bool = True) -> str:
    """Returns hardware, versions, date and, by default, commit of a result in one line."""
    machine = result["environment"]
    gpus = ", ".join(f"{machine['gpus'].count(name)} x {name}" for name in dict.fromkeys(machine["gpus"]))
    names = {"torch": "PyTorch", "deepspeed": "DeepSpeed", "nvidia-dali-cuda130": "DALI", "nvidia-dali-cuda120": "DALI"}
    versions = ", ".join(f"{names[name]} {version}" for name, version in machine["versions"].items() if name in names)
    hardware = f"{machine['cores']} cores of {machine['cpu']}{', ' + gpus if gpus else ', no GPU'}"
    described = f"{hardware}; Python {machine['python']}, {versions}; {machine['date']}"
    return f"{described}, commit {machine['commit']}" if commit else described


def spread(values: Mapping[str, float]) -> list[object]:
    """Returns median, minimum and maximum, as three cells."""
    return [values["median"], values["min"], values["max"]]
