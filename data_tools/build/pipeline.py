"""Builds a dataset from a corpus, on this machine or on Dask.

Recordings are staged chunk by chunk (:mod:`~data_tools.build.staging`), their crops are split by patient and shuffled
(:mod:`~data_tools.build.planning`) and written shard by shard (:mod:`~data_tools.build.sharding`); then come the tables, and
last the manifest. Every file is written atomically and never rewritten, so an interrupted build resumes where it stopped.
The bytes depend on input, options and seed only. Memory does not grow with the input, except for the manifest's entry per
shard. While it is being built, a dataset needs twice its size on disk, under ``OUT/.build``.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_tools.build import state
from data_tools.build.listing import Listing
from data_tools.build.options import BuildError, BuildOptions, difference, identity
from data_tools.build.planning import make_plan
from data_tools.build.rejected import rejected_rows, rejected_tables
from data_tools.build.sharding import (
    describe_tables,
    list_shards,
    make_shard_tasks,
    write_arrays,
    write_samples,
    write_shards,
    write_staged_shard,
)
from data_tools.build.staging import ChunkTask, index_path, make_chunks, quality_path, stage_chunk
from data_tools.build.summary import BuildSummary, by_reason
from data_tools.build.workers import Workers
from data_tools.files import sync
from data_tools.quality.table import QUALITY_SCHEMA, merge_quality
from data_tools.remote.locations import display
from data_tools.shards.manifest import (
    MANIFEST_FILE,
    QUALITY_FILE,
    REJECTED_FILE,
    BuildInfo,
    Manifest,
    read_manifest,
    write_manifest,
)
from data_tools.shards.tables import REJECTED_SCHEMA, count_reasons, reason_category, write_groups
from data_tools.sources import make_source
from data_tools.sources.protocol import RecordingFile

# A killed build loses one chunk per worker: a second of work or less, and an 8-MB staging file for 10-s recordings.
_CHUNK_RECORDINGS = 64
_CHUNK_BYTES = 64 << 20
_LISTING_FILE = "listing.sqlite"


class _NothingUsableError(BuildError):
    """No recording can be used."""


def build_dataset(
    options: BuildOptions, out: Path, *, num_workers: int | None = None, scheduler: str | None = None
) -> BuildSummary:
    """Builds a dataset, or resumes the unfinished build in ``out``.

    Args:
        options: the options that determine the dataset.
        out: folder of the dataset; new, empty, or with an unfinished build of the same options.
        num_workers: number of processes, see :class:`data_tools.build.workers.Workers`.
        scheduler: address of a Dask scheduler to use instead.

    Raises:
        ValueError: the input or the options are wrong, ``out`` contains something else, or no recording can be used.
        OSError: a file cannot be written; finished files are kept.
    """
    pool = Workers(num_workers, scheduler)
    options = options.resolve()
    staging = out / state.STAGING_FOLDER
    if (out / MANIFEST_FILE).exists():
        summary = _finished(options, out)
        if staging.exists():
            with suppress(BuildError, OSError), state.lock(staging):
                state.empty_staging(staging)
        return summary
    state.check_output(out)
    found = make_source(options.source, options.inputs, options.accept).find()
    with state.lock(staging):
        if (out / MANIFEST_FILE).exists():  # another build has finished it since
            state.empty_staging(staging)
            return _finished(options, out)
        try:
            with closing(_list_recordings(found, options.limit, staging)) as files:
                manifest = _build(options, out, files, pool)
        except _NothingUsableError:
            state.empty_staging(staging)
            raise
        state.empty_staging(staging)
    return _summarize(out, manifest)


def _build(options: BuildOptions, out: Path, files: Listing, pool: Workers) -> Manifest:
    staging = out / state.STAGING_FOLDER
    state.check_options(options, files, staging)
    state.remove_temporary_files(out)
    with pool as workers:
        num_chunks = stage_recordings(options, files, staging, workers)
        others = [other.open() for other in options.skip_duplicates_of]
        with make_plan(staging, num_chunks, options.valid_fraction, others=others) as plan:
            rejected = rejected_rows(files, plan, staging, num_chunks, [other.location for other in others])
            if not any(counts.crops for counts in plan.counts.values()):
                raise _nothing_usable(rejected, options)
            shards = list_shards(plan, out, staging, options)
            infos = write_shards(shards, make_shard_tasks(plan, shards), write_staged_shard, workers)
            write_samples(shards)
            write_groups(out / REJECTED_FILE, REJECTED_SCHEMA, rejected_tables(rejected))
            if options.quality is not None:
                parts = (quality_path(staging, chunk) for chunk in range(num_chunks))
                write_groups(out / QUALITY_FILE, QUALITY_SCHEMA, merge_quality(parts))
    state.remove_temporary_files(out)
    manifest = Manifest(
        encoding=options.format,
        counts=plan.counts,
        shards=tuple(infos),
        arrays=write_arrays(shards, infos),
        tables=describe_tables(out),
        build=BuildInfo(**identity(options)),
        fingerprint="0" * 64,
    ).with_fingerprint()
    write_manifest(out, manifest)
    sync(out)
    return manifest


def _finished(options: BuildOptions, out: Path) -> BuildSummary:
    """Summarizes the existing dataset, if it has the requested options."""
    manifest = read_manifest(out)
    other = difference(manifest.build.model_dump(mode="json"), identity(options))
    if other:
        raise BuildError(
            f"{display(out)}: contains a dataset with other options ({other}); choose another folder, or remove this one"
        )
    return replace(_summarize(out, manifest), was_finished=True)


def _list_recordings(found: Iterator[RecordingFile], limit: int | None, staging: Path) -> Listing:
    """Lists the recordings; if that fails and no build was started before, nothing is left behind."""
    try:
        return Listing(staging / _LISTING_FILE, found, limit)
    except ValueError:
        if not state.has_begun(staging):
            state.empty_staging(staging)
        raise


def stage_recordings(options: BuildOptions, files: Listing, staging: Path, workers: Workers) -> int:
    """Stages the chunks that are not staged yet; returns the number of all chunks."""

    def chunks() -> Iterator[tuple[int, tuple[tuple[int, RecordingFile], ...]]]:
        return enumerate(make_chunks(files.distinct(), _CHUNK_RECORDINGS, _CHUNK_BYTES))

    num_chunks, num_waiting = 0, 0
    for number, chunk in chunks():
        num_chunks += 1
        num_waiting += 0 if index_path(staging, number).exists() else len(chunk)
    todo = (
        ChunkTask(staging, number, options, chunk) for number, chunk in chunks() if not index_path(staging, number).exists()
    )
    with tqdm(total=len(files), initial=len(files) - num_waiting, desc="reading", unit="rec", disable=None) as bar:
        for num_recordings in workers.map_unordered(stage_chunk, todo):
            bar.update(num_recordings)
    return num_chunks


def _nothing_usable(rejected: Iterator[dict[str, Any]], options: BuildOptions) -> _NothingUsableError:
    first = next(rejected)
    reasons = Counter([reason_category(first["reason"])])
    reasons.update(reason_category(row["reason"]) for row in rejected)
    inputs = ", ".join(map(str, options.inputs))
    example = f"first: {first['path']}: {first['reason']}"
    return _NothingUsableError(f"{inputs}: no recording can be used{by_reason(reasons)}; {example}")


def _summarize(out: Path, manifest: Manifest) -> BuildSummary:
    unused, partly = count_reasons(out / REJECTED_FILE)
    # Every recording has crops, or a row that says why it has none.
    num_recordings = sum(counts.recordings for counts in manifest.counts.values()) + unused.total()
    return BuildSummary(out, num_recordings, manifest.counts, unused, partly)
