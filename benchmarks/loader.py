"""How many crops a second come through the loaders.

    python benchmarks/loader.py [--dataset DIR] [--threads 2] [--json FILE]

Without a dataset a cohort is simulated and built first. The page cache is warm: every contender reads the whole dataset once
before it is measured. All contenders take turns in every repeat, so that whatever else the machine does hits all alike;
median and range of the repeats are given, and the ratio of medians to plain webdataset on the same shards.

Contenders: `reader` is what both loaders stand on, raw int16 crops in shuffled order in memory; `dali` and `torch` cut them
into segments and scale them to mV (`crop`), and mask leads (`crop + RLM`); `webdataset` is the usual pipeline (shuffle buffer
of 1,000, npy, batched) in as many worker processes as the others have threads, and gives raw int16 crops.
"""

import argparse
import io
import tempfile
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
from _timing import Marks

from data_tools.build import BuildOptions, build_dataset
from data_tools.shards.dataset import Dataset
from data_tools.synthetic.cohort import write_cohort
from engine.data import LOADERS, CropStore, DataOptions, SampleOrder, make_loader
from engine.data.dali_loader import is_dali_installed
from engine.data.reader import RawReader, ReadAhead

SPLIT = "pretrain"
SEED = 1
PEER = ("webdataset", "raw int16")
SHUFFLE_BUFFER = 1000
NUM_CROPS = 4096
# A simulated patient has 2.9 complete crops on average.
NUM_PATIENTS = 1415
# Batches taken before the clock starts, so that what was read ahead while others had their turn does not count.
NUM_UNTIMED = 12
MASKING = {"random_lead_masking": {"p": 0.5}}
NOISES: dict[str, dict[str, Any]] = {
    name: {name: {}} for name in ("powerline", "electromyographic", "baseline_wander", "baseline_shift")
}
# As the paper calls them: physio3 is without the baseline shift.
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
class Contender:
    """Something that gives batches without end."""

    loader: str
    data: str
    batches: Iterator[Any]
    device: torch.device

    def rate(self, batch_size: int, seconds: float) -> float:
        """Crops a second, measured over so many seconds at least."""
        for _ in range(NUM_UNTIMED):
            next(self.batches)
        # In the device's time: the host asks for batches faster than a GPU makes them.
        marks, num_batches, start = Marks(self.device), 0, time.perf_counter()
        marks.mark()
        while time.perf_counter() - start < seconds:
            next(self.batches)
            num_batches += 1
        marks.mark()
        return num_batches * batch_size / marks.seconds()[0]


def read_npy(data: bytes) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Decodes a member of a shard, for webdataset."""
    signal: np.ndarray[Any, np.dtype[np.int16]] = np.load(io.BytesIO(data))
    return signal


def make_webdataset(dataset: Dataset, arguments: argparse.Namespace) -> Contender:
    """The usual webdataset pipeline."""
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
    return Contender(*PEER, iter(loader), torch.device("cpu"))


def make_contenders(dataset: Dataset, arguments: argparse.Namespace, stack: ExitStack) -> list[Contender]:
    """Everything that is compared; the stack closes it."""
    store = CropStore(dataset, SPLIT)
    order = SampleOrder(store.num_crops, SEED)
    reader = ReadAhead(
        RawReader(store, order, arguments.batch_size, range(12)),
        batch_size=arguments.batch_size,
        rank=0,
        world_size=1,
        prefetch=arguments.prefetch,
        num_threads=arguments.threads,
    )
    stack.callback(reader.close)
    contenders = [make_webdataset(dataset, arguments), Contender("reader", "raw int16", reader, torch.device("cpu"))]
    for data, augmentations in AUGMENTATIONS.items():
        for name in LOADERS:
            if name == "dali" and not is_dali_installed():
                print("DALI is not installed: left out")
                continue
            options = DataOptions.model_validate(
                {
                    "loader": name,
                    "augmentations": augmentations,
                    "num_threads": arguments.threads,
                    "prefetch": arguments.prefetch,
                }
            )
            loader = make_loader(
                options, store, order, leads=12, seed=SEED, batch_size=arguments.batch_size, device=arguments.device
            )
            contenders.append(Contender(name, data, stack.enter_context(loader), torch.device(arguments.device)))
    return contenders


def make_dataset(folder: Path) -> Path:
    """Simulates a cohort and builds a dataset of about NUM_CROPS crops from it."""
    write_cohort(folder / "cohort", NUM_PATIENTS, SEED, workers=2)
    options = BuildOptions("physionet2021", (folder / "cohort",), seed=SEED, crops_per_shard=512, valid_fraction=0)
    print(build_dataset(options, folder / "dataset"))
    return folder / "dataset"


def measure(contenders: list[Contender], num_crops: int, arguments: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Crops a second of each contender in each repeat."""
    for contender in contenders:
        for _ in range(-(-num_crops // arguments.batch_size)):
            next(contender.batches)
    rates: dict[tuple[str, str], list[float]] = {(each.loader, each.data): [] for each in contenders}
    for _ in range(arguments.repeats):
        for each in contenders:
            rates[each.loader, each.data].append(each.rate(arguments.batch_size, arguments.seconds))
    return rates


def parse(words: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Crops a second through the loaders, against plain webdataset.",
        epilog="example: python benchmarks/loader.py --threads 2 --json loader.json",
    )
    parser.add_argument("--dataset", type=Path, help="dataset folder; default: simulate and build one of 4,096 crops")
    parser.add_argument("--threads", type=int, default=2, help="reading and computing (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="crops (default %(default)s)")
    parser.add_argument("--prefetch", type=int, default=4, help="batches read ahead (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=9, help="of every measurement (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of every measurement (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args(words)
    if min(arguments.threads, arguments.batch_size, arguments.prefetch, arguments.repeats) < 1:
        parser.error("--threads, --batch-size, --prefetch and --repeats must be at least 1")
    return arguments


def main(words: list[str] | None = None) -> None:
    """Measures, prints a table, and writes JSON if asked to."""
    arguments = parse(words)
    torch.set_num_threads(arguments.threads)
    where = environment()
    print_environment(where)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        dataset = Dataset.open(arguments.dataset or make_dataset(Path(scratch)))
        contenders = make_contenders(dataset, arguments, stack)
        num_crops = dataset.manifest.counts[SPLIT].complete_crops
        described = {"source": dataset.manifest.build.source, "fingerprint": dataset.fingerprint, "num_crops": num_crops}
        rates = measure(contenders, num_crops, arguments)
    figures = [{"loader": loader, "data": data, "crops_per_second": spread(values)} for (loader, data), values in rates.items()]
    peer = spread(rates[PEER])["median"]
    rows = []
    for figure in figures:
        crops = figure["crops_per_second"]
        assert isinstance(crops, dict)
        figure["ratio_to_webdataset"] = round(crops["median"] / peer, 2)
        shown = [crops["median"], crops["min"], crops["max"], figure["ratio_to_webdataset"]]
        rows.append([figure["loader"], figure["data"], *shown])
    print(f"{num_crops:,} crops, batch {arguments.batch_size}, {arguments.threads} threads, page cache warm; crops/s\n")
    print_table(["loader", "data", "median", "min", "max", "x webdataset"], rows)
    if arguments.json:
        config = {**vars(arguments), "dataset": described}
        del config["json"]
        write_json(arguments.json, "loader", config, where, {"rates": figures})


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
