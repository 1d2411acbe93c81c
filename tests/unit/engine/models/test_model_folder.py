"""A model's folder: loading returns what was saved, and refuses anything else in one line."""

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from saved_model import random_tensors
from torch import Tensor, nn

import engine.models
from data_tools.leads import LEADS
from engine.interop.native import load_tensors
from engine.models import EncoderOptions, ModelConfig
from engine.models.model_weights import meta_device
from engine.options import UserError


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        engine.models.load(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["encoder", "pretraining", "classifier"])
def test_loading_returns_what_was_saved(tmp_path: Path, kind: str) -> None:
    config, tensors = random_tensors(kind)
    engine.models.save(tmp_path / "new" / "model", config, tensors)
    model, loaded = load_tensors(tmp_path / "new" / "model")
    assert model.config == config
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert not model.training
    names = {path.name for path in (tmp_path / "new" / "model").iterdir()}
    assert names == {"model.safetensors", "config.json", "README.md"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]


@pytest.mark.parametrize("kind", ["pretraining", "classifier"])
def test_a_loaded_model_saves_all_its_tensors(kind: str, tmp_path: Path) -> None:
    config, tensors = random_tensors(kind)
    engine.models.save(tmp_path / "one", config, tensors)
    model = engine.models.load(tmp_path / "one")
    model.save(tmp_path / "two")
    assert all((tmp_path / folder / "model.safetensors").exists() for folder in ("one", "two"))
    again = safetensors.torch.load_file(tmp_path / "two" / "model.safetensors")
    assert again.keys() == tensors.keys()
    if kind == "classifier":
        segments = torch.randn(1, 12, 200)
        assert torch.equal(model(segments), model.logits(segments))
        model(segments).sum().backward()


def test_loading_draws_no_random_numbers(model_folder: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    engine.models.load(model_folder)
    assert torch.equal(torch.rand(3), expected)


def test_the_model_card_describes_input_and_output(model_folder: Path) -> None:
    card = (model_folder / "README.md").read_text()
    for word in (", ".join(LEADS), "500 Hz", "mV", "w2v_cmsc", "a test", "engine.models.load"):
        assert word in card


def test_all_files_have_the_same_permissions(model_folder: Path) -> None:
    modes = {path.stat().st_mode for path in model_folder.iterdir()}
    assert len(modes) == 1


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = random_tensors("encoder")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.models.model_folder.save_file", full)
    with pytest.raises(UserError, match="No space left"):
        engine.models.save(tmp_path / "model", config, tensors)
    assert not list(tmp_path.iterdir())


def test_existing_folders_are_not_overwritten(model_folder: Path) -> None:
    before = (model_folder / "model.safetensors").read_bytes()
    config, tensors = random_tensors("encoder")
    with pytest.raises(UserError, match="already exists"):
        engine.models.save(model_folder, config, tensors)
    assert (model_folder / "model.safetensors").read_bytes() == before
    empty = model_folder.parent / "empty"
    empty.mkdir()
    engine.models.save(empty, config, tensors)
    engine.models.load(empty)


def test_the_working_folder_can_become_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    engine.models.save(".", *random_tensors("encoder"))
    engine.models.load(tmp_path / "model")


def rewrite(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


def test_a_folder_without_a_model_is_refused(tmp_path: Path, model_folder: Path) -> None:
    assert "choose the folder of a model" in refused(tmp_path / "absent")
    (model_folder / "model.safetensors").unlink()
    refused(model_folder)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"format": "other"}, "contains no ecg-engine model"),
        ({"format_version": 2}, "format version 2"),
        ({"kind": "decoder"}, "kind"),
        ({"leads": ["I", "II"]}, "num_leads is 12"),
        ({"leads": ["I"] * 12}, "distinct"),
        ({"leads": [*LEADS[:11], "X"]}, "distinct names among"),
        ({"normalization": "minmax"}, "normalization"),
        ({"surplus": 1}, "no such key"),
        ({"objective": None}, "objective"),
        ({"objective": {}}, "objective.name is missing"),
        ({"labels": ["AF"]}, "labels"),
        ({"labels": []}, "labels"),
        ({"kind": "classifier", "objective": None, "labels": ["AF", "AF"]}, "distinct"),
        ({"encoder": {"widht": 3}}, "encoder.widht"),
        ({"encoder": 3}, "encoder"),
        ({"sampling_rate": -1}, "sampling_rate"),
        ({"encoder": {"pos_kernel": 10**18}}, "encoder.pos_kernel"),
        ({"encoder": {"depth": 10**9}}, "encoder.depth"),  # building that many blocks would take hours
    ],
)
def test_invalid_configurations_are_refused_in_one_line(model_folder: Path, changes: dict[str, object], word: str) -> None:
    rewrite(model_folder, **changes)
    assert word in refused(model_folder)


def test_sizes_beyond_pytorchs_limits_are_refused() -> None:
    with pytest.raises(UserError, match=r"config\.json: the configured model is too large"), meta_device("config.json"):
        nn.Linear(10**12, 10**12)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"null", b"[" * 100_000])
def test_damaged_configurations_are_refused(model_folder: Path, content: bytes) -> None:
    (model_folder / "config.json").write_bytes(content)
    refused(model_folder)


def change_weights(folder: Path, changes: dict[str, Tensor | None]) -> None:
    tensors: dict[str, Tensor | None] = dict(safetensors.torch.load_file(folder / "model.safetensors"))
    kept = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    safetensors.torch.save_file(kept, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"encoder.blocks.0.fc1.bias": None}, "missing encoder.blocks.0.fc1.bias"),
        ({"encoder.more": torch.zeros(1)}, "unexpected encoder.more"),
        ({"head.projection.bias": torch.zeros(1)}, "unexpected head.projection.bias"),
        ({"encoder.blocks.0.fc1.bias": torch.zeros(3)}, "has shape [3], expected [64]"),
        ({"encoder.blocks.0.fc1.bias": torch.zeros(64, dtype=torch.int64)}, "floating-point"),
        ({"encoder.blocks.0.fc1.bias": torch.full((64,), torch.nan)}, "contains NaN"),
        ({"encoder.blocks.0.fc1.bias": torch.full((64,), 1e300, dtype=torch.float64)}, "infinity"),
        ({"objective.w2v.context_projection.bias": torch.full((16,), torch.inf)}, "infinity"),
    ],
)
def test_weights_that_do_not_match_are_refused(model_folder: Path, changes: dict[str, Tensor | None], word: str) -> None:
    change_weights(model_folder, changes)
    assert word in refused(model_folder)


def test_weights_in_half_precision_become_fp32(model_folder: Path) -> None:
    change_weights(model_folder, {"encoder.context_norm.weight": torch.full((32,), 0.5, dtype=torch.bfloat16)})
    weight = engine.models.load(model_folder).encoder.context_norm.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, torch.full((32,), 0.5))


def test_heads_that_do_not_match_are_refused(model_folder: Path) -> None:
    change_weights(model_folder, {"objective.w2v.context_projection.bias": None})
    engine.models.load(model_folder)  # embeddings do not need them
    with pytest.raises(UserError, match=re.escape("missing objective.w2v.context_projection.bias")):
        load_tensors(model_folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -10])
def test_truncated_weights_are_refused(model_folder: Path, keep: int) -> None:
    content = (model_folder / "model.safetensors").read_bytes()
    (model_folder / "model.safetensors").write_bytes(content[:keep])
    assert "not a valid safetensors file" in refused(model_folder)


def test_options_of_another_objective_are_refused(model_folder: Path) -> None:
    rewrite(model_folder, objective={"name": "w2v_cmcs"})
    with pytest.raises(UserError, match="unknown objective 'w2v_cmcs'; known: w2v"):
        load_tensors(model_folder)
    rewrite(model_folder, objective={"name": "cmsc", "temperatur": 1})
    with pytest.raises(UserError, match="temperatur: no such key"):
        load_tensors(model_folder)


def test_the_number_of_leads_is_checked_and_written() -> None:
    with pytest.raises(ValueError, match="num_leads"):
        ModelConfig.model_validate({"kind": "encoder", "encoder": {"num_leads": 3}})
    leads = ("I", "II", "V2")
    config = ModelConfig.model_validate({"kind": "encoder", "encoder": {"num_leads": 3}, "leads": leads})
    assert config == ModelConfig(kind="encoder", encoder=EncoderOptions(), leads=leads)
    assert config.model_dump(mode="json")["encoder"]["num_leads"] == 3


def test_leads_of_fine_tuning_must_be_the_models() -> None:
    config, _ = random_tensors("encoder")
    with pytest.raises(ValueError, match="'trained_leads' must be among 'leads'"):
        ModelConfig.model_validate(config.model_dump() | {"trained_leads": ("I", "V7")})


def test_the_folder_of_a_run_is_that_of_its_model(model_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()
    with pytest.raises(UserError, match=f"no model yet: .* `engine/convert.py deepspeed {re.escape(str(run))} OUT_DIR`"):
        engine.models.load(run)
    (run / "model").symlink_to(model_folder)
    assert engine.models.load(run).config == engine.models.load(model_folder).config
