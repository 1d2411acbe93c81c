"""The first half of a build: cuts recordings into crops and writes them to staging files, one per chunk of recordings.

A staging file contains each crop's int16 signal followed by its metadata as JSON. Its index has their offsets, and all that
planning needs to split and shuffle without reading the crops: seeded hashes of key and patient, and the hash of the signal.
The index is written last, so a chunk with an index is finished.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from data_tools.build.crops import SkipReasons, UsableCrop, crop_key, usable_crops
from data_tools.build.options import BuildOptions
from data_tools.build.processes import begin_part
from data_tools.files import atomic_write
from data_tools.leads import LEADS
from data_tools.quality.table import QualityLog
from data_tools.recording import Recording
from data_tools.signal_ops import hash_signal
from data_tools.sources import make_source
from data_tools.sources.protocol import RecordingFile
from data_tools.splits import seeded_hash

# One row per crop in the index of a chunk; `recording` is the number of the recording in the build.
INDEX_DTYPE = np.dtype(
    [
        ("recording", "<i8"),
        ("order", "<u8"),  # sorting by it shuffles the crops
        ("patient", "<u8"),
        ("signal", "V16"),
        ("offset", "<i8"),  # offset of the signal in the staging file
        ("metadata_bytes", "<i4"),
        ("num_valid_samples", "<i4"),
    ]
)


@dataclass(frozen=True)
class ChunkTask:
    """A chunk of recordings to stage.

    Attributes:
        folder: folder of the staging files.
        number: number of the chunk.
        options: the options of the build.
        recordings: pairs (number of the recording in the build, file).
        rejected: recordings not to open, by number, with the reason.
    """

    folder: Path
    number: int
    options: BuildOptions
    recordings: tuple[tuple[int, RecordingFile], ...]
    rejected: dict[int, str] = field(default_factory=dict)

    def reject(self, recording: int, reason: str) -> Self:
        """Returns the chunk with a recording marked as rejected; the reason becomes a note."""
        return replace(self, rejected={**self.rejected, recording: reason})


@dataclass(frozen=True, slots=True)
class Note:
    """Why a recording was not used completely; ``is_skipped``: crops were skipped, not just parts of the description."""

    recording: int
    reason: str
    is_skipped: bool


def crops_path(folder: Path, number: int) -> Path:
    """Path of a chunk's staging file."""
    return folder / f"chunk-{number:06d}.crops"


def quality_path(folder: Path, number: int) -> Path:
    """Path of a chunk's rows of quality.parquet."""
    return folder / f"chunk-{number:06d}.quality"


def index_path(folder: Path, number: int) -> Path:
    """Path of a chunk's index."""
    return folder / f"chunk-{number:06d}.npy"


def notes_path(folder: Path, number: int) -> Path:
    """Path of a chunk's notes."""
    return folder / f"chunk-{number:06d}.json"


def stage_chunk(task: ChunkTask) -> int:
    """Stages a chunk; problems with its recordings become notes.

    Returns:
        The number of recordings in the chunk.

    Raises:
        OSError: the staging files cannot be written.
    """
    options = task.options
    source = make_source(options.source, options.inputs, options.accept)
    rows: list[tuple[Any, ...]] = []
    notes: list[Note] = []
    quality = None if options.quality is None else QualityLog(options.quality)
    with atomic_write(crops_path(task.folder, task.number)) as file:
        for number, recording_file in task.recordings:
            if number in task.rejected:
                notes.append(Note(number, task.rejected[number], True))
                continue
            begin_part(number)
            num_before = len(rows)
            skip_reasons, description_notes = SkipReasons(), []
            for recording, crop in usable_crops(source, recording_file, skip_reasons, quality):
                rows.append(_write_crop(file, recording, crop, number, options.seed))
                description_notes = list(recording.notes)
            notes += [Note(number, reason, True) for reason in skip_reasons.reasons(len(rows) - num_before)]
            notes += [Note(number, reason, False) for reason in description_notes]
        begin_part(None)
    with atomic_write(notes_path(task.folder, task.number)) as file:
        file.write(json.dumps([[note.recording, note.reason, note.is_skipped] for note in notes]).encode())
    if quality is not None:
        with atomic_write(quality_path(task.folder, task.number)) as file:
            quality.write(file)
    with atomic_write(index_path(task.folder, task.number)) as file:
        np.save(file, np.array(rows, dtype=INDEX_DTYPE))
    return len(task.recordings)


def _write_crop(file: IO[bytes], recording: Recording, crop: UsableCrop, number: int, seed: int) -> tuple[Any, ...]:
    """Appends a crop to a staging file; returns its row of the index."""
    signal = np.ascontiguousarray(crop.signal, dtype="<i2")
    signal_hash = hash_signal(signal)
    key = crop_key(recording, crop)
    # Includes the source, because patients of two corpora may have the same name.
    patient = f"{recording.source}/{recording.patient}"
    metadata = {
        "key": key,
        "source": recording.source,
        "recording": recording.name,
        "patient": patient,
        "start": crop.start,
        "num_valid_samples": crop.num_valid_samples,
        "sampling_rate": float(recording.sampling_rate),
        "leads": [lead for lead in LEADS if lead in recording.leads],
        "age": recording.age,
        "sex": recording.sex,
        "labels": list(recording.labels),
        "num_clipped": crop.num_clipped,
        "num_flat_leads": crop.num_flat_leads,
        "rms_uv": crop.rms_uv,
        "signal_hash": signal_hash.hex(),
    }
    encoded = json.dumps(metadata, separators=(",", ":")).encode()
    offset = file.tell()
    file.write(signal.data)
    file.write(encoded)
    return (
        number,
        seeded_hash(seed, "order", key),
        seeded_hash(seed, "patient", patient),
        signal_hash,
        offset,
        len(encoded),
        crop.num_valid_samples,
    )


def make_chunks(
    recordings: Iterable[tuple[int, RecordingFile]], max_recordings: int, max_bytes: int
) -> Iterator[tuple[tuple[int, RecordingFile], ...]]:
    """Yields consecutive chunks of recordings that take about the same time."""
    chunk: list[tuple[int, RecordingFile]] = []
    size = 0
    for number, file in recordings:
        chunk.append((number, file))
        size += file.size
        if len(chunk) == max_recordings or size >= max_bytes:
            yield tuple(chunk)
            chunk, size = [], 0
    if chunk:
        yield tuple(chunk)


def read_notes(folder: Path, number: int) -> list[Note]:
    """Reads the notes of a staged chunk."""
    return [Note(*entry) for entry in json.loads(notes_path(folder, number).read_bytes())]


def read_staged_index(folder: Path, number: int) -> NDArray[np.void]:
    """Reads the index of a staged chunk: a structured array of INDEX_DTYPE."""
    index: NDArray[np.void] = np.load(index_path(folder, number), allow_pickle=False)
    return index
