import io
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from corpus_server import CorpusServer, serve

from data_tools import cli
from data_tools.download import DownloadOptions, download_corpus
from data_tools.download.corpora import CORPORA, Corpus
from data_tools.download.http import DownloadError, _credentials


def content(seed: int, size: int = 100_000) -> bytes:
    return np.random.default_rng(seed).bytes(size)


FILES = {"RECORDS": b"a\nb\n", "training/georgia/g1/E00001.mat": content(1), "training/ptb-xl/g1/HR00001.mat": content(2)}
MAT = "training/georgia/g1/E00001.mat"


@pytest.fixture
def server() -> Iterator[CorpusServer]:
    with serve() as state:
        state.publish(dict(FILES))
        yield state


def options(server: CorpusServer, *only: str, read_seconds: float = 20, num_connections: int = 2) -> DownloadOptions:
    return DownloadOptions(only, num_connections, server.url, read_seconds, first_wait=0.01)


def downloaded(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_files_come_once(server: CorpusServer, tmp_path: Path) -> None:
    summary = download_corpus("physionet2021", tmp_path, options(server))
    assert downloaded(tmp_path) == server.files
    assert (summary.num_files, summary.num_new, summary.failures) == (3, 3, [])
    assert summary.num_bytes == sum(map(len, FILES.values()))
    again = download_corpus("physionet2021", tmp_path, options(server))
    assert (again.num_files, again.num_new, again.failures) == (3, 0, [])
    assert all(server.requests[name] == 1 for name in FILES)


def test_a_part_of_a_corpus(server: CorpusServer, tmp_path: Path) -> None:
    assert download_corpus("physionet2021", tmp_path, options(server, "training/geor", "REC")).num_files == 2
    assert downloaded(tmp_path).keys() == {"SHA256SUMS.txt", "RECORDS", MAT}
    with pytest.raises(DownloadError, match="no file name begins with training/nowhere"):
        download_corpus("physionet2021", tmp_path, options(server, "training/nowhere"))


def test_dropped_connections_resume_where_they_were(server: CorpusServer, tmp_path: Path) -> None:
    server.drop_after[MAT] = [30_000, 30_000, 0, 0, 0]
    assert download_corpus("physionet2021", tmp_path, options(server)).failures == []
    assert (tmp_path / MAT).read_bytes() == FILES[MAT]
    starts = [headers.get("Range") for headers in server.headers[MAT]]
    assert starts == [None, "bytes=30000-", "bytes=60000-", "bytes=60000-", "bytes=60000-", "bytes=60000-"]


def test_a_server_without_ranges_sends_all_again(server: CorpusServer, tmp_path: Path) -> None:
    server.drop_after[MAT] = [30_000]
    server.ignore_ranges = True
    summary = download_corpus("physionet2021", tmp_path, options(server))
    assert (tmp_path / MAT).read_bytes() == FILES[MAT]
    assert summary.num_bytes == sum(map(len, FILES.values()))


def test_a_file_that_changed_in_between_is_downloaded_whole(server: CorpusServer, tmp_path: Path) -> None:
    server.files[MAT] = content(9)
    server.drop_after[MAT] = [30_000]
    server.changed[MAT] = FILES[MAT]
    assert download_corpus("physionet2021", tmp_path, options(server)).failures == []
    assert (tmp_path / MAT).read_bytes() == FILES[MAT]
    assert [headers.get("Range") for headers in server.headers[MAT]] == [None, "bytes=30000-", None]


def test_a_file_that_is_not_as_published_fails_alone(server: CorpusServer, tmp_path: Path) -> None:
    server.files[MAT] = content(9)
    (failure,) = download_corpus("physionet2021", tmp_path, options(server)).failures
    assert "E00001.mat: the SHA256 differs from the published one" in failure
    assert downloaded(tmp_path).keys() == server.files.keys() - {MAT}


def test_a_missing_file_fails_alone(server: CorpusServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del server.files[MAT]
    assert cli.main(["download", "physionet2021", str(tmp_path), "--mirror", server.url]) == 1
    out = capsys.readouterr().out
    assert f"{MAT}: the server responded with 404" in out
    assert "2 of 3 files of physionet2021 are complete, 2 of them new" in out


def test_a_file_of_the_user_is_not_replaced(server: CorpusServer, tmp_path: Path) -> None:
    (tmp_path / "RECORDS").write_text("mine")
    (failure,) = download_corpus("physionet2021", tmp_path, options(server)).failures
    assert "RECORDS: already exists, but differs from the published file" in failure
    assert (tmp_path / "RECORDS").read_text() == "mine"


def test_a_busy_server_is_asked_again(server: CorpusServer, tmp_path: Path) -> None:
    server.statuses["SHA256SUMS.txt"] = [503, 500]
    server.statuses[MAT] = [503, 429, 500]
    assert download_corpus("physionet2021", tmp_path, options(server)).failures == []
    assert server.requests[MAT] == 4


def test_a_server_that_says_nothing_ends_the_download(server: CorpusServer, tmp_path: Path) -> None:
    server.silent.add(MAT)
    with pytest.raises(DownloadError, match=r"E00001.mat: the server does not respond \(ReadTimeout"):
        download_corpus("physionet2021", tmp_path, options(server, read_seconds=0.05, num_connections=1))


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="cannot be reached"):
        download_corpus("ptbxl", tmp_path, DownloadOptions(mirror="http://127.0.0.1:9", first_wait=0.01))


@pytest.fixture
def netrc(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.mktemp("home") / "netrc"
    monkeypatch.setenv("NETRC", str(path))
    path.write_text("")
    return path


def test_a_password_comes_from_netrc(server: CorpusServer, tmp_path: Path, netrc: Path) -> None:
    server.password = ("me", "secret")
    with pytest.raises(DownloadError, match=r"access denied \(401\); accept the terms on .*, then add a line for 127.0.0.1 to"):
        download_corpus("mimic_iv_ecg", tmp_path, options(server))
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    assert download_corpus("mimic_iv_ecg", tmp_path, options(server, "RECORDS", "training")).failures == []


def test_a_password_comes_from_the_environment_for_its_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHYSIONET_USERNAME", "me")
    monkeypatch.setenv("PHYSIONET_PASSWORD", "secret")
    assert _credentials("https://physionet.org/files/a") == ("me", "secret")
    for other in ("http://physionet.org/files/a", "https://physionet.org.example.com/a", "https://zenodo.org/a"):
        assert _credentials(other) is None


def test_a_redirect_to_another_host_gets_no_password(server: CorpusServer, tmp_path: Path, netrc: Path) -> None:
    server.password = ("me", "secret")
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    with serve("127.0.0.2") as other:
        other.files["elsewhere"] = FILES[MAT]
        server.redirects[MAT] = f"{other.url}/elsewhere"
        assert download_corpus("ptbxl", tmp_path, options(server)).failures == []
        assert "Authorization" in server.headers[MAT][0]
        assert "Authorization" not in other.headers["elsewhere"][0]


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", ".bashrc", "a\\..\\b", "a/"])
def test_no_name_leaves_the_folder(server: CorpusServer, tmp_path: Path, name: str) -> None:
    server.publish({name: b"x"})
    with pytest.raises(DownloadError, match="not a safe path"):
        download_corpus("ptbxl", tmp_path / "in", options(server))
    assert downloaded(tmp_path).keys() == {"in/SHA256SUMS.txt"}


def test_no_link_leads_out_of_the_folder(server: CorpusServer, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "training").symlink_to(tmp_path / "outside")
    summary = download_corpus("ptbxl", tmp_path / "in", options(server))
    assert len(summary.failures) == 2
    assert not [path for path in (tmp_path / "outside").rglob("*") if path.is_file()]


@pytest.mark.parametrize("text", [b"no list", b"\xff\xfe", b"<html>"])
def test_a_list_that_is_none(server: CorpusServer, tmp_path: Path, text: bytes) -> None:
    server.files["SHA256SUMS.txt"] = text
    with pytest.raises(DownloadError, match=r"line 1 is not|cannot be read"):
        download_corpus("ptbxl", tmp_path, options(server))


def test_too_little_space(server: CorpusServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORPORA, "huge", Corpus("physionet", "https://physionet.org/files/huge/1.0", 10**9))
    with pytest.raises(DownloadError, match=r"about 1000000000.0 GB remain to be downloaded, but only .* GB are free"):
        download_corpus("huge", tmp_path, options(server))
    assert not (tmp_path / MAT).exists()


@pytest.mark.parametrize(("free", "is_enough"), [(20_000, True), (5_000, False)])
def test_a_partly_downloaded_file_needs_space_only_for_its_rest(
    server: CorpusServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, free: int, is_enough: bool
) -> None:
    server.publish_record({"exams.csv": content(3)})
    (tmp_path / ".exams.csv.part").write_bytes(content(3)[:90_000])
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    if is_enough:
        assert download_corpus("code15", tmp_path, options(server)).num_new == 1
    else:
        with pytest.raises(DownloadError, match="GB remain to be downloaded, but only"):
            download_corpus("code15", tmp_path, options(server))


def zipped(files: dict[str, bytes]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return memory.getvalue()


def test_zenodo_has_sizes_and_archives(server: CorpusServer, tmp_path: Path) -> None:
    files = {"exams.csv": b"exam_id\n", "exams_part0.zip": zipped({"exams_part0.hdf5": content(3)})}
    server.publish_record(files)
    server.drop_after["files/exams_part0.zip/content"] = [1000]
    summary = download_corpus("code15", tmp_path, options(server))
    assert (summary.num_new, summary.num_bytes) == (2, sum(map(len, files.values())))
    assert (tmp_path / "exams_part0.hdf5").read_bytes() == content(3)


def test_an_answer_longer_than_published_is_cut_off(server: CorpusServer, tmp_path: Path) -> None:
    server.publish_record({"exams.csv": b"exam_id\n"})
    server.files["files/exams.csv/content"] = b"x" * 1_000_000
    (failure,) = download_corpus("code15", tmp_path, options(server)).failures
    assert failure == "exams.csv: the server sent more than 8 bytes; try again later"


def test_no_name_in_an_archive_leaves_the_folder(server: CorpusServer, tmp_path: Path) -> None:
    server.publish_record({"exams_part0.zip": zipped({"../evil": b"x"})})
    with pytest.raises(DownloadError, match=r"contains .\.\./evil"):
        download_corpus("code15", tmp_path / "in", options(server))
    assert not (tmp_path / "evil").exists()


def test_unknown_corpora_and_too_many_connections(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="unknown corpus 'ptb'; known: physionet2021, ptbxl"):
        download_corpus("ptb", tmp_path)
    with pytest.raises(DownloadError, match="must be 1 to 8, got 100"):
        download_corpus("ptbxl", tmp_path, DownloadOptions(num_connections=100))


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_is_done(server: CorpusServer, tmp_path: Path) -> None:
    server.silent.add(MAT)
    command = [sys.executable, "-m", "data_tools", "download", "ptbxl", str(tmp_path), "--mirror", server.url]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "training/ptb-xl/g1/HR00001.mat").exists():
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "ecg-data: interrupted; run the same command again to resume"
    server.silent.clear()
    assert download_corpus("ptbxl", tmp_path, options(server)).num_new == 1
