"""The tables of the benchmarks of building and loading data."""

from collections.abc import Callable, Mapping

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


DATA_TABLES: dict[str, Callable[[Result], list[Table]]] = {
    "build_shards": _build,
    "loader": _loader,
    "data_scale": _data_scale,
}
