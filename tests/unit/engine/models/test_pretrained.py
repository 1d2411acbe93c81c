"""The native folder: loading returns what was saved, and refuses anything else in one line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved_model import save_tiny_classifier, save_tiny_encoder
from tiny_model import tiny_encoder_options, tiny_model
from torch import Tensor, nn

import engine.models
from data_tools.labels import LabelDefinition
from data_tools.leads import LEADS
from engine.interop.native import load_tensors, objective_section
from engine.models import ClassificationHead, Encoder, EncoderOptions, ModelConfig, PretrainedModel
from engine.models.heads import pool
from engine.models.model_weights import meta_device
from engine.models.pretrained import with_random_weights, zscore_per_lead
from engine.options import UserError

LABELS = ("AF", "LBBB", "NSR")


def random_tensors(kind: str) -> tuple[ModelConfig, dict[str, Tensor]]:
    """A tiny model of a kind, with weights that differ from those of a new module."""
    model = tiny_model("w2v_cmsc")
    tensors = model.state_dict()
    objective = None
    if kind == "pretraining":
        options = {"w2v": {"final_width": 16, "code_width": 16, "num_codes": 10, "num_negatives": 20}}
        objective = objective_section("w2v_cmsc", options)
    else:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}
    if kind == "classifier":
        head = ClassificationHead(model.encoder.options.width, len(LABELS))
        tensors |= {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    config = ModelConfig.model_validate(
        {
            "kind": kind,
            "encoder": model.encoder.options,
            "objective": objective,
            "labels": LABELS if kind == "classifier" else None,
            "provenance": {"source": "a test"},
        }
    )
    return config, tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that the test may damage."""
    config, tensors = random_tensors("pretraining")
    engine.models.save(tmp_path / "model", config, tensors)
    return tmp_path / "model"


@pytest.fixture
def segments() -> Tensor:
    return torch.randn(3, 12, 2500, generator=torch.Generator().manual_seed(1))


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


def test_embedding_is_the_mean_of_the_encoders_output(folder: Path, segments: Tensor) -> None:
    model = engine.models.load(str(folder))
    encoder = Encoder(model.config.encoder)
    encoder.load_state_dict(model.encoder.state_dict())
    with torch.no_grad():
        expected = encoder.eval()(segments).context.mean(1)
    embedding = model.embed(segments.double())  # any floating-point numbers
    assert torch.equal(embedding, model.embed(segments))
    torch.testing.assert_close(embedding, expected)
    assert not embedding.requires_grad
    torch.testing.assert_close(model.embed(segments[1:2]), embedding[1:2])


def test_classifier_returns_logits(tmp_path: Path, segments: Tensor) -> None:
    config, tensors = random_tensors("classifier")
    tensors["head.projection.bias"].copy_(torch.tensor([1.0, -2.0, 3.0]))
    engine.models.save(tmp_path / "model", config, tensors)
    model = engine.models.load(tmp_path / "model")
    expected = model.embed(segments) @ tensors["head.projection.weight"].T + tensors["head.projection.bias"]
    torch.testing.assert_close(model.logits(segments), expected)


def test_encoder_has_no_logits(folder: Path, segments: Tensor) -> None:
    with pytest.raises(ValueError, match="use embed"):
        engine.models.load(folder).logits(segments)


def test_pooling_averages_nonzero_entries() -> None:
    context = torch.randn(2, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(pool(context), context.mean(1))
    context[0, 3:] = 0.0
    torch.testing.assert_close(pool(context)[0], context[0, :3].mean(0))
    assert torch.equal(pool(torch.zeros(1, 4, 3)), torch.zeros(1, 3))


def test_normalization_follows_the_configuration(folder: Path, segments: Tensor) -> None:
    plain = engine.models.load(folder)
    config = plain.config.model_copy(update={"normalization": "zscore_per_lead"})
    model = PretrainedModel(config, plain.encoder)
    normed = (segments - segments.mean(-1, keepdim=True)) / segments.std(-1, correction=0, keepdim=True)
    torch.testing.assert_close(model.embed(5 * segments + 1), plain.embed(normed))
    assert torch.equal(model.embed(normed, is_normalized=True), plain.embed(normed))


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=20), st.floats(-1e3, 1e3, width=32))
def test_zscore_is_finite_and_standard(values: list[float], level: float) -> None:
    signal = torch.tensor([values, [level] * len(values)])
    normed = zscore_per_lead(signal)
    assert normed.isfinite().all()
    assert not normed[1].any()  # a flat lead becomes zero
    if len(set(values)) > 1 and signal[0].double().std() > 1e-2:  # below it, rounding of the mean shows
        torch.testing.assert_close(normed[0].double().mean().item(), 0.0, atol=1e-3, rtol=0)
        torch.testing.assert_close(normed[0].double().std(correction=0).item(), 1.0, atol=1e-3, rtol=0)


@pytest.mark.parametrize("shape", [(3, 6, 640), (12, 640), (1, 3, 12, 640), (2, 12, 9)])
def test_wrong_segment_shapes_are_refused(folder: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="segment") as error:
        engine.models.load(folder).context(torch.zeros(shape))
    assert "\n" not in str(error.value)


def test_int16_microvolts_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"floating-point numbers in mV, got torch.int16; .* segments / 1000"):
        engine.models.load(folder).context(torch.zeros(1, 12, 640, dtype=torch.int16))
    with pytest.raises(TypeError, match=r"expected a tensor, got ndarray; .* torch\.from_numpy"):
        engine.models.load(folder).context(np.zeros((1, 12, 640), np.float32))  # type: ignore[arg-type]


def test_an_empty_batch_has_no_embeddings(folder: Path) -> None:
    assert engine.models.load(folder).embed(torch.zeros(0, 12, 640)).shape == (0, 32)


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    engine.models.load(folder)
    assert torch.equal(torch.rand(3), expected)


def test_a_loaded_model_can_be_trained(folder: Path, segments: Tensor) -> None:
    model = engine.models.load(folder)
    model.context(segments).sum().backward()
    assert model.encoder.feature_projection.weight.grad is not None


def test_the_model_card_describes_input_and_output(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    for word in (", ".join(LEADS), "500 Hz", "mV", "w2v_cmsc", "a test", "engine.models.load"):
        assert word in card


def test_all_files_have_the_same_permissions(folder: Path) -> None:
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = random_tensors("encoder")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.models.pretrained.save_file", full)
    with pytest.raises(UserError, match="No space left"):
        engine.models.save(tmp_path / "model", config, tensors)
    assert not list(tmp_path.iterdir())


def test_existing_folders_are_not_overwritten(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    config, tensors = random_tensors("encoder")
    with pytest.raises(UserError, match="already exists"):
        engine.models.save(folder, config, tensors)
    assert (folder / "model.safetensors").read_bytes() == before
    empty = folder.parent / "empty"
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


def test_a_folder_without_a_model_is_refused(tmp_path: Path, folder: Path) -> None:
    assert "choose the folder of a model" in refused(tmp_path / "absent")
    (folder / "model.safetensors").unlink()
    refused(folder)


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
def test_invalid_configurations_are_refused_in_one_line(folder: Path, changes: dict[str, object], word: str) -> None:
    rewrite(folder, **changes)
    assert word in refused(folder)


def test_sizes_beyond_pytorchs_limits_are_refused() -> None:
    with pytest.raises(UserError, match=r"config\.json: the configured model is too large"), meta_device("config.json"):
        nn.Linear(10**12, 10**12)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"null", b"[" * 100_000])
def test_damaged_configurations_are_refused(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder)


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
def test_weights_that_do_not_match_are_refused(folder: Path, changes: dict[str, Tensor | None], word: str) -> None:
    change_weights(folder, changes)
    assert word in refused(folder)


def test_weights_in_half_precision_become_fp32(folder: Path) -> None:
    change_weights(folder, {"encoder.context_norm.weight": torch.full((32,), 0.5, dtype=torch.bfloat16)})
    weight = engine.models.load(folder).encoder.context_norm.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, torch.full((32,), 0.5))


def test_heads_that_do_not_match_are_refused(folder: Path) -> None:
    change_weights(folder, {"objective.w2v.context_projection.bias": None})
    engine.models.load(folder)  # embeddings do not need them
    with pytest.raises(UserError, match=re.escape("missing objective.w2v.context_projection.bias")):
        load_tensors(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -10])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:keep])
    assert "not a valid safetensors file" in refused(folder)


def test_options_of_another_objective_are_refused(folder: Path) -> None:
    rewrite(folder, objective={"name": "w2v_cmcs"})
    with pytest.raises(UserError, match="unknown objective 'w2v_cmcs'; known: w2v"):
        load_tensors(folder)
    rewrite(folder, objective={"name": "cmsc", "temperatur": 1})
    with pytest.raises(UserError, match="temperatur: no such key"):
        load_tensors(folder)


def test_the_number_of_leads_is_checked_and_written() -> None:
    with pytest.raises(ValueError, match="num_leads"):
        ModelConfig.model_validate({"kind": "encoder", "encoder": {"num_leads": 3}})
    leads = ("I", "II", "V2")
    config = ModelConfig.model_validate({"kind": "encoder", "encoder": {"num_leads": 3}, "leads": leads})
    assert config == ModelConfig(kind="encoder", encoder=EncoderOptions(), leads=leads)
    assert config.model_dump(mode="json")["encoder"]["num_leads"] == 3


def test_a_classifier_predicts_with_the_names_and_thresholds_of_its_definition(tmp_path: Path) -> None:
    own = LabelDefinition(name="rhythm", kind="multilabel", classes=("AF", "NSR"), thresholds=(0.3, 0.6))
    segments = torch.randn(3, 12, 2500)
    for folder, definition in (("own", own), ("converted", None)):
        model = engine.models.load(save_tiny_classifier(tmp_path / folder, definition))
        torch.testing.assert_close(model.predict(segments), model.logits(segments).sigmoid())
        assert (model.definition.classes, model.definition.thresholds) == (
            (("AF", "NSR"), (0.3, 0.6)) if definition else (("x", "y"), None)
        )
    encoder = engine.models.load(save_tiny_encoder(tmp_path / "encoder"))
    with pytest.raises(ValueError, match="has no logits"):
        encoder.predict(segments)
    with pytest.raises(ValueError, match="has no labels; use embed, or fine-tune it"):
        _ = encoder.definition


def test_random_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    saved = engine.models.load(save_tiny_classifier(tmp_path / "model", leads=("I", "V2"), normalization="zscore_per_lead"))
    state = torch.get_rng_state()
    first, same, other = (with_random_weights(saved.config, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert (first.config.kind, first.config.leads, first.config.normalization) == ("encoder", ("I", "V2"), "zscore_per_lead")
    weights = [model.encoder.state_dict() for model in (first, same, other)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert not all(torch.equal(tensor, weights[2][name]) for name, tensor in weights[0].items())
    first.embed(torch.randn(2, 2, 2500))


def test_leads_of_fine_tuning_must_be_the_models() -> None:
    config, _ = random_tensors("encoder")
    with pytest.raises(ValueError, match="'trained_leads' must be among 'leads'"):
        ModelConfig.model_validate(config.model_dump() | {"trained_leads": ("I", "V7")})


def test_a_created_model_depends_on_its_seed_alone_and_saves_itself(tmp_path: Path) -> None:
    options = tiny_encoder_options()
    before = torch.get_rng_state()
    model, same, other = (engine.models.create(options, leads=["I", "V2"], seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    segments = torch.randn(2, 2, 2500)
    assert torch.equal(model(segments), same.embed(segments))
    assert not torch.equal(model(segments), other(segments))
    model.save(tmp_path / "model")
    assert torch.equal(engine.models.load(tmp_path / "model")(segments), model(segments))
    with pytest.raises(UserError, match="unknown architecture 'large'; known: base"):
        engine.models.create("large")


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
