"""PTB-XL and MIMIC-IV-ECG: WFDB recordings with a table."""

from pathlib import Path

import pytest
from corpora import write_mimic_iv_ecg, write_ptbxl

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.labels import CodeLabeler, ptbxl, read_ptbxl_database
from data_tools.shards.dataset import Dataset
from data_tools.sources import make_source
from data_tools.sources.descriptions import Description


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def describe(name: str, folder: Path) -> dict[str, Description]:
    return {file.name: Description.decode(file.details) for file in make_source(name, [folder]).find()}


def test_ptbxl_has_patients_ages_and_statements(tmp_path: Path) -> None:
    write_ptbxl(tmp_path)
    replace_in(tmp_path / "ptbxl_database.csv", "2,1002.0,56.0,1,", "2,1002.0,300.0,0,")
    found = describe("ptbxl", tmp_path)
    assert found["00001_hr"] == Description(56.0, "female", ("NORM", "SR"), "patient 1001")
    assert (found["00002_hr"].age, found["00002_hr"].sex) == (None, "male")  # 300 stands for all ages above 89


def test_ptbxl_can_be_split_and_labeled_by_its_table(tmp_path: Path) -> None:
    corpus = write_ptbxl(tmp_path / "in")
    build_dataset(BuildOptions("ptbxl", tuple(corpus.inputs), valid_fraction=0.0), tmp_path / "out", num_workers=1)
    dataset = Dataset.open(tmp_path / "out")
    (samples,) = dataset.iterate_samples("pretrain", None)
    assert set(samples["patient"].to_pylist()) == {f"ptb-xl/patient {number}" for number in (1001, 1002, 1003)}
    table = read_ptbxl_database(tmp_path / "in" / "ptbxl_database.csv", "superdiagnostic")
    assert (table.label(samples).values == CodeLabeler(ptbxl("superdiagnostic")).label(samples).values).all()
    assert table.label(samples).values[:, 3].all()  # NORM


def test_mimic_recordings_are_joined_to_their_subjects(tmp_path: Path) -> None:
    write_mimic_iv_ecg(tmp_path)
    assert describe("mimic_iv_ecg", tmp_path)["40000002"] == Description(patient="10000032")


@pytest.mark.parametrize(
    ("name", "table", "old", "new", "message"),
    [
        ("ptbxl", "ptbxl_database.csv", "scp_codes", "codes", "no column 'scp_codes'"),
        ("ptbxl", "ptbxl_database.csv", "2,1002.0", "1,1002.0", "ecg_id 1 has more than one row"),
        ("ptbxl", "ptbxl_database.csv", "2,1002.0", ",1002.0", "column 'ecg_id' is empty in 1 rows"),
        ("mimic_iv_ecg", "record_list.csv", "subject_id", "subject", "no column 'subject_id'"),
    ],
)
def test_tables_of_another_version_are_refused(tmp_path: Path, name: str, table: str, old: str, new: str, message: str) -> None:
    {"ptbxl": write_ptbxl, "mimic_iv_ecg": write_mimic_iv_ecg}[name](tmp_path)
    replace_in(tmp_path / table, old, new)
    with pytest.raises(ValueError, match=f"{table}: .*{message}") as caught:
        make_source(name, [tmp_path]).find()
    assert "\n" not in str(caught.value)


def test_another_version_of_ptbxl_is_refused(tmp_path: Path) -> None:
    write_ptbxl(tmp_path)
    with (tmp_path / "ptbxl_database.csv").open("a") as file:
        file.writelines(f"{number},1.0,50.0,0,x,{{}},1\n" for number in range(4, 21_838))
    with pytest.raises(ValueError, match=r"21837 rows, but PTB-XL 1\.0\.3 has 21799, so it is of another version"):
        make_source("ptbxl", [tmp_path]).find()


def test_a_folder_without_the_recordings_at_500_hz_is_refused(tmp_path: Path) -> None:
    write_ptbxl(tmp_path)
    (tmp_path / "records500").rename(tmp_path / "records100")
    with pytest.raises(ValueError, match="no folder records500"):
        make_source("ptbxl", [tmp_path]).find()


def test_recordings_without_a_patient_are_refused(tmp_path: Path) -> None:
    write_ptbxl(tmp_path)
    replace_in(tmp_path / "ptbxl_database.csv", "2,1002.0", "2,")
    assert describe("ptbxl", tmp_path)["00002_hr"].problem == "no patient: ptbxl_database.csv names none for it"


def test_a_table_behind_a_link_is_not_read(tmp_path: Path) -> None:
    write_ptbxl(tmp_path / "in")
    table = tmp_path / "in" / "ptbxl_database.csv"
    table.rename(tmp_path / "elsewhere.csv")
    table.symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(ValueError, match="link out of the input folder"):
        make_source("ptbxl", [tmp_path / "in"]).find()
