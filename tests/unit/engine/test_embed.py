"""The command line of embed.py."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.signal
import torch
import wfdb
from command_runs import run_main
from dataset_fixtures import NUM_VALID_IN_PARTIAL, write_dataset
from numpy.typing import NDArray
from recording_files import random_signal, write_recording
from saved_model import save_tiny_encoder

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.shards.dataset import Dataset
from engine.embed import main
from engine.inference import Embedder
from engine.models import load

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "set", {"pretrain": 45, "valid": 7}, partial_every=5)


@pytest.fixture
def run(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script; returns exit status, standard output and standard error without the progress bar."""

    def run_script(*arguments: object, model: Path = model) -> tuple[int, str, str]:
        status, out, err = run_main(main, ["--model", model, "--device", "cpu", *arguments], capsys)
        return status, out, "".join(f"{line}\n" for line in err if line.startswith("embed: "))

    return run_script


def read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def embed(model: Path, segment: NDArray[np.floating]) -> NDArray[np.float32]:
    """The embedding of one segment [C, T] in mV."""
    embedding: NDArray[np.float32] = load(model).embed(torch.from_numpy(segment.astype(np.float32))[None])[0].numpy()
    return embedding


def test_a_dataset(run: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    status, out, err = run("--input", dataset, "--output", tmp_path / "out.npz")
    assert (status, err) == (0, "")
    assert out == f"{tmp_path / 'out.npz'}: 52 crops, 94 complete segments\n"
    result = read(tmp_path / "out.npz")
    opened = Dataset.open(dataset)
    keys = sorted(key for split in opened.splits for key in opened.samples(split, ["key"])["key"].to_pylist())
    assert result["key"].tolist() == keys
    for name in ("labels", "leads"):
        assert result[name].tolist() == [",".join(opened.read_crop(key)[1][name]) for key in keys]
    assert result["embedding"].shape == (52, 2, 32)
    for place in (0, 4, 51):
        crop, row = opened.read_crop(keys[place])
        assert result["num_segments"][place] == row["num_valid_samples"] // 2500
        for k in range(int(result["num_segments"][place])):
            expected = embed(model, crop[:, 2500 * k : 2500 * (k + 1)] / 1000)
            np.testing.assert_allclose(result["embedding"][place, k], expected, atol=1e-5)
    partial = np.array([opened.read_crop(key)[1]["num_valid_samples"] == NUM_VALID_IN_PARTIAL for key in keys])
    assert partial.sum() == 10
    np.testing.assert_array_equal(np.isnan(result["embedding"]).all(axis=2), np.stack([partial & False, partial], axis=1))


def test_a_split(run: Run, dataset: Path, tmp_path: Path) -> None:
    status, _, _ = run("--input", dataset, "--output", tmp_path / "out.npz", "--split", "valid")
    assert status == 0
    assert read(tmp_path / "out.npz")["key"].tolist() == [f"valid-{number:06d}" for number in range(7)]
    status, _, err = run("--input", dataset, "--output", tmp_path / "out.npz")
    assert (status, err) == (
        2,
        f"embed: {tmp_path / 'out.npz'}: already exists: choose another file, or replace it with --overwrite\n",
    )
    assert len(read(tmp_path / "out.npz")["key"]) == 7


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_batch_size_and_threads_do_not_matter(run: Run, dataset: Path, tmp_path: Path, workers: int, batch_size: int) -> None:
    results = []
    for name, arguments in (("a", ("--workers", 2)), ("b", ("--workers", workers, "--batch-size", batch_size))):
        assert run("--input", dataset, "--output", tmp_path / f"{name}.npz", "--split", "valid", *arguments)[0] == 0
        results.append(read(tmp_path / f"{name}.npz"))
    assert results[0]["key"].tolist() == results[1]["key"].tolist()
    np.testing.assert_allclose(results[0]["embedding"], results[1]["embedding"], atol=1e-6)


def test_threads_do_not_change_a_bit(run: Run, dataset: Path, tmp_path: Path) -> None:
    for workers in (1, 4):
        assert run("--input", dataset, "--output", tmp_path / f"{workers}.npz", "--workers", workers)[0] == 0
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "4.npz").read_bytes()


def test_recordings_and_their_dataset_have_the_same_embeddings(run: Run, tmp_path: Path) -> None:
    for number, num_samples in enumerate([5000, 12_600, 7000, 2500]):
        write_recording(tmp_path / "in" / "georgia", f"R{number}", random_signal(number, num_samples))
    build_dataset(BuildOptions("physionet2021", (tmp_path / "in",)), tmp_path / "set", num_workers=1)
    for name in ("in", "set"):
        assert run("--input", tmp_path / name, "--output", tmp_path / f"{name}.npz")[0] == 0
    recordings, dataset = read(tmp_path / "in.npz"), read(tmp_path / "set.npz")
    expected = ["georgia-R0-0", "georgia-R1-0", "georgia-R1-10000", "georgia-R1-5000", "georgia-R2-0", "georgia-R3-0"]
    assert recordings["key"].tolist() == dataset["key"].tolist() == expected
    assert recordings["num_segments"].tolist() == dataset["num_segments"].tolist() == [2, 2, 1, 2, 2, 1]
    np.testing.assert_allclose(recordings["embedding"], dataset["embedding"], atol=1e-6)


@pytest.mark.parametrize("rate", [250, 257, 1000, 360])
def test_any_sampling_rate(run: Run, model: Path, tmp_path: Path, rate: int) -> None:
    # Smooth, so that what is above half the lower rate does not matter.
    seconds = np.arange(10 * rate) / rate
    signal_uv = np.stack([800 * np.sin(2 * np.pi * (1 + number) * seconds + number) for number in range(12)]).round()
    write_recording(tmp_path / "in", "R", signal_uv.astype(np.int16), sampling_rate=str(rate))
    assert run("--input", tmp_path / "in", "--output", tmp_path / "out.npz")[0] == 0
    result = read(tmp_path / "out.npz")
    assert result["num_segments"].tolist() == [2]
    resampled = scipy.signal.resample_poly(signal_uv, 500, rate, axis=1, padtype="edge")[:, 2500:5000].round() / 1000
    np.testing.assert_allclose(result["embedding"][0, 1], embed(model, resampled), atol=1e-4)
    exact = np.arange(2500, 5000) / 500
    original = np.stack([0.8 * np.sin(2 * np.pi * (1 + number) * exact + number) for number in range(12)])
    np.testing.assert_allclose(result["embedding"][0, 1], embed(model, original), atol=0.02)


def test_other_formats_and_orders_of_leads(run: Run, tmp_path: Path) -> None:
    signal_uv = random_signal(0)
    write_recording(tmp_path / "mat", "R", signal_uv)
    (tmp_path / "dat").mkdir()
    order = [11, 0, 5, 4, 3, 2, 1, 6, 7, 8, 9, 10]
    wfdb.wrsamp(
        "R",
        fs=500,
        units=["mV"] * 12,
        sig_name=[LEADS[row] for row in order],
        d_signal=signal_uv[order].T.astype(np.int64),
        fmt=["24"] * 12,
        adc_gain=[1000.0] * 12,
        baseline=[0] * 12,
        write_dir=str(tmp_path / "dat"),
    )
    for name in ("mat", "dat"):
        assert run("--input", tmp_path / name, "--output", tmp_path / f"{name}.npz")[0] == 0
    np.testing.assert_array_equal(read(tmp_path / "mat.npz")["embedding"], read(tmp_path / "dat.npz")["embedding"])


def test_missing_leads_are_zeros_and_reported(run: Run, model: Path, tmp_path: Path) -> None:
    signal_uv = random_signal(0)
    write_recording(tmp_path / "in", "R", signal_uv[[0, 1, 7]], leads=("I", "II", "V2"))
    write_recording(tmp_path / "in", "S", random_signal(1))
    status, _, err = run("--input", tmp_path / "in", "--output", tmp_path / "out.npz")
    assert status == 0
    assert err == "embed: 1 crop lacks III, aVR, aVL, aVF, V1 and 4 more, which were set to zero; recordings: R\n"
    assert read(tmp_path / "out.npz")["leads"].tolist() == ["I,II,V2", ",".join(LEADS)]
    padded = np.zeros((12, 2500))
    padded[[0, 1, 7]] = signal_uv[[0, 1, 7], :2500] / 1000
    np.testing.assert_allclose(read(tmp_path / "out.npz")["embedding"][0, 0], embed(model, padded), atol=1e-5)


@pytest.mark.parametrize("leads", ["2", "ii,I"])
def test_a_subset_of_leads(run: Run, model: Path, dataset: Path, tmp_path: Path, leads: str) -> None:
    command = ("--input", dataset, "--split", "valid", "--leads", leads, "--output", tmp_path / "out.npz")
    assert run(*command)[0] == 0
    crop, _ = Dataset.open(dataset).read_crop("valid-000003")
    seen = np.where([[lead in {"I", "II"}] for lead in LEADS], crop[:, :2500] / 1000, 0)
    np.testing.assert_allclose(read(tmp_path / "out.npz")["embedding"][3, 0], embed(model, seen), atol=1e-5)
    two = save_tiny_encoder(tmp_path / "two", leads=("I", "II"))
    assert run(*command, "--overwrite", model=two)[0] == 0
    expected = embed(two, crop[:2, :2500] / 1000)
    np.testing.assert_allclose(read(tmp_path / "out.npz")["embedding"][3, 0], expected, atol=1e-5)


def test_unreadable_recordings_are_reported_and_the_rest_is_written(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_recording(folder / "a", "Good", random_signal(0))
    write_recording(folder / "a", "Short", random_signal(1, 2000))
    write_recording(folder / "a", "Truncated", random_signal(2)).with_suffix(".mat").write_bytes(bytes(1000))
    write_recording(folder / "a", "Headless", random_signal(3)).with_suffix(".hea").unlink()
    write_recording(folder / "a", "Flat", np.zeros((12, 5000), np.int16))
    broken_in_part = random_signal(4, 10_000)
    broken_in_part[3, 6000] = -32768  # no valid sample
    write_recording(folder / "a", "Part", broken_in_part)
    write_recording(folder / "b", "Good", random_signal(5))
    write_recording(folder / "b", "V1only", random_signal(6, num_leads=1), leads=("V1",))
    status, out, err = run("--input", folder, "--output", tmp_path / "out.npz", "--leads", "I,II")
    assert status == 1
    assert out == f"{tmp_path / 'out.npz'}: 2 crops, 4 complete segments\n"
    assert read(tmp_path / "out.npz")["key"].tolist() == ["physionet2021-Good-0", "physionet2021-Part-0"]
    lines = err.splitlines()
    for line in (
        f"{folder}/b/Good: has the same name as {folder}/a/Good",
        f"{folder}/a/Short: too short: 4.000 s",
        f"{folder}/a/Headless: missing .hea",
        f"{folder}/a/Flat: all-zero",
        f"{folder}/a/Part: NaN: 1 of 2 crops",
        "1 crop has none of the leads I, II: physionet2021-V1only-0",
    ):
        assert f"embed: {line}" in lines
    assert any(line.startswith(f"embed: {folder}/a/Truncated: truncated .mat") for line in lines)
    assert lines[-1].startswith("embed: 7 recordings or parts of recordings could not be used")
    assert len(lines) == 8


def test_nothing_usable_writes_nothing(run: Run, tmp_path: Path) -> None:
    write_recording(tmp_path / "in", "Short", random_signal(1, 2000))
    status, out, err = run("--input", tmp_path / "in", "--output", tmp_path / "out.npz")
    assert (status, out) == (2, "")
    assert err.splitlines()[0].endswith("Short: too short: 4.000 s")
    assert "no recording could be embedded" in err.splitlines()[1]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "none"], "none: no such folder"),
        (["--input", "empty"], "empty: no recordings"),
        (["--input", "empty", "--split", "valid"], "not a dataset (no manifest.json), so it has no split 'valid'"),
        (["--input", "empty", "--plan", "kfold"], "not a dataset (no manifest.json), so it has no plan 'kfold'"),
        (["--input", "set", "--plan", "kfold"], "no plan 'kfold'; make it with `ecg-data split`"),
        (["--input", "set", "--split", "vlaid"], "unknown split 'vlaid'; known: pretrain, valid"),
        (["--input", "set", "--leads", "5"], "no combination of 5 leads"),
        (["--input", "set", "--leads", "I,V9"], "unknown lead 'V9'"),
        (["--input", "set", "--leads", ""], "unknown lead ''"),
        (["--input", "set", "--batch-size", "0"], "expected a positive integer"),
        (["--input", "set", "--workers", "two"], "expected a positive integer"),
        (["--input", "set", "--output", "out.npy"], "the file name must end in .npz"),
        (["--input", "set", "--output", "none/out.npz"], "none: no such folder"),
        (["--input", "set", "--output", "/proc/out.npz"], "/proc: cannot be written to"),
        (["--input", "set", "--output", "folder.npz"], "folder.npz: is a folder"),
        (["--input", "set", "--model", "empty"], "config.json"),
        (["--input", "set", "--precision", "fp16"], "invalid choice"),
        ([], "--input"),
    ],
)
def test_errors_are_one_line(
    run: Run, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "folder.npz"):
        Path(name).mkdir()
    Path("set").symlink_to(dataset)
    status, out, err = run(*(["--output", "out.npz", *arguments]))
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "folder.npz", "set"]


def test_a_broken_shard_is_reported_in_one_line(run: Run, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "set", {"pretrain": 3})
    shard = folder / "shards" / "pretrain-000000.tar"
    content = bytearray(shard.read_bytes())
    content[1000:1088] = bytes(88)
    shard.write_bytes(content)
    status, _, err = run("--input", folder, "--output", tmp_path / "out.npz")
    assert status == 2
    assert err.startswith(f"embed: {folder}: shards/pretrain-000000.tar: crop pretrain-000000 is not the one that")
    assert "ecg-data verify" in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_files(
    run: Run, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "out.npz").write_bytes(b"old")
    calls = []
    original = Embedder.__call__

    def interrupted(self: Embedder, crops: list[object]) -> object:
        calls.append(len(crops))
        if len(calls) == 2:
            os.kill(os.getpid(), number)
        return original(self, crops)  # type: ignore[arg-type]

    monkeypatch.setattr(Embedder, "__call__", interrupted)
    status, out, err = run("--input", dataset, "--output", tmp_path / "out.npz", "--overwrite", "--batch-size", 8)
    assert (status, out) == (130, "")
    assert err == "embed: interrupted; no output was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]
    assert (tmp_path / "out.npz").read_bytes() == b"old"


def test_a_full_disk_is_reported_in_one_line(run: Run, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.inference.store.os", SimpleNamespace(preadv=full))  # not where crops are read
    status, _, err = run("--input", dataset, "--output", tmp_path / "out.npz", "--split", "valid")
    assert status == 2
    assert err == f"embed: {tmp_path / 'out.npz'}: No space left on device\n"
    assert not list(tmp_path.iterdir())


def test_help_has_an_example(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "python engine/embed.py --model " in capsys.readouterr().out


@pytest.mark.shared
def test_real_recordings(run: Run, shared: Path, tmp_path: Path) -> None:
    status, _, err = run("--input", shared / "ecg" / "physionet2021", "--output", tmp_path / "out.npz")
    assert (status, err) == (0, "")
    result = read(tmp_path / "out.npz")
    assert result["key"].tolist() == sorted(result["key"].tolist())
    assert len(result["key"]) == 25
    assert np.isfinite(result["embedding"][result["num_segments"] == 2]).all()
