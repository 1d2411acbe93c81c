"""The options of a build: what decides the bytes of a dataset."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from data_tools.sources import make_source

# 6 GB. What is known of the crops of a shard is in memory while it is written or verified.
_MAX_CROPS_PER_SHARD = 50_000


class BuildError(ValueError):
    """A build cannot be done; the message is one line that says why, and what to do."""


@dataclass(frozen=True)
class BuildOptions:
    """What decides the content of a dataset; equal options and input give equal bytes.

    Attributes:
        source: a name in :data:`data_tools.sources.SOURCES`.
        inputs: folders.
        limit: use the first so many recordings only.
        seed: of split and shuffle.
        crops_per_shard: the last shard of a split may have fewer.
        valid_fraction: of the patients.
    """

    source: str
    inputs: tuple[Path, ...]
    limit: int | None = None
    seed: int = 0
    crops_per_shard: int = 2000
    valid_fraction: float = 0.05

    def __post_init__(self) -> None:
        make_source(self.source)
        if self.limit is not None and self.limit < 1:
            raise BuildError(f"the limit must be at least 1 recording, got {self.limit}")
        if not 1 <= self.crops_per_shard <= _MAX_CROPS_PER_SHARD:
            raise BuildError(
                f"a shard must hold at least 1 crop and at most {_MAX_CROPS_PER_SHARD}, got {self.crops_per_shard}"
            )
        if not 0 <= self.valid_fraction < 1:
            raise BuildError(f"the validation fraction must be at least 0 and below 1, got {self.valid_fraction}")

    def as_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "inputs": [str(path) for path in self.inputs],
            "limit": self.limit,
            "seed": self.seed,
            "crops_per_shard": self.crops_per_shard,
            "valid_fraction": self.valid_fraction,
            "format": "tar",
        }


def identity(options: BuildOptions) -> dict[str, Any]:
    """What the bytes of a dataset depend on, beside its input; the fields of ``BuildInfo``."""
    return {"tool_version": version("ecg-engine"), "source": options.source, "options": options.as_json()}


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """The first difference between two builds, in words."""
    flat_found, flat_wanted = ({**build, **build.get("options", {})} for build in (found, wanted))
    for name, value in flat_wanted.items():
        if name != "options" and flat_found.get(name) != value:
            return f"{name.replace('_', ' ')} {flat_found.get(name)} instead of {value}"
    return None
