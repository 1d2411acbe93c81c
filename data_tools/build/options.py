"""The options of a build: what determines the bytes of a dataset."""

from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from data_tools.duplicates.hashes import KnownDataset
from data_tools.quality.limits import QualityLimits
from data_tools.shards.manifest import Encoding
from data_tools.shards.stores import STORES
from data_tools.sources import Acceptable, check_source

# 6 GB. The metadata of all crops of a shard are in memory while it is written or verified.
_MAX_CROPS_PER_SHARD = 50_000


class BuildError(ValueError):
    """A build is impossible; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class InputOptions:
    """Which recordings are read.

    Attributes:
        source: a name in :data:`data_tools.sources.SOURCES`.
        inputs: folders with recordings.
        limit: maximum number of recordings; None for all.
        accept: suspicious inputs to use all the same; see :data:`data_tools.sources.protocol.Acceptable`.

    Raises:
        ValueError: an unknown source, or a limit below 1.
    """

    source: str
    inputs: tuple[Path, ...]
    limit: int | None = None
    accept: frozenset[Acceptable] = frozenset()

    def __post_init__(self) -> None:
        check_source(self.source)
        if self.limit is not None and self.limit < 1:
            raise BuildError(f"the limit must be at least 1 recording, got {self.limit}")

    def resolve(self) -> Self:
        """Returns the same options with absolute inputs."""
        return replace(self, inputs=tuple(path.expanduser().resolve() for path in self.inputs))


@dataclass(frozen=True)
class BuildOptions(InputOptions):
    """The options that determine a dataset: equal options and input give equal bytes.

    Attributes:
        seed: seed of split and shuffle.
        crops_per_shard: number of crops per shard; the last shard of a split may have fewer.
        valid_fraction: fraction of the patients for validation.
        format: format of the shards.
        compression: name of the shards' compression; None for the format's default (tar has none).
        quality: quality limits of crops; None to measure nothing.
        skip_duplicates_of: datasets whose signals are left out.
    """

    seed: int = 0
    crops_per_shard: int = 2000
    valid_fraction: float = 0.05
    format: Encoding = "tar"
    compression: str | None = None
    quality: QualityLimits | None = None
    skip_duplicates_of: tuple[KnownDataset, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.crops_per_shard <= _MAX_CROPS_PER_SHARD:
            raise BuildError(f"crops per shard must be between 1 and {_MAX_CROPS_PER_SHARD}, got {self.crops_per_shard}")
        if not 0 <= self.valid_fraction < 1:
            raise BuildError(f"the validation fraction must be at least 0 and less than 1, got {self.valid_fraction}")
        object.__setattr__(self, "compression", choose_compression(self.format, self.compression))

    def as_json(self) -> dict[str, Any]:
        """Returns the options as the manifest stores them."""
        names = ("limit", "seed", "crops_per_shard", "valid_fraction")
        options = {name: getattr(self, name) for name in names}
        options = {"inputs": [str(path) for path in self.inputs]} | options | format_options(self.format, self.compression)
        options |= {"accept": sorted(self.accept)} if self.accept else {}
        if self.skip_duplicates_of:
            options["skip_duplicates_of"] = [asdict(other) for other in self.skip_duplicates_of]
        return options | ({} if self.quality is None else {"quality": self.quality.model_dump(mode="json")})


def choose_compression(encoding: Encoding, compression: str | None) -> str | None:
    """Returns the compression of new shards: the one asked for, or else the format's default.

    Raises:
        BuildError: the format does not have it.
    """
    known = STORES[encoding].compressions
    if compression is None:
        return known[0] if known else None
    if compression not in known:
        offers = f"choose one of {', '.join(known)}" if known else "drop --compression"
        raise BuildError(f"the format {encoding} has no compression '{compression}'; {offers}")
    return compression


def format_options(encoding: Encoding, compression: str | None) -> dict[str, str]:
    """Returns format and compression as the manifest stores them."""
    return {"format": encoding} | ({} if compression is None else {"compression": compression})


def identity(options: BuildOptions) -> dict[str, Any]:
    """Returns the fields of ``BuildInfo``: all that the bytes of a dataset depend on besides its input."""
    return {"tool_version": version("ecg-engine"), "source": options.source, "options": options.as_json()}


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Describes the first difference between two builds; None if there is none."""
    flat_found, flat_wanted = ({**build, **build.get("options", {})} for build in (found, wanted))
    for name in flat_wanted | flat_found:
        found_value, wanted_value = flat_found.get(name), flat_wanted.get(name)
        if name != "options" and found_value != wanted_value:
            return f"{name.replace('_', ' ')} {found_value} instead of {wanted_value}"
    return None
