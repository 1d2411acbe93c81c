"""A trained model: embeddings, logits, predictions and normalization."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved_model import random_tensors, save_tiny_classifier, save_tiny_encoder
from tiny_model import tiny_encoder_options
from torch import Tensor

import engine.models
from data_tools.labels import LabelDefinition
from engine.models import Encoder, PretrainedModel
from engine.models.heads import pool
from engine.models.normalization import zscore_per_lead
from engine.models.pretrained import with_random_weights
from engine.options import UserError


@pytest.fixture
def segments() -> Tensor:
    return torch.randn(3, 12, 2500, generator=torch.Generator().manual_seed(1))


def test_embedding_is_the_mean_of_the_encoders_output(model_folder: Path, segments: Tensor) -> None:
    model = engine.models.load(str(model_folder))
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


def test_a_model_is_described_in_one_line(tmp_path: Path) -> None:
    encoder = engine.models.load(save_tiny_encoder(tmp_path / "encoder", leads=["I"]))
    millions = sum(parameter.numel() for parameter in encoder.parameters()) / 1e6
    assert repr(encoder) == (
        f"PretrainedModel(encoder; {millions:.1f}M parameters; 2 blocks of width 32; 1 lead (I) at 500 Hz)"
    )
    definition = LabelDefinition(name="rhythm", kind="multilabel", classes=("AF", "NSR"))
    classifier = engine.models.load(save_tiny_classifier(tmp_path / "classifier", definition))
    assert repr(classifier).startswith("PretrainedModel(classifier; ")
    assert repr(classifier).endswith(" at 500 Hz; 2 labels (multilabel))")


def test_encoder_has_no_logits(model_folder: Path, segments: Tensor) -> None:
    with pytest.raises(ValueError, match="use embed"):
        engine.models.load(model_folder).logits(segments)


def test_pooling_averages_nonzero_entries() -> None:
    context = torch.randn(2, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(pool(context), context.mean(1))
    context[0, 3:] = 0.0
    torch.testing.assert_close(pool(context)[0], context[0, :3].mean(0))
    assert torch.equal(pool(torch.zeros(1, 4, 3)), torch.zeros(1, 3))


def test_normalization_follows_the_configuration(model_folder: Path, segments: Tensor) -> None:
    plain = engine.models.load(model_folder)
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
def test_wrong_segment_shapes_are_refused(model_folder: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="segment") as error:
        engine.models.load(model_folder).context(torch.zeros(shape))
    assert "\n" not in str(error.value)


def test_int16_microvolts_are_refused(model_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"floating-point numbers in mV, got torch.int16; .* segments / 1000"):
        engine.models.load(model_folder).context(torch.zeros(1, 12, 640, dtype=torch.int16))
    with pytest.raises(TypeError, match=r"expected a tensor, got ndarray; .* torch\.from_numpy"):
        engine.models.load(model_folder).context(np.zeros((1, 12, 640), np.float32))  # type: ignore[arg-type]


def test_an_empty_batch_has_no_embeddings(model_folder: Path) -> None:
    assert engine.models.load(model_folder).embed(torch.zeros(0, 12, 640)).shape == (0, 32)


def test_a_loaded_model_can_be_trained(model_folder: Path, segments: Tensor) -> None:
    model = engine.models.load(model_folder)
    model.context(segments).sum().backward()
    assert model.encoder.feature_projection.weight.grad is not None


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
    with pytest.raises(ValueError, match="was not fine-tuned for labels"):
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
