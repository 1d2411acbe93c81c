"""Corpus -> dataset, on Dask.

Recordings are staged chunk by chunk (:mod:`data_tools.staging`), then all crops are split by patient, shuffled and
written shard by shard (:mod:`data_tools.sharding`), then come the tables and last the manifest. Every file appears whole
or not at all, and what is there is not made again: a build that was stopped goes on where it stopped. Bytes depend on
input, options and seed only. While it builds, a dataset takes twice its size on disk, under ``OUT/.build``.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data_tools.build_state import (
    STAGING_FOLDER,
    BuildError,
    BuildOptions,
    check_options,
    check_output,
    difference,
    has_begun,
    identity,
    lock,
    remove_temporary_files,
)
from data_tools.files import atomic_write, printable, sync_folder
from data_tools.listing import Listing
from data_tools.sharding import (
    Plan,
    ShardTask,
    make_plan,
    make_shard_tasks,
    read_result,
    result_path,
    rows_path,
    write_shard,
)
from data_tools.shards.dataset import hash_file
from data_tools.shards.manifest import (
    MANIFEST_FILE,
    REJECTED_FILE,
    SAMPLES_FILE,
    SHARDS_FOLDER,
    BuildInfo,
    FileInfo,
    Manifest,
    ShardInfo,
    SplitCounts,
    read_manifest,
    write_manifest,
)
from data_tools.shards.tables import REJECTED_SCHEMA, SAMPLES_SCHEMA, reason_category
from data_tools.sources import make_source
from data_tools.sources.protocol import RecordingFile
from data_tools.staging import ChunkTask, Note, index_path, make_chunks, read_notes, stage_chunk
from data_tools.workers import Workers

# A chunk is what is lost when a build is killed: a second or less of work, and 8 MB of staging file for 10-s recordings.
_CHUNK_RECORDINGS = 64
_CHUNK_BYTES = 64 << 20
_LISTING_FILE = "listing.sqlite"

__all__ = ["BuildError", "BuildOptions", "BuildSummary", "build_dataset"]


@dataclass(frozen=True)
class BuildSummary:
    """What a build has done.

    Attributes:
        path: the dataset.
        num_recordings: found in the input.
        counts: per split.
        rejected: recordings not used at all, by reason.
        partly_used: recordings used only in part (of their signal or of their description), by reason.
        was_finished: the dataset was there already and nothing was done.
    """

    path: Path
    num_recordings: int
    counts: dict[str, SplitCounts]
    rejected: Counter[str] = field(default_factory=Counter)
    partly_used: Counter[str] = field(default_factory=Counter)
    was_finished: bool = False

    def __str__(self) -> str:
        crops = sum(counts.crops for counts in self.counts.values())
        segments = sum(counts.segments for counts in self.counts.values())
        line = f"{self.path}: {self.num_recordings} recordings -> {crops} crops of 10 s, {segments} segments of 5 s"
        line += " (" + ", ".join(f"{split} {counts.crops} crops" for split, counts in self.counts.items()) + ")"
        line += f"; rejected {self.rejected.total()}{_by_reason(self.rejected)}"
        if self.partly_used:
            line += f"; used in part {self.partly_used.total()}{_by_reason(self.partly_used)}"
        return line


def _by_reason(counts: Counter[str]) -> str:
    return " (" + ", ".join(f"{reason} {count}" for reason, count in counts.most_common()) + ")" if counts else ""


def build_dataset(
    options: BuildOptions, out: Path, *, num_workers: int | None = None, scheduler: str | None = None
) -> BuildSummary:
    """Builds a dataset, or goes on with the build that was begun in ``out``.

    Args:
        options: what to build.
        out: folder of the dataset; new, empty, or begun with the same options.
        num_workers: processes; None for one per CPU.
        scheduler: address of a Dask scheduler to use instead.

    Raises:
        ValueError: wrong input or options, ``out`` holds something else, or nothing could be used.
        OSError: a file cannot be written; what is finished is kept.
    """
    pool = Workers(num_workers, scheduler)
    options = BuildOptions(**{**options.__dict__, "inputs": tuple(path.expanduser().resolve() for path in options.inputs)})
    staging = out / STAGING_FOLDER
    if (out / MANIFEST_FILE).exists():
        return _finished(options, out)
    check_output(out)
    found = make_source(options.source).find(options.inputs)
    staging.mkdir(parents=True, exist_ok=True)
    with lock(staging), closing(_list_recordings(found, options.limit, staging)) as files:
        check_options(options, files, staging)
        (out / SHARDS_FOLDER).mkdir(exist_ok=True)
        remove_temporary_files(out)
        with pool as workers:
            num_chunks = _stage(options, files, staging, workers)
            plan = make_plan(staging, num_chunks, len(files), options.valid_fraction)
            notes = [_repeat_note(number, files[original]) for number, original in files.repeats()]
            notes += [note for number in range(num_chunks) for note in read_notes(staging, number)]
            notes += _duplicate_notes(plan, files)
            rejected = _rejected_rows(files, notes, plan)
            if not any(plan.num_used):
                shutil.rmtree(staging)
                (out / SHARDS_FOLDER).rmdir()
                raise BuildError(_nothing_usable(rejected, options))
            shards = _write_shards(plan, out, staging, options.crops_per_shard, workers)
        tables = {
            SAMPLES_FILE: _write_samples(out, staging, shards),
            REJECTED_FILE: _write_table(out / REJECTED_FILE, pa.Table.from_pylist(rejected, schema=REJECTED_SCHEMA)),
        }
        remove_temporary_files(out)
        sync_folder(out / SHARDS_FOLDER)
        manifest = _make_manifest(options, plan, shards, tables)
        write_manifest(out, manifest)
        sync_folder(out)
    shutil.rmtree(staging)
    return _summarize(out, len(files), manifest.counts, rejected)


def _finished(options: BuildOptions, out: Path) -> BuildSummary:
    """Says that a dataset is there already, if it is the one that was asked for."""
    manifest = read_manifest(out)
    other = difference(manifest.build.model_dump(mode="json"), identity(options))
    if other:
        raise BuildError(f"{out}: holds a dataset built with other options ({other}); give another folder or remove this one")
    shutil.rmtree(out / STAGING_FOLDER, ignore_errors=True)
    rejected = pq.read_table(out / REJECTED_FILE).to_pylist()
    used = sum(counts.recordings for counts in manifest.counts.values())
    unused = sum(row["num_crops_used"] == 0 for row in rejected)
    summary = _summarize(out, used + unused, manifest.counts, rejected)
    return replace(summary, was_finished=True)


def _list_recordings(found: Iterator[RecordingFile], limit: int | None, staging: Path) -> Listing:
    """Writes down the recordings; leaves nothing behind if they cannot be listed and nothing was begun before."""
    try:
        return Listing(staging / _LISTING_FILE, found, limit)
    except ValueError:
        if not has_begun(staging):
            shutil.rmtree(staging)
        raise


def _repeat_note(number: int, original: RecordingFile) -> Note:
    """Why a recording is not used whose name an earlier one has."""
    return Note(number, f"duplicate record name: of {printable(original.location)}", True)


def _stage(options: BuildOptions, files: Listing, staging: Path, workers: Workers) -> int:
    """Stages all chunks that are not staged yet; returns the number of chunks."""

    def chunks() -> Iterator[tuple[int, tuple[tuple[int, RecordingFile], ...]]]:
        return enumerate(make_chunks(files.distinct(), _CHUNK_RECORDINGS, _CHUNK_BYTES))

    num_chunks, num_waiting = 0, 0
    for number, chunk in chunks():
        num_chunks += 1
        num_waiting += 0 if index_path(staging, number).exists() else len(chunk)
    todo = (
        ChunkTask(staging, number, options.source, options.seed, chunk)
        for number, chunk in chunks()
        if not index_path(staging, number).exists()
    )
    with tqdm(total=len(files), initial=len(files) - num_waiting, desc="reading", unit="rec", disable=None) as bar:
        for num_recordings in workers.map_unordered(stage_chunk, todo):
            bar.update(num_recordings)
    return num_chunks


def _write_shards(plan: Plan, out: Path, staging: Path, crops_per_shard: int, workers: Workers) -> list[ShardInfo]:
    """Writes all shards that are not written yet."""
    tasks: list[ShardTask] = list(make_shard_tasks(plan, out, staging, crops_per_shard))
    todo = [task for task in tasks if not result_path(staging, task.name).exists()]
    with tqdm(total=len(tasks), initial=len(tasks) - len(todo), desc="writing", unit="shard", disable=None) as bar:
        for _ in workers.map_unordered(write_shard, todo):
            bar.update()
    return [read_result(staging, task.name) for task in tasks]


def _duplicate_notes(plan: Plan, files: Listing) -> list[Note]:
    return [
        Note(repeat, f"duplicate signal: {count} crops as in {printable(files[original].location)}", True)
        for repeat, original, count in plan.duplicates
    ]


def _rejected_rows(files: Listing, notes: Sequence[Note], plan: Plan) -> list[dict[str, Any]]:
    """One row per recording that was not used, one row per reason for those used in part; in the order of the input."""
    by_recording: dict[int, list[Note]] = {}
    for note in notes:
        by_recording.setdefault(note.recording, []).append(note)
    rows = []
    for number in sorted(by_recording):
        num_used = int(plan.num_used[number])
        reasons = [note.reason for note in by_recording[number]]
        if not num_used:
            reasons = ["; ".join(note.reason for note in by_recording[number] if note.is_loss)]
        path, name = printable(files[number].location), files[number].name
        rows += [{"path": path, "recording": name, "reason": text, "num_crops_used": num_used} for text in reasons]
    return rows


def _nothing_usable(rejected: Sequence[dict[str, Any]], options: BuildOptions) -> str:
    reasons = _by_reason(Counter(reason_category(row["reason"]) for row in rejected))
    example = f"; first: {rejected[0]['path']}: {rejected[0]['reason']}" if rejected else ""
    inputs = ", ".join(map(str, options.inputs))
    return f"{inputs}: none of {len(rejected)} recordings can be used{reasons}{example}"


def _write_samples(out: Path, staging: Path, shards: Sequence[ShardInfo]) -> FileInfo:
    """Joins the rows of all shards, one row group per shard, so that memory does not grow with their number."""
    path = out / SAMPLES_FILE
    with atomic_write(path) as file, pq.ParquetWriter(file, SAMPLES_SCHEMA, compression="zstd") as writer:
        for shard in shards:
            writer.write_table(pq.read_table(rows_path(staging, Path(shard.file).stem)))
    return FileInfo(size=path.stat().st_size, sha256=hash_file(path))


def _write_table(path: Path, table: pa.Table) -> FileInfo:
    with atomic_write(path) as file:
        pq.write_table(table, file, compression="zstd")
    return FileInfo(size=path.stat().st_size, sha256=hash_file(path))


def _make_manifest(options: BuildOptions, plan: Plan, shards: Sequence[ShardInfo], tables: dict[str, FileInfo]) -> Manifest:
    build = BuildInfo(**identity(options))
    manifest = Manifest(counts=plan.counts, shards=tuple(shards), tables=tables, build=build, fingerprint="0" * 64)
    return manifest.model_copy(update={"fingerprint": manifest.compute_fingerprint()})


def _summarize(
    out: Path, num_recordings: int, counts: dict[str, SplitCounts], rejected: Sequence[dict[str, Any]]
) -> BuildSummary:
    unused: Counter[str] = Counter()
    partly: Counter[str] = Counter()
    for row in rejected:
        (partly if row["num_crops_used"] else unused)[reason_category(row["reason"])] += 1
    return BuildSummary(out, num_recordings, counts, unused, partly)
