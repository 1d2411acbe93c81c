"""VCG transform and time mask: against the float64 reference, in NumPy and torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from reference_augmentations import consistent_limb_leads, time_mask, vcg_transform
from scipy import stats

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations import AugmentationOptions, base, make_augmentations
from data_tools.augmentations.base import SignalMap
from data_tools.vcg import INVERSE_DOWER
from engine.data.array_ops import TORCH_OPS
from engine.data.transform import as_tensor

SEGMENTS = np.arange(100, 3100)
GOLDEN = Path(__file__).parents[3] / "golden" / "contrastive.npz"


def make(name: str, seed: int = 1, **options: Any) -> SignalMap:
    (augmentation,) = make_augmentations(AugmentationOptions.model_validate({name: options}), seed, range(12))
    assert isinstance(augmentation, SignalMap)
    return augmentation


def apply(augmentation: SignalMap, signal: NDArray[np.float32], *draws: NDArray[Any]) -> NDArray[np.float32]:
    """By NumPy, compared with torch."""
    mapped: NDArray[np.float32] = augmentation.apply(NUMPY_OPS, signal, *draws)
    assert mapped.dtype == np.float32
    by_torch = augmentation.apply(TORCH_OPS, torch.from_numpy(signal), *map(as_tensor, draws))
    np.testing.assert_allclose(by_torch.numpy(), mapped, rtol=0, atol=2e-6)
    return mapped


def make_signal(num_segments: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(num_segments, 12, 2500)).astype(np.float32)


def uniform_draws(monkeypatch: pytest.MonkeyPatch, draws: NDArray[np.float64]) -> None:
    """Makes these the draws from U(0, 1) instead of random ones."""
    monkeypatch.setattr(base, "to_uniform", lambda *_: draws.astype(np.float32))


def test_the_vcg_transform_is_that_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1).random((20, 7))
    uniform_draws(monkeypatch, draws)
    transform, signal = make("vcg_transform"), make_signal(20)
    expected = vcg_transform(signal.astype(np.float64), 90 * draws[:, 1:4] - 45, 1 + draws[:, 4:] / 2)
    np.testing.assert_allclose(apply(transform, signal, *transform.draw(np.arange(20))), expected, rtol=0, atol=2e-5)


def test_the_time_mask_is_that_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(1).random((20, 13))
    draws[0, 1:] = np.linspace(0, 1 - 1e-7, 12)
    uniform_draws(monkeypatch, draws)
    signal = make_signal(20)
    for fraction in (0.5, 0.25, 0.0, 1.0):
        mask = make("time_mask", fraction=fraction)
        expected = time_mask(
            signal.astype(np.float64), np.floor(2500 * draws[:, 1:].astype(np.float32)).astype(int), int(2500 * fraction)
        )
        assert np.array_equal(apply(mask, signal, *mask.draw(np.arange(20))), expected)


def test_views_of_3kg_are_those_of_the_official_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = np.load(GOLDEN)
    signal = np.zeros((2, 12, 2500), np.float32)
    num_samples = golden["3kg_in"].shape[1]
    signal[:, :, :num_samples] = golden["3kg_in"]
    angles, scales = golden["3kg_angles_deg_zyx"], golden["3kg_scales"]
    uniform_draws(monkeypatch, np.concatenate([np.zeros((2, 1)), (angles + 45) / 90, (scales - 1) * 2], 1))
    transform = make("vcg_transform")
    views = apply(transform, signal, *transform.draw(np.arange(2)))[..., :num_samples]
    masked = time_mask(views.astype(np.float64), golden["3kg_mask_start"], num_samples // 2)
    np.testing.assert_allclose(masked, np.stack([golden["3kg_view1"], golden["3kg_view2"]]), rtol=0, atol=1e-5)


def test_draws_are_distributed_as_the_options_say() -> None:
    to_ecg, unchanged = make("vcg_transform").draw(SEGMENTS)
    assert not unchanged.any()
    matrix = INVERSE_DOWER @ to_ecg[..., 0].swapaxes(1, 2)[:, [0, 1, *range(6, 12)]].astype(np.float64)  # scaling @ rotation
    scales = np.linalg.norm(matrix, axis=2)
    rotation = matrix / scales[..., None]
    y = np.degrees(np.arcsin(rotation[:, 0, 2]))
    z = np.degrees(np.arctan2(-rotation[:, 0, 1], rotation[:, 0, 0]))
    x = np.degrees(np.arctan2(-rotation[:, 1, 2], rotation[:, 2, 2]))
    start, length = make("time_mask").draw(SEGMENTS)
    assert (length == 1250).all()
    assert start.max() < 2500
    for angle in (x, y, z):
        assert stats.kstest(angle, stats.uniform(-45, 90).cdf).pvalue > 1e-4
    assert stats.kstest(scales.ravel(), stats.uniform(1, 0.5).cdf).pvalue > 1e-4
    assert stats.kstest(start.ravel() + 0.5, stats.uniform(0, 2500).cdf).pvalue > 1e-4
    columns = np.concatenate([np.stack([x, y, z], 1), scales, start[..., 0]], 1)
    correlation = np.corrcoef(np.concatenate([columns[::2], columns[1::2]], 1).T)  # also between the views of a pair
    assert np.abs(correlation - np.eye(36)).max() < 6 / np.sqrt(len(SEGMENTS) / 2)


@pytest.mark.parametrize("name", ["vcg_transform", "time_mask"])
def test_p_is_the_share_of_segments_that_are_changed(name: str) -> None:
    augmentation, signal = make(name, p=0.3), make_signal(200)
    changed = (apply(augmentation, signal, *augmentation.draw(SEGMENTS[:200])) != signal).any(axis=(1, 2))
    assert abs(changed.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 200)


@pytest.mark.parametrize("name", ["vcg_transform", "time_mask"])
def test_a_segment_has_the_same_draws_in_whatever_batch_it_comes(name: str) -> None:
    whole, part = make(name).draw(SEGMENTS), make(name).draw(SEGMENTS[70:90])
    assert all(np.array_equal(one[70:90], other) for one, other in zip(whole, part, strict=True))
    assert not np.array_equal(whole[0], make(name, seed=2).draw(SEGMENTS)[0])


def test_limb_leads_follow_from_i_and_ii_after_the_vcg_transform() -> None:
    transform = make("vcg_transform")
    mapped = apply(transform, make_signal(4), *transform.draw(SEGMENTS[:4]))
    np.testing.assert_allclose(mapped, consistent_limb_leads(mapped.astype(np.float64)), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vcg_transform", {"angle_deg": [10, -10]}, "reversed"),
        ("vcg_transform", {"scale": [-1, 1]}, "greater than or equal to 0"),
        ("time_mask", {"fraction": 1.5}, "less than or equal to 1"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AugmentationOptions.model_validate({name: options})


def test_the_vcg_transform_needs_all_leads() -> None:
    options = AugmentationOptions.model_validate({"vcg_transform": {}})
    with pytest.raises(ValueError, match=r"data\.augmentations\.vcg_transform needs all 12 leads, got 6: .*vcg_transform=null"):
        make_augmentations(options, 1, range(6))
