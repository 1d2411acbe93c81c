"""The classes of the Challenge and of PTB-XL."""

import csv
from pathlib import Path

import pyarrow as pa
import pytest

from data_tools.diagnoses import SCORED_DIAGNOSES
from data_tools.labels import PTBXL_LEVELS, LabelError, cinc2021, ptbxl, read_ptbxl_database

CINC2021 = Path(__file__).resolve().parents[3] / "golden" / "cinc2021"


def test_cinc2021_follows_the_published_tables() -> None:
    definition = cinc2021()
    assert definition.codes is not None
    with (CINC2021 / "weights.csv").open(newline="") as file:
        order = [set(name.split("|")) for name in next(csv.reader(file))[1:]]
    assert [set(codes) for codes in definition.codes] == order
    with (CINC2021 / "dx_mapping_scored.csv").open(newline="") as file:
        scored = {row["SNOMEDCTCode"]: row["Notes"] for row in csv.DictReader(file)}
    assert {code for codes in definition.codes for code in codes} == set(scored) == set(SCORED_DIAGNOSES)
    for codes in definition.codes:
        assert all(other in scored[code] for code in codes for other in codes if len(codes) > 1)
        assert len(codes) > 1 or not scored[codes[0]]


@pytest.mark.parametrize(
    ("level", "num_classes"),
    [("all", 71), ("diagnostic", 44), ("subdiagnostic", 23), ("superdiagnostic", 5), ("form", 19), ("rhythm", 12)],
)
def test_ptbxl_has_the_published_numbers_of_classes(level: str, num_classes: int) -> None:
    definition = ptbxl(level)
    assert len(definition.classes) == num_classes
    assert list(definition.classes) == sorted(definition.classes)
    assert definition.codes is not None
    num_statements = 44 if "diagnostic" in level else num_classes
    assert len({code for codes in definition.codes for code in codes}) == num_statements


def test_ptbxl_groups() -> None:
    superclass, subclass = ptbxl("superdiagnostic"), ptbxl("subdiagnostic")
    assert superclass.classes == ("CD", "HYP", "MI", "NORM", "STTC")
    assert superclass.codes is not None
    assert subclass.codes is not None
    assert [len(codes) for codes in superclass.codes] == [11, 5, 14, 1, 13]
    groups = dict(zip(subclass.classes, map(set, subclass.codes), strict=True))
    assert groups["_AVB"] == {"1AVB", "2AVB", "3AVB"}
    assert groups["IMI"] == {"IMI", "ILMI", "IPMI", "IPLMI", "INJIN", "INJIL"}
    # Each group lies within one superclass.
    for codes in subclass.codes:
        assert sum(set(codes) <= set(other) for other in superclass.codes) == 1
    diagnostic, form, rhythm = (set(ptbxl(level).classes) for level in ("diagnostic", "form", "rhythm"))
    assert diagnostic & form == {"NDT", "NST_", "DIG", "LNGQT"}
    assert not rhythm & (diagnostic | form)
    assert set(ptbxl("all").classes) == diagnostic | form | rhythm


DATABASE = """ecg_id,patient_id,report,scp_codes
1,15709.0,"a report,
of two lines","{'NORM': 100.0, 'LVOLT': 0.0, 'SR': 0.0}"
20,13243.0,,"{'IMI': 35.0, '1AVB': 100.0, 'ABQRS': 0.0}"
300,1.0,,"{'SR': 0.0}"
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "ptbxl_database.csv"
    path.write_text(DATABASE)
    return path


def samples(*recordings: str) -> pa.Table:
    return pa.table({"recording": pa.array(recordings, pa.string())})


def test_reads_the_database_of_ptbxl(database: Path) -> None:
    labels = read_ptbxl_database(database, "superdiagnostic").label(
        samples("HR00020", "00001_hr", "HR00300", "HR00002", "E00020", "00020", "00020_lr")
    )
    found = [{labels.definition.classes[c] for c in range(5) if row[c]} for row in labels.values]
    assert found == [{"MI", "CD"}, {"NORM"}, set(), set(), set(), set(), {"MI", "CD"}]
    # The third has a rhythm only, the others are not in the database or not of PTB-XL.
    assert labels.is_labeled.tolist() == [True, True, False, False, False, False, True]


def test_every_statement_counts_unless_a_likelihood_is_asked_for(database: Path) -> None:
    names = ptbxl("all").classes
    for minimum, expected in ((0.0, {"IMI", "1AVB", "ABQRS"}), (50.0, {"1AVB"})):
        row = read_ptbxl_database(database, "all", minimum).label(samples("HR00020")).values[0]
        assert {names[c] for c in row.nonzero()[0]} == expected


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("{'XYZ': 100.0}", "ecg_id 1: unknown statement 'XYZ'"),
        ("NORM", "ecg_id 1: invalid scp_codes 'NORM'"),
        ("{'NORM': __import__('os')}", "ecg_id 1: invalid scp_codes"),
        ("{'NORM': 'a'}", "ecg_id 1: invalid scp_codes"),
        ("{1: 2.0}", "ecg_id 1: invalid scp_codes"),
    ],
)
def test_mistakes_in_the_database(tmp_path: Path, statements: str, message: str) -> None:
    path = tmp_path / "ptbxl_database.csv"
    path.write_text(f'ecg_id,scp_codes\n1,"{statements}"\n')
    with pytest.raises(LabelError, match=message):
        read_ptbxl_database(path, "all")


def test_another_file_or_level(tmp_path: Path, database: Path) -> None:
    with pytest.raises(LabelError, match=f"unknown level 'super' of PTB-XL; known: {', '.join(PTBXL_LEVELS)}"):
        read_ptbxl_database(database, "super")
    path = tmp_path / "other.csv"
    path.write_text("recording,scp_codes\n1,a\n")
    with pytest.raises(LabelError, match="no column 'ecg_id'; known: recording, scp_codes"):
        read_ptbxl_database(path, "all")
