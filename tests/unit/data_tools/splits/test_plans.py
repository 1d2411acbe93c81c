"""Plans: who is in which split."""

import json
import shlex
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from cohort_tables import Persons, crop_rows, random_cohort, write_patients, write_tables
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.cli import main
from data_tools.labels import LabelError
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, PlanInfo
from data_tools.shards.plans import held_out, plan_splits, plans_info, read_plan
from data_tools.shards.tables import read_groups
from data_tools.shards.verify_table import check_plans
from data_tools.splits.cohort import PlanError
from data_tools.splits.description import describe_plans
from data_tools.splits.plans import ColumnPlan, KFoldPlan, PaperPlan, RandomPlan
from data_tools.splits.writing import split_dataset


def read_rows(dataset: Dataset) -> list[dict[str, object]]:
    """Rows of samples.parquet with the columns of all plans."""
    assert dataset.manifest.splits is not None
    samples, plans = (
        pa.concat_tables(read_groups(dataset.path / name)).to_pylist()
        for name in ("samples.parquet", dataset.manifest.splits.file)
    )
    assert [row["key"] for row in samples] == [row["key"] for row in plans]
    return [{**sample, **plan} for sample, plan in zip(samples, plans, strict=True)]


def persons_of(patients: dict[int, int], repeats: list[tuple[str, str]], rows: list[dict[str, object]]) -> dict[object, str]:
    """Person of each recording, from the rules and not from the tables."""
    by_id = {f"HR{number:05d}": f"patient {patient}" for number, patient in patients.items()}
    name_of = {row["recording"]: by_id.get(str(row["recording"]), str(row["patient"])) for row in rows}
    persons = Persons()
    for one, other in repeats:
        if (first := name_of.get(one, by_id.get(one))) and (second := name_of.get(other, by_id.get(other))):
            persons.join(first, second)
    return {recording: persons.find(name) for recording, name in name_of.items()}


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.integers(0, 9))
def test_no_person_is_in_two_splits(cohort: int, seed: int) -> None:
    rows, patients, repeats = random_cohort(np.random.default_rng(cohort))
    with TemporaryDirectory() as folder:
        path = write_tables(Path(folder) / "dataset", rows, repeats, num_valid=7)
        table = write_patients(Path(folder) / "ptbxl_database.csv", patients)
        split_dataset(path, PaperPlan(), seed, table)
        split_dataset(path, RandomPlan(fractions=(0.6, 0.2, 0.2)), seed)
        dataset = split_dataset(path, KFoldPlan(num_folds=4), seed)
        assert dataset.manifest.splits is not None
        assert not list(check_plans(path / "samples.parquet", dataset.manifest.splits))
        found = read_rows(dataset)
        is_held_out = held_out(dataset)
    person = persons_of(patients, repeats, rows)
    for plan in ("pretrain", "diagnosis", "identification", "random", "kfold"):
        splits = defaultdict(set)
        for row in found:
            splits[person[row["recording"]]].add(str(row[plan]).replace("probe", "gallery"))
        assert all(len(own - {""}) < 2 for own in splits.values()), plan
    assert all(row["random"] and row["kfold"] for row in found)
    used = {person[row["recording"]] for row in found if row["pretrain"]}
    out = {
        row["recording"]
        for row in found
        if row["diagnosis"] in {"valid", "test"} or row["identification"] in {"gallery", "probe"}
    }
    assert used.isdisjoint(person[recording] for recording in out)
    assert used | {person[recording] for recording in out} == set(person.values())
    for row, is_out in zip(found, is_held_out, strict=True):
        assert is_out == (row["diagnosis"] in {"valid", "test"} or row["identification"] in {"gallery", "probe"})
        assert bool(row["diagnosis"]) == (row["source"] in {"cpsc_2018", "georgia"})
        assert (row["identification"] in {"train", "valid"}) == bool(row["pretrain"])
    check_pairs(found, person, patients)


def check_pairs(found: list[dict[str, object]], person: dict[object, str], patients: dict[int, int]) -> None:
    """Gallery and probe have the same persons, a session each, and a complete segment."""
    pairs: dict[str, dict[object, object]] = defaultdict(dict)
    sessions = defaultdict(set)
    for row in found:
        if row["source"] == "ptb-xl":
            sessions[person[row["recording"]]].add(row["recording"])
        if row["identification"] in {"gallery", "probe"}:
            assert row["identification"] not in pairs[person[row["recording"]]]
            pairs[person[row["recording"]]][row["identification"]] = row["recording"]
            assert row["identification_segment"] in range(int(str(row["num_valid_samples"])) // 2500)
        else:
            assert row["identification_segment"] == -1
    assert pairs.keys() == {name for name, own in sessions.items() if len(own) > 1}
    assert all(len(pair) == 2 and pair["gallery"] != pair["probe"] for pair in pairs.values())


@pytest.fixture
def ptbxl(tmp_path: Path) -> tuple[Path, Path]:
    """A dataset in which patient 1 has three sessions and patient 2 two recordings of one session."""
    rows = [row for number in range(40) for row in crop_rows("georgia", f"E{number}", num_crops=2)]
    rows += [row for number in range(1, 9) for row in crop_rows("ptb-xl", f"HR{number:05d}")]
    patients = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 4, 8: 5}
    dates = {1: "2001-01-01", 2: "2000-01-01", 3: "1999-01-01", 4: "2002-02-02", 5: "2002-02-02"}
    return write_tables(tmp_path / "dataset", rows), write_patients(tmp_path / "ptbxl_database.csv", patients, dates)


def test_the_earlier_of_two_sessions_is_the_gallery(ptbxl: tuple[Path, Path]) -> None:
    chosen = set()
    for seed in range(4):
        rows = read_rows(split_dataset(ptbxl[0], PaperPlan(), seed, ptbxl[1], replace=True))
        pair = {row["identification"]: row["recording"] for row in rows if row["identification"] in {"gallery", "probe"}}
        assert str(pair["gallery"]) > str(pair["probe"])  # later recordings have earlier dates
        assert not any(row["pretrain"] for row in rows if row["patient"] == "ptb-xl/patient 1")
        assert all(row["pretrain"] for row in rows if row["patient"] == "ptb-xl/patient 2")
        chosen.add(tuple(pair.values()))
    assert len(chosen) > 1


def test_plans_are_added_without_changing_the_rest(ptbxl: tuple[Path, Path]) -> None:
    path, patients = ptbxl
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    fingerprint = Dataset.open(path).fingerprint
    first = split_dataset(path, PaperPlan(), 3, patients)
    paper = [{key: row[key] for key in ("pretrain", "diagnosis", "identification", "patient")} for row in read_rows(first)]
    again = split_dataset(path, PaperPlan(), 3, patients)
    assert again.manifest == first.manifest == Dataset.open(path).manifest
    last = split_dataset(path, RandomPlan("mine", (0.5, 0.5)), 1)
    assert [row.items() >= old.items() for row, old in zip(read_rows(last), paper, strict=True)] == [True] * len(paper)
    assert last.fingerprint == fingerprint
    assert len(list(path.glob("*splits*"))) == 1
    for file, content in before.items():
        if file.name != "manifest.json":
            assert file.read_bytes() == content
    manifest = json.loads((path / "manifest.json").read_text())
    info = manifest.pop("splits")
    assert json.loads(before[path / "manifest.json"]) == manifest
    assert info["plans"]["mine"] == {
        "kind": "random",
        "options": {"fractions": [0.5, 0.5]},
        "seed": 1,
        "patients": info["plans"]["pretrain"]["patients"],
        "counts": info["plans"]["mine"]["counts"],
        "held_out": [],
    }
    assert info["plans"]["identification"]["held_out"] == ["gallery", "probe"]
    assert info["plans"]["identification"]["counts"]["probe"] == {
        "recordings": 1, "patients": 1, "crops": 1, "complete_crops": 1, "segments": 1,
    }  # fmt: skip
    other = write_patients(path.parent / "other.csv", {1: 1, 2: 2})
    with pytest.raises(PlanError, match="plan 'pretrain' was made with a different patient table than"):
        split_dataset(path, RandomPlan("mine"), 1, other)


def test_an_interrupted_split_leaves_the_dataset_as_it_was(ptbxl: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(folder: Path, manifest: object) -> None:
        raise KeyboardInterrupt

    path = ptbxl[0]
    first = split_dataset(path, RandomPlan("one"))
    with monkeypatch.context() as patch:
        patch.setattr("data_tools.splits.writing.write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            split_dataset(path, RandomPlan("two"))
    assert Dataset.open(path).manifest == first.manifest
    assert len(read_rows(Dataset.open(path))) == 88
    split_dataset(path, RandomPlan("two"))
    assert len(list(path.glob("splits-*"))) == 1


def test_a_plan_made_with_other_options_is_replaced_only_on_request(ptbxl: tuple[Path, Path]) -> None:
    path, _ = ptbxl
    first = split_dataset(path, RandomPlan("mine", (0.6, 0.2, 0.2), ("test",)), 3)
    assert split_dataset(path, RandomPlan("mine", (0.6, 0.2, 0.2), ("test",)), 3).manifest == first.manifest
    made = "`--plan random --name mine --fractions 0.6,0.2,0.2 --hold-out test --seed 3`"
    for plan, seed in (
        (RandomPlan("mine"), 3),
        (RandomPlan("mine", (0.6, 0.2, 0.2)), 3),
        (RandomPlan("mine", (0.6, 0.2, 0.2), ("test",)), 4),
        (KFoldPlan("mine"), 3),
    ):
        with pytest.raises(PlanError, match=f"plan 'mine' was made with {made}; replace it with `ecg-data split --replace`"):
            split_dataset(path, plan, seed)
    assert Dataset.open(path).manifest == first.manifest
    assert not list(path.glob("*.tmp"))
    split_dataset(path, RandomPlan("mine"), 3, replace=True)
    assert plans_info(Dataset.open(path)).plans["mine"].held_out == ()


def test_info_prints_the_options_that_make_a_plan_again(ptbxl: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path, patients = ptbxl
    monkeypatch.chdir(patients.parent)
    values = {"train": ("2", "3"), "test": ("6",)}
    split_dataset(path, PaperPlan(), 2, patients)
    split_dataset(path, ColumnPlan("folds", patients, "strat_fold", values, ("test",)), 0, patients)
    made = dataset_plans(path)
    commands = [line.partition(": ecg-data split ")[2] for line in describe_plans(Dataset.open(path)) if "made by" in line]
    assert len(commands) == 2
    for command in commands:
        assert main(["split", *shlex.split(command.replace("FILE", patients.name))]) == 0
    assert dataset_plans(path) == made


def dataset_plans(path: Path) -> dict[str, PlanInfo]:
    return plans_info(Dataset.open(path)).plans


def test_a_fold_is_for_testing_and_the_next_one_for_validation(ptbxl: tuple[Path, Path]) -> None:
    dataset = split_dataset(ptbxl[0], KFoldPlan("cv", 4))
    folds = read_plan(dataset, "cv")
    assert folds.splits == ("fold-0", "fold-1", "fold-2", "fold-3")
    for fold in range(4):
        plan = read_plan(dataset, f"cv/{fold}")
        assert plan.splits == plan_splits(dataset, f"cv/{fold}") == ("train", "valid", "test")
        np.testing.assert_array_equal(plan.is_in("test"), folds.is_in(f"fold-{fold}"))
        np.testing.assert_array_equal(plan.is_in("valid"), folds.is_in(f"fold-{(fold + 1) % 4}"))
        assert plan.is_in("train", "valid", "test").all()
    for name, message in [
        ("cv/4", "plan 'cv' has no fold 4; it has fold-0, fold-1"),
        ("diagnosis", "no plan 'diagnosis'; available: cv"),
    ]:
        with pytest.raises(DatasetError, match=message):
            read_plan(dataset, name)
    with pytest.raises(DatasetError, match="plan 'cv/0' has no split 'probe'; available: train, valid, test"):
        read_plan(dataset, "cv/0").is_in("probe")


def test_a_column_of_a_table_gives_the_splits(ptbxl: tuple[Path, Path]) -> None:
    values = {"train": ("2", "3", "4"), "test": ("5", "6")}
    dataset = split_dataset(ptbxl[0], ColumnPlan("folds", ptbxl[1], "strat_fold", values, ("test",)), 0, ptbxl[1])
    found = {row["recording"]: row["folds"] for row in read_rows(dataset)}
    assert [found[f"HR{number:05d}"] for number in range(1, 9)] == ["train"] * 6 + ["test"] * 2
    assert found["E0"] == ""
    assert held_out(dataset).sum() == 2


def bad_table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


MISTAKES = [
    ("folds", "recording,fold\nE0,1\n", r"t\.csv: no column 'folds'; did you mean 'fold'\?"),
    ("fold", "fold\n1\n2\n", r"t\.csv: no column 'key', 'recording' or 'ecg_id'"),
    ("fold", "recording,fold\nX,1\nY,2\n", "none of the 2 values of 'recording' is in .*: X, Y"),
    ("fold", "recording,fold\nE0,1\nE0,2\n", "rows for E0 disagree: 'fold' is both"),
    ("fold", "recording,fold\nE0,1\nE1,3\n", r"column 'fold' has no value 2 \(--test\); it has 1, 3"),
    ("fold", "key,fold\ngeorgia-E0-0,1\ngeorgia-E0-1,2\n", "puts 1 patient in more than one split, such as georgia/E0"),
]


@pytest.mark.parametrize(("column", "text", "message"), MISTAKES)
def test_a_table_that_gives_no_splits_is_refused(ptbxl: tuple[Path, Path], column: str, text: str, message: str) -> None:
    table = bad_table(ptbxl[0].parent / "t.csv", text)
    with pytest.raises((PlanError, LabelError), match=message) as error:
        split_dataset(ptbxl[0], ColumnPlan("x", table, column, {"train": ("1",), "test": ("2",)}))
    assert "\n" not in str(error.value)
    assert Dataset.open(ptbxl[0]).manifest.splits is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ecg_id,patient_id\n1,1.0\n", "no column 'recording_date'"),
        ("ecg_id,patient_id,recording_date\n1,one,x\n", "column 'patient_id' must contain whole numbers"),
        ("ecg_id,patient_id,recording_date\n1,1.0,x\n1,2.0,x\n", "ecg_id 1 is listed more than once"),
        (
            "ecg_id,patient_id,recording_date\n91,1.0,x\n92,1.0,y\n",
            "none of the 2 values of 'ecg_id' names a recording .*: 91, 92",
        ),
        ("ecg_id,patient_id,recording_date\n1,1.0,x\n2,2.0,x\n", "no patient of ptb-xl has two sessions.*--patients"),
    ],
)
def test_patients_that_cannot_be_used_are_refused(ptbxl: tuple[Path, Path], text: str, message: str) -> None:
    with pytest.raises((PlanError, LabelError), match=message):
        split_dataset(ptbxl[0], PaperPlan(), 0, bad_table(ptbxl[0].parent / "p.csv", text))


def test_no_split_is_empty(tmp_path: Path) -> None:
    rows = [row for name in "ABC" for row in crop_rows("ningbo", name)]
    path = write_tables(tmp_path / "dataset", rows)
    found = read_rows(split_dataset(path, RandomPlan()))
    assert sorted(str(row["random"]) for row in found) == ["test", "train", "valid"]
    with pytest.raises(PlanError, match=r"diagnosis: at least 3 patients of cpsc_2018, .* are needed for .* only 0 were found"):
        split_dataset(path, PaperPlan())
    with pytest.raises(PlanError, match="random: at least 3 patients are needed for train, valid, test, but only 2 were found"):
        split_dataset(write_tables(tmp_path / "two", rows[:2]), RandomPlan())


@pytest.mark.parametrize("name", ["key", "patient", "Mine", "a/b", "x_segment", ""])
def test_some_names_are_no_column(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match=f"'{name}' is not a valid plan name"):
        split_dataset(tmp_path, RandomPlan(name))


def test_info_prints_the_counts_beside_the_papers(ptbxl: tuple[Path, Path]) -> None:
    path, patients = ptbxl
    assert not list(describe_plans(Dataset.open(path)))
    lines = list(describe_plans(split_dataset(path, RandomPlan("mine"), 0)))
    assert lines[1].split() == ["plan", "split", "recordings", "patients", "crops", "segments"]
    assert len(lines) == 6
    split_dataset(path, RandomPlan("held", hold_out=("test",)), 0)
    lines = [" ".join(line.split()) for line in describe_plans(split_dataset(path, PaperPlan(), 0, patients))]
    assert "plan split recordings patients crops segments in the paper" in lines
    assert "diagnosis train 32 32 64 128 32640" in lines
    assert "identification probe 1 1 1 1 2127" in lines
    assert "pretrain all 37 36 69 138 189051" in lines
    assert "held out from pre-training: test of held" in lines
    assert "held out from pre-training: gallery, probe of identification" in lines
    starts = (
        "pretrain, all: ",
        "diagnosis, train, valid, test: ",
        "identification, train, valid: ",
        "identification, gallery, ",
    )
    assert all(any(line.startswith(start) for line in lines) for start in starts)
