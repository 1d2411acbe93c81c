"""Measures the crops per second of the loaders.

    python benchmarks/loader.py [--dataset DIR] [--threads 2] [--disk 200] [--json FILE]

Without --dataset, a cohort is simulated and built first. The dataset, in tar shards, is also converted to zarr with each
compression. The page cache is warm: every candidate reads the whole dataset once before it is measured. The candidates
alternate in every repeat, so that other load on the machine affects all of them; the table shows median and range of the
repeats, and the medians relative to plain webdataset on the same shards.

Candidates: `reader` is the reader that both loaders use, which delivers raw int16 crops in shuffled order; `dali` and `torch`
cut them into segments in mV (`crop`), mask leads (`+ RLM`) and add noise; `webdataset` is the usual pipeline (shuffle buffer of
1,000, npy, batched) with as many worker processes as the others have threads, and delivers raw int16 crops. All read tar shards
unless they name zarr and a compression. The last rows are limited to --disk MB/s for all threads together, as on a slow
disk or network.
"""

import argparse
import io
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from _common import environment, print_environment, print_table, spread, write_json
from _timing import DeviceTimer

from data_tools.build.conversion import convert_dataset
from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.shards.dataset import Dataset
from data_tools.shards.store import OpenShard
from data_tools.shards.stores import STORES
from data_tools.synthetic.cohort import write_cohort
from engine.data import LOADERS, CropStore, DataOptions, SampleOrder, make_loader
from engine.data.dali_loader import is_dali_installed
from engine.data.reader import RawReader
from engine.prefetch import prefetch

SPLIT = "pretrain"
SEED = 1
BASELINE = ("webdataset", "raw int16")
SHUFFLE_BUFFER = 1000
NUM_CROPS = 4096
# A simulated patient has 2.9 complete crops on average.
NUM_PATIENTS = 1415
# Untimed batches at the start, so that batches prefetched while other candidates were measured do not count.
NUM_WARMUP_BATCHES = 12
MASKING = {"random_lead_masking": {"p": 0.5}}
NOISES: dict[str, dict[str, Any]] = {
    name: {name: {}} for name in ("powerline", "electromyographic", "baseline_wander", "baseline_shift")
}
# The paper's names: Physio(3) omits the baseline shift.
PHYSIO3 = NOISES["powerline"] | NOISES["electromyographic"] | NOISES["baseline_wander"]
PHYSIO4 = PHYSIO3 | NOISES["baseline_shift"]
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "crop": {},
    "crop + RLM": MASKING,
    **{f"crop + {name}": noise for name, noise in NOISES.items()},
    "crop + physio3": PHYSIO3,
    "crop + physio4": PHYSIO4,
    "crop + RLM + physio3": MASKING | PHYSIO3,
    "crop + RLM + physio4": MASKING | PHYSIO4,
}


@dataclass(frozen=True)
class Candidate:
    """A source of endless batches."""

    loader: str
    data: str
    batches: Iterator[Any]
    device: torch.device

    def rate(self, batch_size: int, seconds: float) -> float:
        """Returns crops/s, measured over at least ``seconds``."""
        for _ in range(NUM_WARMUP_BATCHES):
            next(self.batches)
        # In the device's time: the host requests batches faster than a GPU computes them.
        timer, num_batches, start = DeviceTimer(self.device), 0, time.perf_counter()
        timer.mark()
        while num_batches == 0 or time.perf_counter() - start < seconds:
            next(self.batches)
            num_batches += 1
        timer.mark()
        return num_batches * batch_size / timer.seconds()[0]


def read_npy(data: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Decodes an npy file of a shard, for webdataset."""
    signal: np.ndarray[Any, np.dtype[np.int16]] = np.load(io.BytesIO(data))
    return signal


def make_webdataset(dataset: Dataset, arguments: argparse.Namespace) -> Candidate:
    """Returns the usual webdataset pipeline."""
    urls = [str(dataset.path / shard.file) for shard in dataset.shards(SPLIT)]
    pipeline = (
        webdataset.WebDataset(urls, shardshuffle=len(urls), seed=SEED)
        .repeat()
        .shuffle(SHUFFLE_BUFFER)
        .to_tuple("npy")
        .map_tuple(read_npy)
        .batched(arguments.batch_size, partial=False)
    )
    loader = webdataset.WebLoader(
        pipeline, batch_size=None, num_workers=min(arguments.threads, len(urls)), multiprocessing_context="spawn"
    )
    return Candidate(*BASELINE, iter(loader), torch.device("cpu"))


class SlowDisk:
    """Limits the bytes per second that all threads together read from shards; a context manager."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._read = OpenShard.read

    def _wait(self, num_bytes: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + num_bytes / self._rate
            seconds = self._free_at - time.perf_counter()
        time.sleep(max(seconds, 0))

    def __enter__(self) -> None:
        def read(shard: OpenShard, memory: memoryview, offset: int) -> None:
            self._wait(len(memory))
            self._read(shard, memory, offset)

        setattr(OpenShard, "read", read)  # noqa: B010  (mypy does not allow the assignment)

    def __exit__(self, *_: object) -> None:
        setattr(OpenShard, "read", self._read)  # noqa: B010


def make_reader(dataset: Dataset, data: str, arguments: argparse.Namespace, stack: ExitStack) -> Candidate:
    """Returns the reader of raw crops; ``stack`` closes it."""
    store = CropStore(dataset, SPLIT)
    read = RawReader(store, SampleOrder(store.num_samples, SEED), arguments.batch_size, range(12))
    starts = itertools.count(0, arguments.batch_size)
    batches = prefetch(starts, lambda start: [read(start)], num_threads=arguments.threads, num_ahead=arguments.prefetch + 1)
    stack.callback(batches.close)
    return Candidate("reader", data, batches, torch.device("cpu"))


def make_loaders(
    dataset: Dataset, data: str, augmentations: dict[str, Any], arguments: argparse.Namespace, stack: ExitStack
) -> Iterator[Candidate]:
    """Yields every loader; ``stack`` closes them."""
    store = CropStore(dataset, SPLIT)
    order = SampleOrder(store.num_samples, SEED)
    for name in LOADERS:
        if name == "dali" and not is_dali_installed():
            print("DALI is not installed: skipped")
            continue
        options = DataOptions.model_validate(
            {"loader": name, "augmentations": augmentations, "num_threads": arguments.threads, "prefetch": arguments.prefetch}
        )
        loader = make_loader(options, store, order, leads=12, batch_size=arguments.batch_size, device=arguments.device)
        yield Candidate(name, data, stack.enter_context(loader), torch.device(arguments.device))


def make_candidates(datasets: dict[str, Dataset], arguments: argparse.Namespace, stack: ExitStack) -> list[Candidate]:
    """Returns everything that is compared with a warm page cache; ``stack`` closes it."""
    tar, zarr = datasets["tar"], datasets["zarr pcodec"]
    candidates = [make_webdataset(tar, arguments)]
    candidates += [make_reader(dataset, data_name("raw int16", name), arguments, stack) for name, dataset in datasets.items()]
    for data, augmentations in AUGMENTATIONS.items():
        candidates += make_loaders(tar, data, augmentations, arguments, stack)
    for data in ("crop", "crop + RLM", "crop + RLM + physio4"):
        candidates += make_loaders(zarr, data_name(data, "zarr pcodec"), AUGMENTATIONS[data], arguments, stack)
    return candidates


def data_name(data: str, dataset: str) -> str:
    """Returns the name of a kind of data, read from one of the datasets."""
    return data if dataset == "tar" else f"{data}, {dataset}"


def convert(dataset: Dataset, folder: Path) -> dict[str, Dataset]:
    """Returns the dataset itself, in tar shards, and converted to zarr with each compression."""
    compressions = STORES["zarr"].compressions
    converted = {f"zarr {name}": convert_dataset(dataset.path, folder / name, "zarr", name) for name in compressions}
    return {"tar": dataset} | converted


def make_dataset(folder: Path) -> Path:
    """Simulates a cohort and builds a dataset of about NUM_CROPS crops from it."""
    write_cohort(folder / "cohort", NUM_PATIENTS, SEED, workers=2)
    options = BuildOptions("physionet2021", (folder / "cohort",), seed=SEED, crops_per_shard=512, valid_fraction=0)
    print(build_dataset(options, folder / "dataset"))
    return folder / "dataset"


def measure(candidates: list[Candidate], num_crops: int, arguments: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Returns the crops/s of each candidate in each repeat."""
    for candidate in candidates:
        for _ in range(-(-num_crops // arguments.batch_size)):
            next(candidate.batches)
    rates: dict[tuple[str, str], list[float]] = {(each.loader, each.data): [] for each in candidates}
    for _ in range(arguments.repeats):
        for each in candidates:
            rates[each.loader, each.data].append(each.rate(arguments.batch_size, arguments.seconds))
    return rates


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Measures the crops per second of the loaders, compared with plain webdataset.",
        epilog="example: python benchmarks/loader.py --threads 2 --json loader.json",
    )
    parser.add_argument("--dataset", type=Path, metavar="DIR", help="dataset (default: simulate and build one of 4,096 crops)")
    parser.add_argument("--threads", type=int, default=2, help="threads for reading and computing (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="crops per batch (default: %(default)s)")
    parser.add_argument("--prefetch", type=int, default=4, help="batches read ahead (default: %(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device of the batches (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="measurements of each candidate (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a measurement (default: %(default)s)")
    parser.add_argument(
        "--disk", type=float, default=200, metavar="MB/S", help="disk speed that the last rows simulate (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args(words)
    if min(arguments.threads, arguments.batch_size, arguments.prefetch, arguments.repeats, arguments.disk) < 1:
        parser.error("--threads, --batch-size, --prefetch, --repeats and --disk must be at least 1")
    if not arguments.seconds > 0:
        parser.error("--seconds must be above 0")
    return arguments


def main(words: list[str] | None = None) -> None:
    """Measures, prints a table, and writes JSON on request."""
    arguments = parse_arguments(words)
    torch.set_num_threads(arguments.threads)
    machine = environment()
    print_environment(machine)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        dataset = Dataset.open(arguments.dataset or make_dataset(Path(scratch)))
        datasets = convert(dataset, Path(scratch))
        num_crops = dataset.manifest.counts[SPLIT].complete_crops
        description = {"source": dataset.manifest.build.source, "fingerprint": dataset.fingerprint, "num_crops": num_crops}
        sizes = {name: sum(shard.size for shard in each.shards(SPLIT)) for name, each in datasets.items()}
        description["bytes"] = sizes
        rates = measure(make_candidates(datasets, arguments, stack), num_crops, arguments)
        with SlowDisk(1e6 * arguments.disk):
            slow = f"raw int16, {arguments.disk:g} MB/s"
            readers = [make_reader(each, data_name(slow, name), arguments, stack) for name, each in datasets.items()]
            rates |= measure(readers, 0, arguments)
    results = [{"loader": loader, "data": data, "crops_per_second": spread(values)} for (loader, data), values in rates.items()]
    baseline = spread(rates[BASELINE])["median"]
    rows = []
    for result in results:
        crops = result["crops_per_second"]
        assert isinstance(crops, dict)
        result["ratio_to_webdataset"] = round(crops["median"] / baseline, 2)
        shown = [crops["median"], crops["min"], crops["max"], result["ratio_to_webdataset"]]
        rows.append([result["loader"], result["data"], *shown])
    print(f"{num_crops:,} crops, batch {arguments.batch_size}, {arguments.threads} threads, page cache warm; crops/s\n")
    print(
        "size of the shards relative to tar: "
        + ", ".join(f"{name} {size / sizes['tar']:.3f}" for name, size in sizes.items())
        + "\n"
    )
    print_table(["loader", "data", "median", "min", "max", "speedup over webdataset"], rows)
    if arguments.json:
        config = {**vars(arguments), "dataset": description}
        del config["json"]
        write_json(arguments.json, "loader", config, machine, {"rates": results})


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
