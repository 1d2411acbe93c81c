"""The tables of the benchmarks of building and loading data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _results import Result, Table, spread

DATA_SCALE_HEADERS = ["data", "run", "ranks", "open s", "CPU s per rank", "first batch s", "resume s", "MB per machine"]


def data_scale_rows(name: str, runs: Mapping[str, list[dict[str, float]]]) -> list[list[object]]:
    """Returns a row under DATA_SCALE_HEADERS for the first run and the later ones, as written by ``data_scale.py``."""
    rows: list[list[object]] = []
    for run, ranks in runs.items():
        names = ("open_seconds", "open_cpu_seconds", "first_batch_seconds", "resume_seconds")
        slowest = [max(rank[name] for rank in ranks) for name in names]
        rows.append([name, run, len(ranks), *slowest, sum(rank["memory_mb"] for rank in ranks)])
    return rows


def _data_scale(result: Result) -> list[Table]:
    rows = [row for name, runs in result["metrics"].items() for row in data_scale_rows(name, runs)]
    caption = f"{result['config']['crops']:,} crops, simulated tables without signals."
    return [Table(caption, DATA_SCALE_HEADERS, rows)]


def _build(result: Result) -> list[Table]:
    rows = [
        [name, *spread(rates["recordings_per_s"]), rates["recordings_per_cpu_s"]["median"]]
        for name, rates in result["metrics"].items()
    ]
    config = result["config"]
    caption = f"{config['num_recordings']:,} recordings, {config['num_crops']:,} crops ({config['input']})."
    return [Table(caption, ["", "recordings/s", "min", "max", "recordings per CPU-second"], rows)]


def _loader(result: Result) -> list[Table]:
    rows = [
        [rate["loader"], rate["data"], *spread(rate["crops_per_second"]), rate["ratio_to_webdataset"]]
        for rate in result["metrics"]["rates"]
    ]
    config = result["config"]
    caption = (
        f"{config['dataset']['num_crops']:,} crops, batch {config['batch_size']}, {config['threads']} threads, page cache "
        f"warm, batches on {config['device'].upper()}."
    )
    return [Table(caption, ["loader", "data", "crops/s", "min", "max", "speedup over webdataset"], rows)]


COMPARISON_HEADERS = [
    "loader", "from", "crops/s", "min", "max", "first epoch crops/s", "first batch s", "CPU s per 1,000 crops", "MB of memory",
    "kB per crop",
]  # fmt: skip


def comparison_rows(loaders: Sequence[Mapping[str, Any]], num_crops: int) -> list[list[object]]:
    """Returns a row under COMPARISON_HEADERS for each result of ``compare_loaders.py``."""
    medians = ("first_epoch_crops_per_second", "first_batch_seconds", "cpu_seconds_per_1000_crops", "memory_mb")
    return [
        [
            each["loader"],
            each["storage"],
            *spread(each["later_epochs_crops_per_second"]),
            *(each[name]["median"] for name in medians),
            each["bytes"] / num_crops / 1000,
        ]
        for each in loaders
    ]


def _comparison(result: Result) -> list[Table]:
    config, metrics = result["config"], result["metrics"]
    caption = (
        f"{config['num_crops']:,} crops ({config['recordings']}, repeated), batch {config['batch_size']}, {config['workers']} "
        "workers; crops/s of the epochs after the first. On the disk the page cache is warm; from S3 the first epoch starts "
        "with an empty cache."
    )
    skipped = [f"Not measured: {name} ({reason})." for name, reason in metrics["skipped"].items()]
    rows = comparison_rows(metrics["loaders"], config["num_crops"])
    return [Table(" ".join([caption, *skipped]), COMPARISON_HEADERS, rows)]


DATA_TABLES: dict[str, Callable[[Result], list[Table]]] = {
    "build_shards": _build,
    "loader": _loader,
    "compare_loaders": _comparison,
    "data_scale": _data_scale,
}
