"""The plan of a build against one made in memory, from the same indexes."""

import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_tools.build.known_crops import KNOWN_SCHEMA, KnownCrops
from data_tools.build.planning import make_plan
from data_tools.build.staging import INDEX_DTYPE, index_path
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES

Place = tuple[int, int, int]  # chunk, offset, bytes of metadata


def signal(number: int) -> bytes:
    # Two whose first halves are equal are two nonetheless.
    return (number // 2).to_bytes(8) + number.to_bytes(8)


@st.composite
def staged(draw: st.DrawFn) -> list[NDArray[np.void]]:
    """Chunks of recordings of one to three crops; patients have several, and signals and shuffling hashes are often equal."""
    chunks: list[NDArray[np.void]] = []
    recording = 0
    for _ in range(draw(st.integers(0, 4))):
        rows: list[tuple[int | bytes, ...]] = []
        for _ in range(draw(st.integers(0, 5))):
            patient = draw(st.sampled_from([0, 1, 2, 3, 2**63, 2**64 - 1]))
            for _ in range(draw(st.integers(1, 3))):
                order = draw(st.sampled_from([0, 1, 2**63, 2**64 - 1]))
                content = signal(draw(st.integers(0, 25)))
                num_valid = draw(st.sampled_from([CROP_SAMPLES, 2600]))
                rows.append((recording, order, patient, content, len(rows) * 1000, 300 + len(rows), num_valid))
            recording += draw(st.integers(1, 2))
        chunks.append(np.array(rows, dtype=INDEX_DTYPE))
    return chunks


def plan_in_memory(
    chunks: list[NDArray[np.void]], fraction: float
) -> tuple[dict[str, list[Place]], dict[str, tuple[int, ...]], list[tuple[int, int]]]:
    """The places of each split in order, its counts, and for each crop that is not used (recording, recording repeated)."""
    first: dict[bytes, tuple[int, int]] = {}
    used, repeats, links = [], [], set()
    for chunk, index in enumerate(chunks):
        for row in index:
            recording, patient = int(row["recording"]), int(row["patient"])
            if (content := row["signal"].tobytes()) in first:
                repeats.append((recording, first[content][0]))
                links.add((patient, first[content][1]))
            else:
                first[content] = (recording, patient)
                used.append((chunk, row))
    root = {int(row["patient"]): int(row["patient"]) for index in chunks for row in index}
    for one, other in sorted(links):
        old, new = root[one], root[other]
        root = {patient: new if above == old else above for patient, above in root.items()}
    roots = sorted({root[int(row["patient"])] for _, row in used})
    valid = set(roots[: max(min(math.ceil(fraction * len(roots)), len(roots) - 1), 0)])
    places: dict[str, list[Place]] = {}
    counts: dict[str, tuple[int, ...]] = {}
    for split in ("pretrain", "valid"):
        own = [(chunk, row) for chunk, row in used if (root[int(row["patient"])] in valid) == (split == "valid")]
        own.sort(key=lambda crop: int(crop[1]["order"]))  # stable, so equal ones stay in the order of the input
        places[split] = [(chunk, int(row["offset"]), int(row["metadata_bytes"])) for chunk, row in own]
        num_valid = [int(row["num_valid_samples"]) for _, row in own]
        counts[split] = (
            len({int(row["recording"]) for _, row in own}),
            len({int(row["patient"]) for _, row in own}),
            len(own),
            num_valid.count(CROP_SAMPLES),
            sum(num // SEGMENT_SAMPLES for num in num_valid),
        )
    return places, counts, repeats


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(chunks=staged(), fraction=st.floats(0, 0.9), crops_per_shard=st.integers(1, 7))
def test_a_plan_is_the_one_made_in_memory(chunks: list[NDArray[np.void]], fraction: float, crops_per_shard: int) -> None:
    places, counts, repeats = plan_in_memory(chunks, fraction)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, index in enumerate(chunks):
            np.save(index_path(folder, number), index)
        num_files = len(list(folder.iterdir()))
        with make_plan(folder, len(chunks), fraction) as plan:
            assert {split: tuple(found.model_dump().values()) for split, found in plan.counts.items()} == counts
            for split, expected in places.items():
                shards = [[tuple(place) for place in shard.tolist()] for shard in plan.places(split, crops_per_shard)]
                assert all(len(shard) == crops_per_shard for shard in shards[:-1])
                assert [place for shard in shards for place in shard] == expected
            assert list(plan.repeats()) == [(*pair, times) for pair, times in sorted(Counter(repeats).items())]
            num_staged = Counter(int(recording) for index in chunks for recording in index["recording"])
            num_used = num_staged - Counter(recording for recording, _ in repeats)
            assert list(plan.num_used()) == sorted(num_used.items())
        assert len(list(folder.iterdir())) == num_files


class KnownInMemory:
    """Crops (number of the signal, patient, whether in the validation split) as those of a dataset."""

    def __init__(self, crops: list[tuple[int, int, bool]]) -> None:
        self.crops = crops
        self.num_crops = len(crops)
        valid = {patient for _, patient, is_valid in crops if is_valid}
        self.num_patients = {"pretrain": len({patient for _, patient, _ in crops} - valid), "valid": len(valid)}

    def read(self) -> Iterator[pa.RecordBatch]:
        signals = [np.frombuffer(signal(number), np.uint64).tolist() for number, _, _ in self.crops]
        rows = [
            {"signal_low": low, "signal_high": high, "patient": patient, "is_valid": is_valid, "row": row}
            for row, ((low, high), (_, patient, is_valid)) in enumerate(zip(signals, self.crops, strict=True))
        ]
        yield pa.RecordBatch.from_pylist(rows, KNOWN_SCHEMA)


@st.composite
def known_crops(draw: st.DrawFn) -> KnownInMemory:
    """Crops of patients, some of whom occur in the input, too, each in one split; each signal occurs once."""
    is_valid = {patient: draw(st.booleans()) for patient in (0, 1, 2**64 - 1, 100, 101)}
    numbers = draw(st.lists(st.integers(0, 30), unique=True, max_size=10))
    patients = [draw(st.sampled_from(sorted(is_valid))) for _ in numbers]
    return KnownInMemory([(number, patient, is_valid[patient]) for number, patient in zip(numbers, patients, strict=True)])


@settings(max_examples=50)
@given(chunks=staged(), known=known_crops(), fraction=st.floats(0, 0.9))
def test_an_addition_keeps_signals_unique_and_patients_in_one_split(
    chunks: list[NDArray[np.void]], known: KnownInMemory, fraction: float
) -> None:
    with tempfile.TemporaryDirectory() as name:
        for number, index in enumerate(chunks):
            np.save(index_path(Path(name), number), index)
        with make_plan(Path(name), len(chunks), fraction, known=cast("KnownCrops", known)) as plan:
            places = {split: np.concatenate([np.empty((0, 3), int), *plan.places(split, 5)]) for split in ("pretrain", "valid")}
            counts = plan.counts
            in_both = dict(plan.in_both_splits())
    rows = {
        split: [chunks[chunk][chunks[chunk]["offset"] == offset][0] for chunk, offset, _ in own.tolist()]
        for split, own in places.items()
    }
    used = [row["signal"].tobytes() for own in rows.values() for row in own]
    known_signals = {signal(number) for number, _, _ in known.crops}
    assert len(set(used)) == len(used)
    assert not known_signals & set(used)
    staged_rows = [row for index in chunks for row in index]
    distinct = {row["signal"].tobytes() for row in staged_rows} - known_signals
    assert len(distinct) == len(used) + sum(in_both.values())
    # A patient of the dataset stays; others follow those with whom they share a signal, unless these are in both splits.
    splits = {patient: is_valid for _, patient, is_valid in known.crops}
    used_splits = {int(row["patient"]): split == "valid" for split, own in rows.items() for row in own}
    assert all(splits.get(patient, is_valid) == is_valid for patient, is_valid in used_splits.items())
    owners: dict[bytes, set[int]] = {}
    for content, patient in [(signal(number), patient) for number, patient, _ in known.crops] + [
        (row["signal"].tobytes(), int(row["patient"])) for row in staged_rows
    ]:
        owners.setdefault(content, set()).add(patient)
    for patients in owners.values():
        new = [used_splits[patient] for patient in patients if patient in used_splits and patient not in splits]
        old = [splits[patient] for patient in patients if patient in splits]
        assert len(set(new)) <= 1
        assert not new or not old or set(old) == set(new)
    if not in_both:
        assert len(used_splits) == sum(own.patients for own in counts.values()) + len(splits.keys() & used_splits.keys())
    assert sum(own.crops for own in counts.values()) == len(used)


@pytest.mark.parametrize("known_signal", [0, 20])  # the dataset has the signal that all of them record, or has it not
def test_a_new_patient_who_shares_a_signal_with_both_splits_is_left_out(tmp_path: Path, known_signal: int) -> None:
    known = KnownInMemory([(known_signal, 1, False), (2, 2, True)])
    contents = [(1, 0), (2, 0), (3, 0), (3, 4)]  # patient and signal
    rows = [(i, i, patient, signal(number), 0, 300, CROP_SAMPLES) for i, (patient, number) in enumerate(contents)]
    np.save(index_path(tmp_path, 0), np.array(rows, dtype=INDEX_DTYPE))
    with make_plan(tmp_path, 1, 0.0, known=cast("KnownCrops", known)) as plan:
        assert dict(plan.in_both_splits()) == {3: 1}
