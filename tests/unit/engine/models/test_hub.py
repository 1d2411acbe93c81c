"""Models on the Hugging Face Hub, against a local server with its interface."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_server import HubServer, hub_server
from saved_model import save_tiny_encoder
from tiny_model import tiny_encoder_options

import engine.models
from engine.models.hub import MAX_BYTES, download, is_repository
from engine.options import UserError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    constants = pytest.importorskip("huggingface_hub.constants")
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with hub_server() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield running


def put(server: HubServer, folder: Path) -> dict[str, bytes]:
    """Puts clinic/model on the server; returns its files."""
    files = {path.name: path.read_bytes() for path in save_tiny_encoder(folder).iterdir()}
    server.repositories["clinic/model"] = files
    return files


def test_a_pushed_model_is_loaded_again(server: HubServer) -> None:
    model = engine.models.create(tiny_encoder_options(), leads=["I", "V2"], seed=1)
    assert model.push_to_hub("clinic/model") == f"{server.url}/clinic/model"
    assert server.created[0]["visibility"] == "private"
    assert set(server.repositories["clinic/model"]) == set(MAX_BYTES)
    loaded = engine.models.load("clinic/model")
    assert loaded.config == model.config
    segments = torch.randn(2, 2, 2500)
    assert torch.equal(loaded.embed(segments), model.embed(segments))
    model.push_to_hub("clinic/open", private=False)
    assert server.created[1]["visibility"] == "public"


def test_only_the_models_files_are_downloaded(server: HubServer, tmp_path: Path) -> None:
    files = put(server, tmp_path / "model")
    files |= {"model.py": b"raise SystemExit", "weights.bin": b"x", "sub/config.json": b"{}"}
    engine.models.load("clinic/model", revision="main")
    assert set(server.requested) == set(MAX_BYTES)
    downloaded = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/**/*")}
    assert downloaded == set(MAX_BYTES)


@pytest.mark.parametrize("name", sorted(MAX_BYTES))
def test_files_that_are_too_large_are_not_downloaded(server: HubServer, tmp_path: Path, name: str) -> None:
    put(server, tmp_path / "model")
    server.sizes[name] = MAX_BYTES[name] + 1
    with pytest.raises(UserError, match=rf"clinic/model: {name} has \d+ bytes on the Hugging Face Hub; at most \d+ are"):
        engine.models.load("clinic/model")
    assert server.requested == []


def test_the_commit_whose_sizes_were_checked_is_downloaded(server: HubServer, tmp_path: Path) -> None:
    files = put(server, tmp_path / "model")
    server.later["clinic/model"] = files | {"README.md": b"later"}
    folder = download("clinic/model")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert (download("clinic/model") / "README.md").read_text() == "later"


def test_a_cached_model_is_loaded_when_the_hub_cannot_be_reached(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(server, tmp_path / "model")
    engine.models.load("clinic/model")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    engine.models.load("clinic/model")
    with pytest.raises(
        UserError, match=r"^clinic/other: no such folder, and the Hugging Face Hub cannot be reached \(.*refused"
    ):
        engine.models.load("clinic/other")


def test_what_is_no_model_is_refused_in_one_line(server: HubServer, tmp_path: Path) -> None:
    put(server, tmp_path / "model")
    server.repositories["clinic/text"] = {"README.md": b"", "pytorch_model.bin": b"x"}
    for name, revision, message in (
        ("clinic/absent", None, "neither a folder nor a model on the Hugging Face Hub that you can read"),
        ("clinic/model", "v2", "has no revision 'v2'"),
        ("clinic/text", None, "has no config.json and no model.safetensors on the Hugging Face Hub"),
    ):
        with pytest.raises(UserError, match=message) as error:
            engine.models.load(name, revision=revision)
        assert "\n" not in str(error.value)
    server.repositories["clinic/model"]["config.json"] = b'{"format": "other"}'
    with pytest.raises(UserError, match="contains no ecg-engine model"):
        engine.models.load("clinic/model")


def test_refused_uploads_are_explained(server: HubServer) -> None:
    model = engine.models.create(tiny_encoder_options(), leads=["I"])
    with pytest.raises(UserError, match="'model': expected OWNER/NAME"):
        model.push_to_hub("model")
    server.refuses = True
    with pytest.raises(UserError, match=r"clinic/model: cannot be uploaded .*; check that you are logged in") as error:
        model.push_to_hub("clinic/model")
    assert "\n" not in str(error.value)


def test_without_huggingface_hub_errors_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"^models/frist: no such folder; .*: pip install 'ecg-engine\[hub\]'$"):
        engine.models.load("models/frist")
    with pytest.raises(UserError, match=r"pip install 'ecg-engine\[hub\]'"):
        engine.models.create(tiny_encoder_options(), leads=["I"]).push_to_hub("clinic/model")


def test_paths_are_never_sought_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny_encoder(tmp_path / "clinic" / "model")
    engine.models.load("clinic/model")
    for name in ("clinic/model", Path("clinic/absent"), "absent", "./clinic/absent", "../a/b", "/a/b", "a/b/c", "a/", "a/ b"):
        assert not is_repository(name), name
    assert is_repository("clinic/absent")
