"""Pre-training with two ranks, and everything that is done with a model, from a real S3 server."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pretraining_runs import TINY, Run
from s3_server import S3_KEYS, FaultProxy, run_fault_proxy
from saved_model import save_tiny_classifier, save_tiny_encoder

from data_tools import cli
from data_tools.remote import dataset_files
from data_tools.remote.bucket import Bucket
from engine import embed, evaluate, predict

pytestmark = [pytest.mark.slow, pytest.mark.shared]

URL = "s3://bucket/datasets/simulated"
STEPS = ("train.steps=24", f"data.path={URL}", "data.block_size=8", "data.window_blocks=2")


@pytest.fixture(params=["tar", "zarr"])
def proxy(
    request: pytest.FixtureRequest, s3: str, simulated_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultProxy]:
    """Uploads the dataset, and yields the proxy before the server."""
    for name, value in (S3_KEYS | {"ECG_CACHE": str(tmp_path / "cache"), "ECG_RETRY_SECONDS": "2"}).items():
        monkeypatch.setenv(name, value)
    with run_fault_proxy(s3) as state:
        monkeypatch.setenv("AWS_ENDPOINT_URL", state.url)
        assert cli.main(["convert", str(simulated_dataset), URL, "--format", request.param, "--workers", "1"]) == 0
        yield state
        state.fault, state.only = "none", ""
        dataset_files._find_remote.cache_clear()
        bucket = Bucket(URL)
        for name in bucket.list_sizes() or ():
            bucket.delete(name)


def test_two_ranks_stop_and_resume(proxy: FaultProxy, simulated_dataset: Path, tmp_path: Path) -> None:
    local = f"data.path={simulated_dataset}"
    expected = Run(None, tmp_path / "local", *STEPS, local, ranks=2).succeed().losses()
    proxy.fault = "flaky"
    proxy.paths.clear()
    run = Run(None, tmp_path / "run", *STEPS, ranks=2)
    run.wait_until(lambda: run.steps_done >= 5)
    run.signal(signal.SIGTERM)
    run.wait()
    assert "saved" in run.stderr
    resumed = Run(None, tmp_path / "run", *STEPS, ranks=2).succeed()
    assert resumed.losses() == expected
    shards = [path for path in proxy.paths if "/shards/" in path or "/c." in path]
    assert shards
    assert f"path: {URL}" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_bucket_that_disappears_ends_the_run_with_one_line(proxy: FaultProxy, tmp_path: Path) -> None:
    steps = (*STEPS, "train.steps=100000", "data.cache_gb=0.0001", "train.batch_size=2")
    run = Run(None, tmp_path / "run", *steps)
    run.wait_until(lambda: run.steps_done >= 2)
    proxy.fault = "gone"
    assert run.fail().startswith(f"rank 0: {URL}: the bucket does not exist; create it, or check its name")


def finetune(location: str, out: Path) -> Run:
    tiny = [word for word in TINY if not word.startswith("objective.")]
    words = ("init_from=random", "train.steps=4", "validation.every_steps=2", "train.precision=fp32", f"data.path={location}")
    return Run(None, out, *words, script="finetune.py", config="finetune/diagnosis.yaml", tiny=tiny)


def apply(location: str, model: Path, out: Path) -> dict[str, list[str]]:
    """Returns the arguments of the scripts that apply a model to a dataset."""
    common = ["--device", "cpu"]
    return {
        "embed": ["--model", str(model), "--input", location, "--output", str(out / "embeddings.npz"), *common],
        "predict": [str(model), location, "-o", str(out / "predictions.parquet"), *common],
        "evaluate": [str(model), "--data", location, "--bootstrap", "0", "--json", str(out / "scores.json"), *common],
    }


MAINS = {"embed": embed.main, "predict": predict.main, "evaluate": evaluate.main}


@pytest.mark.parametrize("proxy", ["zarr"], indirect=True)
def test_a_url_gives_the_same_results_as_a_folder(proxy: FaultProxy, simulated_dataset: Path, tmp_path: Path) -> None:
    losses, scores, embeddings, predictions = [], [], [], []
    for name, location in (("local", str(simulated_dataset)), ("remote", URL)):
        run = finetune(location, tmp_path / name).succeed()
        losses.append((run.losses(), [row["loss"] for row in run.rows("valid")]))
        out = tmp_path / f"{name}-results"
        out.mkdir()
        for script, arguments in apply(location, tmp_path / name / "model", out).items():
            assert MAINS[script](arguments) == 0, script
        content = json.loads((out / "scores.json").read_text())
        assert content["dataset"] == location
        scores.append([row["overall"] for row in content["rows"]])
        embeddings.append(dict(np.load(out / "embeddings.npz")))
        predictions.append(pq.read_table(out / "predictions.parquet"))
    assert losses[0] == losses[1]
    assert scores[0] == scores[1]
    assert predictions[0] == predictions[1]
    for name, values in embeddings[0].items():
        np.testing.assert_array_equal(values, embeddings[1][name])


@pytest.mark.parametrize("proxy", ["zarr"], indirect=True)
def test_a_bucket_that_cannot_be_read_is_one_line(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = save_tiny_encoder(tmp_path / "encoder")
    model = save_tiny_classifier(tmp_path / "model")
    commands = apply(URL, model, tmp_path)
    commands["embed"][1] = str(encoder)
    commands["evaluate"] += ["--labels", "cinc2021", "--probe", "linear"]
    # The first request for a shard is answered so, after everything else could be read.
    proxy.fault, proxy.only = "gone", "/c."
    expected = f"{URL}: the bucket does not exist; create it, or check its name"
    for script, arguments in commands.items():
        assert MAINS[script](arguments) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"{script}: {expected}"
    run = finetune(URL, tmp_path / "run").wait()
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == f"finetune: rank 0: {expected}"

    proxy.fault, proxy.only = "none", ""
    expected = f"{URL}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public bucket "
    with monkeypatch.context() as environment:
        environment.delenv("AWS_ACCESS_KEY_ID")
        environment.delenv("AWS_SECRET_ACCESS_KEY")
        environment.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
        for script, arguments in commands.items():
            assert MAINS[script](arguments) == 2
            assert capsys.readouterr().err.splitlines()[-1].startswith(f"{script}: {expected}")
        run = finetune(URL, tmp_path / "run").wait()
    assert run.stderr.startswith(f"finetune: {expected}"), run.stderr
    assert run.stderr.count("\n") == 1
