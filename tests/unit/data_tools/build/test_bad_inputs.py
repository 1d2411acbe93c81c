"""Recordings that cannot be used, fully or in part, and options and folders that are refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_helpers import all_samples, build, rejected
from numpy.typing import NDArray
from recording_files import random_signal, write_recording

from data_tools.build.options import BuildError, BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.shards.dataset import Dataset
from data_tools.shards.verify import verify_dataset


def _remove(suffix: str) -> Callable[[Path], None]:
    return lambda path: path.with_suffix(suffix).unlink()


def _rewrite(*, signal: NDArray[np.int16] | None = None, **options: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        write_recording(path.parent, path.name, random_signal(99) if signal is None else signal, **options)

    return change


def _with_nan(num_samples: int, position: int) -> NDArray[np.int16]:
    signal = random_signal(99, num_samples)
    signal[3, position] = -32768
    return signal


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_remove(".mat"), "missing .mat"),
        (_remove(".hea"), "missing .hea"),
        (lambda path: os.truncate(path.with_suffix(".mat"), 60_000), "truncated .mat: 60000 of 120024 bytes"),
        (lambda path: os.truncate(path.with_suffix(".mat"), 0), "truncated .mat: 0 of 120024 bytes"),
        (lambda path: path.with_suffix(".hea").write_text(""), "unreadable header: empty"),
        (lambda path: path.with_suffix(".hea").write_bytes(os.urandom(500)), "unreadable header"),
        (_rewrite(signal=_with_nan(5000, 77)), "NaN"),
        (_rewrite(signal=np.zeros((12, 5000), dtype=np.int16)), "all-zero"),
        (_rewrite(signal=np.full((12, 5000), 7, dtype=np.int16)), "flat"),
        (_rewrite(signal=random_signal(99, 2000)), "too short: 4.000 s"),
        (_rewrite(signal=random_signal(99, 5000, 1), leads=["MLII"]), "no known lead: MLII"),
        (_rewrite(gain="1000/mmHg"), "unknown unit: 'mmHg'"),
        (_rewrite(sampling_rate="0"), "unreadable header: record line"),
        (_rewrite(signal=random_signal(1)), "duplicate signal: 1 crop as in "),
    ],
)
def test_a_bad_recording_is_rejected_and_the_others_are_used(
    corpus: Path, tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    change(corpus / "ningbo" / "g1" / "R03")
    summary = build(corpus, tmp_path / "out")
    assert list(verify_dataset(tmp_path / "out")) == []
    assert sum(counts.crops for counts in summary.counts.values()) == 19
    found = rejected(tmp_path / "out")
    assert list(found) == ["R03"]
    ((text, num_used),) = found["R03"]
    assert text.startswith(reason)
    assert num_used == 0
    assert f"rejected 1 ({reason.partition(':')[0]} 1)" in str(summary)


def test_what_cannot_be_used_of_a_recording_is_noted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_recording(folder, "A", _with_nan(15_000, 6000))
    write_recording(folder, "B", random_signal(1), comments=["Dx: 426783006,,nonsense", "Age: old"])
    write_recording(folder, "C", random_signal(2, num_leads=3), leads=["V2", "VX", "I"])
    write_recording(folder, "D", _with_nan(5000, 5), comments=["Age: old"])
    partly = np.concatenate([random_signal(1), random_signal(3)], axis=1)
    write_recording(folder, "E", partly)
    summary = build(folder, tmp_path / "out")
    assert rejected(tmp_path / "out") == {
        "A": [("NaN: 1 of 3 crops", 2)],
        "B": [("invalid Dx: 'nonsense'", 1), ("invalid Age: 'old'", 1)],
        "C": [("unknown lead: 'VX'", 1)],
        "D": [("NaN", 0)],
        "E": [(f"duplicate signal: 1 crop as in {folder / 'B'}", 1)],
    }
    assert summary.rejected == {"NaN": 1}
    assert summary.partly_used.total() == 5
    rows = {row["recording"]: row for row in all_samples(tmp_path / "out")}
    assert rows["B"]["labels"] == ["426783006"]
    assert rows["C"]["leads"] == ["I", "V2"]
    signal, _ = Dataset.open(tmp_path / "out").read_crop(rows["C"]["key"])
    np.testing.assert_array_equal(signal[LEADS.index("V2")], random_signal(2, num_leads=3)[0])
    assert not np.delete(signal, [LEADS.index("I"), LEADS.index("V2")], axis=0).any()


def test_of_equal_names_the_first_is_used(tmp_path: Path) -> None:
    for number, group in enumerate(("g2", "g1", "g3")):
        write_recording(tmp_path / "in" / "georgia" / group, "R", random_signal(number))
    write_recording(tmp_path / "in" / "ningbo" / "g1", "R", random_signal(7))
    build(tmp_path / "in", tmp_path / "out")
    rows = all_samples(tmp_path / "out")
    assert sorted(row["key"] for row in rows) == ["georgia-R-0", "ningbo-R-0"]
    found, _ = Dataset.open(tmp_path / "out").read_crop("georgia-R-0")
    np.testing.assert_array_equal(found, random_signal(1))
    first = tmp_path / "in" / "georgia" / "g1" / "R"
    assert rejected(tmp_path / "out") == {"R": [(f"duplicate record name: same as {first}", 0)] * 2}


def test_a_wrong_number_of_workers_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 0"):
        build(corpus, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"crops_per_shard": 0}, "between 1 and 50000, got 0"),
        ({"crops_per_shard": 50_001}, "between 1 and 50000, got 50001"),
        ({"valid_fraction": 1.0}, "fraction must be"),
        ({"valid_fraction": -0.1}, "fraction must be"),
        ({"num_workers": 0}, "workers must be at least 1"),
    ],
)
def test_impossible_options_are_refused(corpus: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(corpus, tmp_path / "out", **options)


def test_nothing_usable_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    write_recording(tmp_path / "in", "R", np.zeros((12, 5000), dtype=np.int16))
    with pytest.raises(BuildError, match=r"no recording can be used \(all-zero 1\)"):
        build(tmp_path / "in", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_with_something_else_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(BuildError, match="not empty"):
        build(corpus, tmp_path / "out")
    with pytest.raises(BuildError, match="is a file"):
        build(corpus, tmp_path / "out" / "thesis.tex")


def test_a_folder_that_cannot_be_listed_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_recording(tmp_path / "in" / "a", "R1", random_signal(1, 5000))
    (tmp_path / "in" / "b").mkdir()
    list_folder = os.scandir

    def scandir(path: Path | int) -> Any:
        if isinstance(path, Path) and path.name == "b":
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr("data_tools.sources.walk.os.scandir", scandir)
    with pytest.raises(ValueError, match="cannot be listed"):
        build_dataset(BuildOptions("physionet2021", (tmp_path / "in",)), tmp_path / "out", num_workers=1)
    assert not list((tmp_path / "out").iterdir())
