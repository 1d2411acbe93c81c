"""Crops to embeddings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from recording_files import random_signal
from saved_model import save_tiny_encoder

from data_tools.leads import LEADS
from engine.device import Precision
from engine.inference import Embedder
from engine.inference.inputs import Crop
from engine.models import load
from engine.options import UserError


def make_crops(num_valid: Sequence[int], leads: tuple[str, ...] = LEADS) -> list[Crop]:
    crops = []
    for number, valid in enumerate(num_valid):
        signal = random_signal(number)
        signal[:, valid:] = 0
        signal[[lead not in leads for lead in LEADS]] = 0
        crops.append(Crop(f"crop-{number}", "test", f"r{number}", signal, valid, leads, ()))
    return crops


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def zscore_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "zscore", normalization="zscore_per_lead")


def test_embeddings_are_those_of_the_model(folder: Path) -> None:
    crops = make_crops([5000, 5000, 5000])
    embeddings, num_segments = Embedder(load(folder))(crops)
    assert embeddings.shape == (3, 2, 32)
    assert embeddings.dtype == np.float32
    assert num_segments.tolist() == [2, 2, 2]
    model = load(folder)
    for crop, embedding in zip(crops, embeddings, strict=True):
        halves = torch.from_numpy(crop.signal.astype(np.float32) / 1000).reshape(12, 2, 2500).transpose(0, 1)
        np.testing.assert_allclose(embedding, model.embed(halves).numpy(), atol=1e-5)


def test_incomplete_segments_are_nan(folder: Path) -> None:
    embedder = Embedder(load(folder))
    embeddings, num_segments = embedder(make_crops([5000, 2500, 4999, 2499, 0]))
    assert num_segments.tolist() == [2, 1, 1, 0, 0]
    assert np.isnan(embeddings).all(axis=-1).tolist() == [[k >= n for k in range(2)] for n in num_segments]
    assert not np.isnan(embeddings[[0, 1, 2], 0]).any()
    nothing, _ = embedder(make_crops([100]))
    assert np.isnan(nothing).all()


def test_embeddings_do_not_depend_on_the_batch(folder: Path) -> None:
    embedder, crops = Embedder(load(folder)), make_crops([5000, 3000, 5000, 5000, 2600])
    together, _ = embedder(crops)
    for crop, expected in zip(crops, together, strict=True):
        alone, _ = embedder([crop])
        np.testing.assert_allclose(alone[0], expected, atol=1e-6)


def test_leads_that_are_not_in_use_are_zero(folder: Path) -> None:
    crops = make_crops([5000, 5000])
    hidden = [
        replace(crop, signal=np.where([[lead in {"I", "V2"}] for lead in LEADS], crop.signal, 0).astype(np.int16))
        for crop in crops
    ]
    seen, _ = Embedder(load(folder), ["I", "V2"])(crops)
    expected, _ = Embedder(load(folder))(hidden)
    np.testing.assert_array_equal(seen, expected)
    everything, _ = Embedder(load(folder))(crops)
    assert np.abs(seen - everything).max() > 1e-3


def test_leads_are_in_the_models_order(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "model", leads=("V2", "I"))
    embedder = Embedder(load(folder))
    assert embedder.leads == ("V2", "I")
    (crop,) = make_crops([5000])
    segment = torch.from_numpy(crop.signal[[LEADS.index("V2"), 0], :2500].astype(np.float32) / 1000)
    np.testing.assert_allclose(embedder([crop])[0][0, 0], load(folder).embed(segment[None])[0].numpy(), atol=1e-5)


def test_leads_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    model = load(save_tiny_encoder(tmp_path / "model", leads=("I", "II")))
    with pytest.raises(UserError, match=r"has no lead V1: choose from I, II"):
        Embedder(model, ["I", "V1"])


def test_zscore_is_over_the_valid_samples_of_the_whole_crop(zscore_folder: Path) -> None:
    crops = make_crops([5000, 3000])
    embeddings, _ = Embedder(load(zscore_folder))(crops)
    model = load(zscore_folder)
    for crop, embedding in zip(crops, embeddings, strict=True):
        valid = crop.signal[:, : crop.num_valid_samples].astype(np.float64)
        scored = (valid - valid.mean(axis=1, keepdims=True)) / valid.std(axis=1, keepdims=True)
        segment = torch.from_numpy(scored[None, :, :2500].astype(np.float32))
        expected = model.embed(segment, is_normalized=True)[0].numpy()
        np.testing.assert_allclose(embedding[0], expected, atol=2e-5)


def test_zscore_leaves_hidden_and_missing_leads_zero(zscore_folder: Path) -> None:
    embedder = Embedder(load(zscore_folder), ["I", "II"])
    full, limb = make_crops([5000]), make_crops([5000], leads=("I", "II"))
    np.testing.assert_array_equal(embedder(full)[0], embedder(limb)[0])
    assert np.isfinite(embedder(full)[0]).all()


def test_bf16_is_near_fp32(folder: Path) -> None:
    crops = make_crops([5000] * 4)
    exact, _ = Embedder(load(folder))(crops)
    rounded, _ = Embedder(load(folder), precision="bf16")(crops)
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.05)])
def test_embeddings_on_a_gpu_are_the_same(zscore_folder: Path, precision: Precision, tolerance: float) -> None:
    crops = make_crops([5000, 3000, 1000, 5000])
    expected, num_segments = Embedder(load(zscore_folder), ["I", "II", "V2"])(crops)
    embeddings, same_num = Embedder(load(zscore_folder), ["I", "II", "V2"], "cuda", precision)(crops)
    np.testing.assert_array_equal(same_num, num_segments)
    np.testing.assert_allclose(embeddings, expected, atol=tolerance * np.nanmax(np.abs(expected)))


def test_embedding_is_deterministic(folder: Path) -> None:
    model = load(folder)
    model.train()  # the embedder must not rely on the mode
    embedder = Embedder(model)
    crops = make_crops([5000])
    np.testing.assert_array_equal(embedder(crops)[0], embedder(crops)[0])


def test_segments_of_another_length(tmp_path: Path) -> None:
    (crop,) = make_crops([5000])
    for samples, num_segments in ((5000, 1), (1250, 4), (2000, 2)):
        folder = save_tiny_encoder(tmp_path / str(samples), segment_samples=samples)
        embedder = Embedder(load(folder))
        assert embedder.num_segments == num_segments
        embeddings, counts = embedder([crop])
        assert counts.tolist() == [num_segments]
        last = torch.from_numpy(crop.signal[None, :, (num_segments - 1) * samples :][..., :samples] / np.float32(1000))
        np.testing.assert_allclose(embeddings[0, -1], load(folder).embed(last)[0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("config", "message"), [({"sampling_rate": 250}, "250 Hz"), ({"segment_samples": 5001}, "5001 samples")]
)
def test_models_of_other_signals_are_refused(tmp_path: Path, config: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Embedder(load(save_tiny_encoder(tmp_path / "model", **config)))
    assert "\n" not in str(caught.value)
