import json
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import _peer_process
import compare_loaders
import numpy as np
import pytest
import torch
from _data_tables import COMPARISON_HEADERS, comparison_rows
from _peer import Reading, read_crops, to_segments
from _peer_process import digest_batch, digest_crop
from _peers import PEERS, find_missing
from _repeated_crops import make_repeated_dataset
from _tables import tables
from _throttle import run_relay
from dataset_fixtures import write_dataset

from data_tools.synthetic import write_cohort

NUM_CROPS = 50
SIZE_GB = NUM_CROPS * 120_000 / 1e9


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards, so that two worker processes have one each."""
    return write_dataset(tmp_path_factory.mktemp("loaders") / "dataset", {"pretrain": NUM_CROPS}, crops_per_shard=25)


def test_segments_are_those_of_the_crops() -> None:
    crops = np.arange(2 * 12 * 5000, dtype=np.int16).reshape(2, 12, 5000)
    segments = to_segments(list(crops))
    assert segments.dtype == torch.float32
    np.testing.assert_allclose(segments[1, 1], crops[1, :, 2500:] / 1000, rtol=1e-6)
    assert list(digest_batch(segments)) == [digest_crop(crop) for crop in crops]
    with pytest.raises(ValueError, match="expected float32"):
        list(digest_batch(segments.flatten(1)))


# The loaders with worker processes fork this one, which has threads; they run in processes of their own, below.
@pytest.mark.parametrize("name", ["engine, tar", "engine, zarr", "DALI webdataset"])
@pytest.mark.parametrize("batch_size", [8, 64])
def test_an_epoch_has_each_crop_once(name: str, batch_size: int, dataset: Path, tmp_path: Path) -> None:
    peer = PEERS[name]
    if (reason := find_missing(peer)) is not None:
        pytest.skip(reason)
    folder = peer.prepare(dataset, tmp_path / "own")
    loader = peer(Reading(dataset, str(folder), batch_size, 2, tmp_path / "cache"))
    expected = Counter(digest_crop(crop) for crop in read_crops(dataset))
    orders = []
    for _ in range(2 if name.startswith("engine") else 1):
        batches = list(loader.epoch())
        assert max(map(len, batches)) <= batch_size
        orders.append([digest for batch in batches for digest in digest_batch(batch)])
        assert Counter(orders[-1]) == expected
        assert orders[-1] != [digest_crop(crop) for crop in read_crops(dataset)], "the order must be shuffled"
    loader.close()


def test_repeated_crops_are_whole_and_different(tmp_path: Path) -> None:
    write_cohort(tmp_path / "cohort", 6, seed=1)
    dataset = make_repeated_dataset(tmp_path / "cohort", 1e9 * SIZE_GB, tmp_path)
    digests = [digest_crop(crop) for crop in read_crops(dataset)]
    assert len(set(digests)) == NUM_CROPS
    assert digests[20:] == [digest_crop(crop) for crop in read_crops(dataset, 20)]


@pytest.mark.slow
def test_the_command_compares_what_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cohort(tmp_path / "cohort", 6, seed=1)
    names = ["engine, zarr", "webdataset", "litdata"]  # the last one only if it is installed
    words = ["--recordings", str(tmp_path / "cohort"), "--size-gb", str(SIZE_GB), "--rounds", "1", "--seconds", "0.1"]
    words += ["--loaders", ";".join(names)]
    compare_loaders.main([*words, "--scratch", str(tmp_path), "--batch-size", "16", "--json", str(tmp_path / "out.json")])
    content = json.loads((tmp_path / "out.json").read_text())
    measured = {each["loader"]: each for each in content["metrics"]["loaders"]}
    assert {"engine, zarr", "webdataset"} <= set(measured)
    assert set(measured) | set(content["metrics"]["skipped"]) == set(names)
    for name, each in measured.items():
        assert each["later_epochs_crops_per_second"]["n"] == 1, name
        assert each["first_batch_seconds"]["min"] > 0
        assert each["memory_mb"]["max"] > 50
    assert measured["engine, zarr"]["bytes"] < measured["webdataset"]["bytes"]
    out = capsys.readouterr().out
    for name, reason in content["metrics"]["skipped"].items():
        assert f"{name}: skipped: {reason}" in out
    (table,) = tables(content)
    assert len(table.rows) == len(measured)
    assert not list(tmp_path.glob("compare-loaders-*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--throttle", "5"], "add --s3"),
        (["--throttle", "0"], "--throttle must be above 0"),
        (["--loaders", "engine, tar;nothing"], "unknown loader 'nothing'; known: engine, tar"),
        (["--rounds", "0"], "above 0"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare_loaders.parse_arguments(words)
    assert message in capsys.readouterr().err


def test_an_interrupted_task_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*arguments, **options))
        return started[0]

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_peer_process, "subprocess", SimpleNamespace(Popen=start))
    monkeypatch.setattr(_peer_process, "time", SimpleNamespace(sleep=interrupt))
    with pytest.raises(KeyboardInterrupt):
        _peer_process.run_task("check", "engine, tar", tmp_path)
    assert started[0].returncode == -signal.SIGKILL


def test_a_loader_whose_import_fails_without_a_message_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_loader.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(PEERS["webdataset"], "package", "broken_loader")
    assert "broken_loader cannot be imported (RuntimeError)" in str(find_missing(PEERS["webdataset"]))


def test_a_row_for_each_result() -> None:
    spread = {"min": 1.0, "median": 2.0, "max": 3.0, "n": 3}
    result: dict[str, Any] = {"loader": "a", "storage": "disk", "bytes": 240_000} | dict.fromkeys(
        (*compare_loaders.MEASURES,), spread
    )
    (row,) = comparison_rows([result], 2)
    assert len(row) == len(COMPARISON_HEADERS)
    assert row[0] == "a"
    assert row[-1] == 120


def test_the_relay_passes_everything_at_its_rate() -> None:
    content = bytes(range(256)) * 1000

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with run_relay("127.0.0.1", server.server_port, 1e6) as port:
            start = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                assert answer.read() == content
            assert time.monotonic() - start > 0.2  # 256 kB at 1 MB/s; never faster, however busy the machine is
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
