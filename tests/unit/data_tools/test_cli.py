import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import duckdb
import pytest
from dataset_fixtures import write_dataset
from recording_files import random_signal, write_recording

from data_tools import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    capsys.readouterr()
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        status = int(str(end.code or 0))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    "command", ["synth", "download", "build", "convert", "split", "verify", "info", "duplicates", "report", "plot"]
)
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert f"example: ecg-data {command} " in " ".join(out.split())


def test_the_main_job_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "synth", tmp_path / "cohort", "--patients", 3, "--seed", 1)
    assert status == 0
    assert "of 3 patients" in out
    build = ("build", "physionet2021", tmp_path / "cohort", tmp_path / "out", "--workers", 1)
    status, out, err = run(capsys, *build)
    assert (status, err) == (0, "")
    assert "rejected 0" in out
    status, out, _ = run(capsys, *build)
    assert status == 0
    assert out.startswith("already built with the same options")
    status, out, _ = run(capsys, "verify", tmp_path / "out")
    assert status == 0
    assert "no problems" in out
    status, out, _ = run(capsys, "info", tmp_path / "out")
    assert status == 0
    key = next((tmp_path / "out" / "shards").glob("*.idx")).read_text().split()[5].removesuffix(".npy")
    status, _, _ = run(capsys, "plot", tmp_path / "out", key, "--out", tmp_path / "crop.png")
    assert status == 0
    assert (tmp_path / "crop.png").read_bytes().startswith(b"\x89PNG")


def test_info_counts_splits_sources_labels_and_rejects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (database, label) in enumerate([("georgia", "426783006"), ("georgia", "164889003"), ("ningbo", "426783006")]):
        comments = [f"Dx: {label}"]
        write_recording(tmp_path / "in" / database, f"R{number}", random_signal(number, 15_000), comments=comments)
    write_recording(tmp_path / "in", "broken", random_signal(9)).with_suffix(".mat").unlink()
    run(capsys, "build", "physionet2021", tmp_path / "in", tmp_path / "out", "--workers", 1, "--valid-fraction", 0)
    status, out, _ = run(capsys, "info", tmp_path / "out")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0
    assert "pretrain georgia 2 2 6 12 0.02" in lines
    assert "pretrain ningbo 1 1 3 6 0.01" in lines
    assert "pretrain all 3 3 9 18 0.03" in lines
    assert "426783006 2 66.7% sinus rhythm" in lines
    assert "164889003 1 33.3% atrial fibrillation" in lines
    assert "recordings not used: 1" in lines
    assert "missing .mat: 1" in lines
    keys = run(capsys, "info", tmp_path / "out", "--keys")[1].split()
    assert sorted(keys) == sorted(
        f"{name}-{start}" for name in ("georgia-R0", "georgia-R1", "ningbo-R2") for start in (0, 5000, 10_000)
    )


def test_a_build_is_split_without_changing_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "synth", tmp_path / "georgia", "--patients", 12)
    run(capsys, "synth", tmp_path / "ptb-xl", "--patients", 4, "--seed", 1)
    build = ("build", "physionet2021", tmp_path / "georgia", tmp_path / "ptb-xl")
    assert run(capsys, *build, tmp_path / "plain", "--workers", 1)[0] == 0
    status, out, err = run(capsys, *build, tmp_path / "out", "--workers", 1, "--splits", "paper")
    assert (status, err) == (0, "")
    assert "plan identification: train " in out
    assert "gallery 4 crops of 4 patients, probe 4 crops of 4 patients" in out
    for file in (tmp_path / "plain").rglob("*.*"):
        if file.is_file() and file.name != "manifest.json":
            assert file.read_bytes() == (tmp_path / "out" / file.relative_to(tmp_path / "plain")).read_bytes()
    table = tmp_path / "folds.csv"
    names = sorted({path.stem for path in (tmp_path / "georgia").rglob("*.hea")})
    patients = {name: name.rsplit("R", 1)[0] for name in names}
    numbers = {patient: 1 + number % 10 for number, patient in enumerate(dict.fromkeys(patients.values()))}
    table.write_text(
        "\n".join(["source,recording,fold", *(f"georgia,{name},{numbers[patient]}" for name, patient in patients.items())])
    )
    column = ("--plan", "column", "--table", table, "--column", "fold", "--train", "1-8", "--valid", "9", "--test", "10")
    status, out, err = run(capsys, "split", tmp_path / "out", *column)
    assert (status, err) == (0, "")
    assert f"{tmp_path}/out: plan fold: train " in out
    status, out, _ = run(capsys, "verify", tmp_path / "out")
    assert (status, out.count("\n")) == (0, 1)
    _, out, _ = run(capsys, "info", tmp_path / "out")
    assert "held out from pre-training: valid, test of diagnosis" in out


COLUMN_PLAN = ["split", "empty", "--plan", "column", "--table", "t.csv", "--column", "fold"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bild"], "invalid choice: 'bild'"),
        (["build", "wfdb", "in", "out", "--qualty", "x"], "--qualty x (did you mean --quality?); see `ecg-data build --help`"),
        (["info", "empty", "--unknown"], "unrecognized arguments: --unknown; see `ecg-data info --help`"),
        (["build", "physionet2021", "in"], "required: OUT"),
        (["build", "physionet", "in", "out"], "unknown source 'physionet'; did you mean 'physionet2021'?"),
        (["build", "xyz", "in", "out"], "unknown source 'xyz'; known: physionet2021, ptbxl, "),
        (["build", "physionet2021", "absent", "out"], "absent: no such folder"),
        (["build", "physionet2021", "empty", "out"], "empty: no recordings"),
        (["build", "physionet2021", "empty", "out", "--workers", "two"], "invalid int value: 'two'"),
        (["build", "physionet2021", "empty", "out", "--limit", "0"], "limit must be at least 1"),
        (["build", "physionet2021", "in", "out", "--workers", "1", "--scheduler", "tcp://x:1"], "cannot be combined"),
        (["build", "physionet2021", "in", "out", "--splits", "papr"], "unknown plan 'papr'; plans are paper, random, kfold"),
        (["build", "physionet2021", "in", "out", "--patients", "x.csv"], "--patients applies only with --splits"),
        (["build", "physionet2021", "in", "out", "--splits", "paper", "--patients", "x.csv"], "x.csv: cannot be read"),
        (["split", "absent", "--plan", "paper"], "absent: no such folder"),
        (
            ["split", "empty", "--plan", "paper", "--folds", "3"],
            "--folds does not apply to --plan paper, which takes no options",
        ),
        (["split", "empty", "--plan", "random", "--fractions", "8:1:1"], "--fractions must be numbers separated by commas"),
        (["split", "empty", "--plan", "random", "--fractions", "0.8,0.1"], "that add up to 1, got 0.8, 0.1"),
        (["split", "empty", "--plan", "random", "--hold-out", "train"], "'train' cannot be held out from pre-training"),
        (["split", "empty", "--plan", "kfold", "--folds", "2"], "the number of folds must be between 3 and 100, got 2"),
        (["split", "empty", "--plan", "column", "--train", "1"], "--plan column needs --table"),
        ([*COLUMN_PLAN, "--train", "9-1"], "--train: the range 9-1 is reversed; write 1-9"),
        ([*COLUMN_PLAN, "--train", "1-99999"], "--train: the range 1-99999 has more than 10000 values"),
        (["verify", "absent"], "absent: no such folder"),
        (["info", "empty"], "empty: not a dataset"),
        (["plot", "empty", "key", "--out", "x.png"], "empty: not a dataset"),
        (["synth", "cohort", "--patients", "0"], "0"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("ecg-data: ")
    assert err.count("\n") == 1
    assert message in err


def test_verify_lists_problems_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write_dataset(tmp_path / "data", {"pretrain": 3, "valid": 1})
    (dataset / "shards" / "valid-000000.tar").unlink()
    status, out, _ = run(capsys, "verify", dataset)
    assert status == 1
    assert "shards/valid-000000.tar: missing" in out.splitlines()


@pytest.mark.parametrize("command", ["verify", "info"])
def test_a_full_disk_for_scratch_files_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def full(config: object) -> NoReturn:
        raise duckdb.OutOfMemoryException("This limit was set by the 'max_temp_directory_size' setting.")

    dataset = write_dataset(tmp_path / "data", {"pretrain": 3, "valid": 1})
    monkeypatch.setattr(duckdb, "connect", full)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    status, _, err = run(capsys, command, dataset)
    assert status == 2
    assert err == f"ecg-data: {tmp_path}: the disk is full; free some space there, or set TMPDIR to another folder\n"


@pytest.mark.parametrize("kilobytes", [1_500_000, 2_250_000])
def test_a_build_with_limited_address_space(tmp_path: Path, kilobytes: int) -> None:
    write_recording(tmp_path / "in", "R1", random_signal(1))
    command = [sys.executable, "-m", "data_tools", "build", "physionet2021", str(tmp_path / "in"), str(tmp_path / "out")]
    shell = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh"]
    result = subprocess.run([*shell, *command], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_starting_loads_nothing_slow() -> None:
    heavy = ["torch", "dask", "distributed", "scipy", "pandas", "wfdb", "matplotlib", "pyarrow", "numpy"]
    code = f"import sys, data_tools.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_no_command_loads_torch(tmp_path: Path) -> None:
    write_recording(tmp_path / "in", "R", random_signal(0))
    code = (
        "import sys; from data_tools import cli\n"
        f"assert cli.main(['build', 'physionet2021', r'{tmp_path / 'in'}', r'{tmp_path / 'out'}', '--workers', '1']) == 0\n"
        f"assert cli.main(['verify', r'{tmp_path / 'out'}']) == 0\n"
        f"assert cli.main(['info', r'{tmp_path / 'out'}']) == 0\n"
        f"assert cli.main(['plot', r'{tmp_path / 'out'}', 'physionet2021-R-0', '--out', r'{tmp_path / 'x.png'}']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
