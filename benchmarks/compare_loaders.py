"""Compares this engine's loader with those of other libraries on the same crops.

    python benchmarks/compare_loaders.py [--recordings DIR] [--size-gb 2] [--s3 URL [--throttle MB/S]] [--json FILE]

The crops of the recordings (PhysioNet 2021's layout; default: a simulated cohort) are repeated, each copy rotated in time, to
--size-gb of int16. Every loader gets them in its own format, delivers them shuffled as float32 segments in mV, and is checked
once: an epoch must contain each crop exactly once. Then the loaders run in turns, --rounds times, each in a fresh process, to
measure the time to the first batch, crops/s of the first epoch (opening included) and of later ones, CPU time, and the memory
of all processes.

On disk, the page cache is warm. With --s3, the data are uploaded below the URL (credentials and endpoint come from the
environment), and the first epoch starts with an empty cache; --throttle adds measurements through a relay with that many MB/s.
The extra `bench` installs the other loaders; those that are not installed are skipped.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from _common import environment, print_environment, print_table, spread, write_json
from _data_tables import COMPARISON_HEADERS, comparison_rows
from _peer import folder_bytes, read_crops
from _peer_process import PeerError, digest_crop, run_task
from _peers import PEERS
from _repeated_crops import make_repeated_dataset
from _throttle import run_relay

MEASURES = (
    "first_batch_seconds",
    "first_epoch_crops_per_second",
    "later_epochs_crops_per_second",
    "cpu_seconds_per_1000_crops",
    "memory_mb",
)


@dataclass
class Candidate:
    """A loader that reads from one storage.

    Attributes:
        loader: its name in PEERS.
        storage: name of the storage in the table.
        location: folder or URL.
        throttle: MB/s of the relay, if there is one.
        rounds: the measurements of each round.
    """

    loader: str
    storage: str
    location: str
    throttle: float | None = None
    rounds: list[dict[str, float]] = field(default_factory=list)


class Comparison:
    """Prepares and measures the loaders.

    Args:
        arguments: the command-line arguments.
        scratch: folder for all files.
    """

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self._arguments = arguments
        self._scratch = scratch
        self.skipped: dict[str, str] = {}
        self.bytes: dict[str, int] = {}
        self.dataset = make_repeated_dataset(arguments.recordings, 1e9 * arguments.size_gb, scratch / "data")
        self.digests = sorted(digest_crop(crop) for crop in read_crops(self.dataset))
        self._request = {"dataset": str(self.dataset), "batch_size": arguments.batch_size, "workers": arguments.workers}

    def prepare(self) -> list[Candidate]:
        """Writes every loader's data and checks what it delivers; returns the candidates and fills :attr:`skipped`."""
        candidates: list[Candidate] = []
        for name in self._arguments.loaders:
            try:
                candidates += self._prepare(name)
            except PeerError as error:
                self._skip(name, str(error))
        return candidates

    def _prepare(self, name: str) -> Iterator[Candidate]:
        missing = run_task("check", name, self._scratch)["missing"]
        if missing is not None:
            self._skip(name, missing)
            return
        own_folder = self._scratch / "formats" / name.replace(", ", "-").replace(" ", "-")
        own_folder.parent.mkdir(exist_ok=True)
        folder = Path(run_task("prepare", name, self._scratch, folder=str(own_folder), **self._request)["folder"])
        self.bytes[name] = folder_bytes(folder)
        self._check(name, str(folder))
        yield Candidate(name, "disk", str(folder))
        if self._arguments.s3 is None:
            return
        if not PEERS[name].reads_urls:
            self._skip(f"{name} from S3", "it sends separate requests for each crop, so every epoch takes minutes")
            return
        url = f"{self._arguments.s3.rstrip('/')}/{own_folder.name}"
        try:
            run_task("upload", name, self._scratch, folder=str(folder), url=url, **self._request)
            self._check(name, url)
        except PeerError as error:
            self._skip(f"{name} from S3", str(error))
            return
        yield Candidate(name, "S3", url)
        if self._arguments.throttle is not None:
            yield Candidate(name, f"S3, {self._arguments.throttle:g} MB/s", url, self._arguments.throttle)

    def _skip(self, name: str, reason: str) -> None:
        print(f"{name}: skipped: {reason}")
        self.skipped[name] = reason

    def _check(self, name: str, location: str) -> None:
        with self._empty_cache() as cache:
            found = run_task("digest", name, self._scratch, location=location, cache=cache, **self._request)["digests"]
        if found != self.digests:
            missing, other = len(set(self.digests) - set(found)), len(set(found) - set(self.digests))
            counts = f"{len(found)} crops of {len(self.digests)}, {missing} missing, {other} unknown"
            raise PeerError(f"{name}: an epoch differs from the dataset: {counts}")

    def measure(self, candidate: Candidate) -> None:
        """Measures a candidate once more."""
        with self._empty_cache() as cache, self._relay(candidate) as variables:
            where = {"location": candidate.location, "cache": cache, "seconds": self._arguments.seconds}
            candidate.rounds.append(run_task("measure", candidate.loader, self._scratch, variables, **where, **self._request))

    @contextmanager
    def _empty_cache(self) -> Iterator[str]:
        folder = self._scratch / "cache"
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(self._scratch / "litdata", ignore_errors=True)

    @contextmanager
    def _relay(self, candidate: Candidate) -> Iterator[dict[str, str]]:
        """Provides the environment of a measurement; with a throttle, a relay before the server."""
        if candidate.throttle is None:
            yield {}
            return
        server = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        assert server.hostname is not None
        with run_relay(server.hostname, server.port or 80, 1e6 * candidate.throttle) as port:
            yield {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


def parse_arguments(words: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description="Compares this engine's loader with those of other libraries on the same crops.",
        epilog="example: python benchmarks/compare_loaders.py --size-gb 0.3 --rounds 2",
    )
    add = parser.add_argument
    add(
        "--recordings",
        type=Path,
        metavar="DIR",
        help="recordings in the format of PhysioNet 2021 (default: a simulated cohort)",
    )
    add("--size-gb", type=float, default=2.0, metavar="GB", help="size of the crops, as int16 (default: %(default)s)")
    add("--loaders", type=_names, default=list(PEERS), metavar="A;B", help=f"default: {';'.join(PEERS)}")
    add("--rounds", type=int, default=5, help="measurements of each loader (default: %(default)s)")
    add("--seconds", type=float, default=5.0, help="minimum duration of the later epochs (default: %(default)s)")
    add("--batch-size", type=int, default=64, help="crops per batch (default: %(default)s)")
    add("--workers", type=int, default=2, help="worker processes or threads of each loader (default: %(default)s)")
    add("--s3", metavar="URL", help="also upload the data to this URL, s3://bucket/prefix (must be empty), and read from there")
    add(
        "--throttle", type=float, metavar="MB/S", help="with --s3: also through a relay at this rate; needs an http:// endpoint"
    )
    add("--scratch", type=Path, metavar="DIR", help="folder for all data (default: the temporary folder)")
    add("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args(words)
    if min(arguments.size_gb, arguments.rounds, arguments.seconds, arguments.batch_size, arguments.workers) <= 0:
        parser.error("--size-gb, --rounds, --seconds, --batch-size and --workers must be above 0")
    if arguments.throttle is not None and arguments.throttle <= 0:
        parser.error("--throttle must be above 0")
    if arguments.throttle is not None and arguments.s3 is None:
        parser.error("--throttle limits the connection to S3: add --s3")
    if arguments.throttle is not None and not os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        parser.error("--throttle needs an endpoint without TLS: set AWS_ENDPOINT_URL=http://HOST:PORT")
    return arguments


def _names(text: str) -> list[str]:
    names = text.split(";")
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"unknown loader '{name}'; known: {'; '.join(PEERS)}")
    return names


def main(words: list[str] | None = None) -> None:
    """Prepares, checks and measures, prints a table, and writes JSON on request."""
    arguments = parse_arguments(words)
    machine = environment()
    print_environment(machine)
    with tempfile.TemporaryDirectory(dir=arguments.scratch, prefix="compare-loaders-") as scratch:
        comparison = Comparison(arguments, Path(scratch))
        candidates = comparison.prepare()
        if not candidates:
            raise ValueError("no loader can be measured; the reasons are printed above")
        for _ in range(arguments.rounds):
            for candidate in candidates:
                comparison.measure(candidate)
    num_crops = len(comparison.digests)
    results = [
        {"loader": each.loader, "storage": each.storage, "bytes": comparison.bytes[each.loader]}
        | {name: spread([found[name] for found in each.rounds]) for name in MEASURES}
        for each in candidates
    ]
    print(f"\n{num_crops:,} crops, batch {arguments.batch_size}, {arguments.workers} workers\n")
    print_table(COMPARISON_HEADERS, comparison_rows(results, num_crops))
    if arguments.json:
        config: dict[str, Any] = {**vars(arguments), "num_crops": num_crops}
        for name in ("json", "scratch", "s3"):
            del config[name]
        config["recordings"] = "simulated cohort" if arguments.recordings is None else "recordings"
        write_json(arguments.json, "compare_loaders", config, machine, {"loaders": results, "skipped": comparison.skipped})


if __name__ == "__main__":
    try:
        main()
    except (ValueError, PeerError) as error:
        raise SystemExit(f"error: {error}") from None
