"""The plan of a build against one made in memory, from the same indexes."""

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

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
