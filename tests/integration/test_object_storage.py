"""Pre-training with two ranks from a real S3 server."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretraining_runs import Run
from s3_server import S3_KEYS, FaultProxy, run_fault_proxy

from data_tools import cli
from data_tools.remote.bucket import Bucket

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
        state.fault = "none"
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
