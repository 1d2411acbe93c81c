"""3KG against its float64 references: the views, the loss, and the laws of what is drawn."""

import math

import numpy as np
import pytest
import reference_losses
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny_model import tiny_encoder_options

from data_tools.augmentations import mask_time, turned_heart
from data_tools.leads import LEADS, derive_limb_leads
from data_tools.vcg import rotation_zyx as reference_rotation
from engine.objectives import DrawKeys, ThreeKG, ThreeKGDraws, ThreeKGOptions
from engine.objectives.contrast import Comparison, compare
from engine.objectives.three_kg import patient_loss, rotation_zyx
from engine.options import UserError

CPU = torch.device("cpu")


def objective(**options: float) -> ThreeKG:
    return ThreeKG(ThreeKGOptions.model_validate(options), tiny_encoder_options())


def draws_of(angles: np.ndarray, scales: np.ndarray, mask_start: np.ndarray) -> ThreeKGDraws:
    return ThreeKGDraws(*(torch.from_numpy(array).float() for array in (angles, scales, mask_start)))


@given(st.lists(st.tuples(*[st.floats(-180, 180)] * 3), min_size=1, max_size=4))
def test_rotations_equal_the_reference(angles: list[tuple[float, float, float]]) -> None:
    expected = reference_rotation(np.array(angles))
    np.testing.assert_allclose(rotation_zyx(torch.tensor(angles)), expected, atol=1e-6)


@pytest.mark.parametrize("masked_fraction", [0.5, 0.25, 0.0])
@pytest.mark.parametrize("num_samples", [2500, 7, 1])
def test_views_equal_the_reference(masked_fraction: float, num_samples: int) -> None:
    random = np.random.default_rng(num_samples)
    signal = random.normal(size=(6, 12, num_samples))
    angles, scales = random.uniform(-45, 45, (6, 3)), random.uniform(1, 1.5, (6, 3))
    start = random.integers(0, num_samples, (6, 12))
    expected = mask_time(turned_heart(signal, angles, scales), start, int(num_samples * masked_fraction))
    views = objective(masked_fraction=masked_fraction).make_views(
        torch.from_numpy(signal).float(), draws_of(angles, scales, (start + 0.5) / num_samples)
    )
    np.testing.assert_allclose(views, expected, atol=1e-5)


def test_views_keep_the_dtype_and_the_relations_of_the_limb_leads() -> None:
    three_kg = objective(masked_fraction=0)
    segments = torch.randn(4, 12, 50)
    draws = three_kg.draw(DrawKeys(1, 0, 0), 4, 3, CPU)
    assert three_kg.make_views(segments.bfloat16(), draws).dtype == torch.bfloat16
    views = dict(zip(LEADS, three_kg.make_views(segments, draws).unbind(1), strict=True))
    derived = derive_limb_leads(views["I"].numpy(), views["II"].numpy())
    for lead, values in zip(("III", "aVR", "aVL", "aVF"), derived, strict=True):
        np.testing.assert_allclose(views[lead], values, atol=1e-5)


def test_draws_follow_their_laws() -> None:
    num_views = 40_000
    angles, scales, start = objective().draw(DrawKeys(3, 5, 0), num_views, 10, CPU)
    for draws, low, high in ((angles, -45.0, 45.0), (scales, 1.0, 1.5), (start, 0.0, 1.0)):
        assert low <= draws.min() < low + 1e-2 * (high - low)
        assert high >= draws.max() > high - 1e-2 * (high - low)
        # Five standard errors of the mean and of the standard deviation of a uniform law.
        error = 5 * (high - low) / math.sqrt(12 * num_views)
        assert (draws.mean(0) - (low + high) / 2).abs().max() < error
        assert (draws.std(0) - (high - low) / math.sqrt(12)).abs().max() < error
        assert start.max() < 1
    columns = torch.cat([angles, scales, start], dim=1).T
    correlation = torch.corrcoef(torch.cat([columns[:, ::2], columns[:, 1::2]]))  # also between the two views of a pair
    assert (correlation - torch.eye(36)).abs().max() < 6 / math.sqrt(num_views / 2)


def test_draws_are_a_pure_function_of_seed_step_and_row() -> None:
    three_kg = objective()
    whole = three_kg.draw(DrawKeys(1, 7, 10), 8, 10, CPU)
    part = three_kg.draw(DrawKeys(1, 7, 12), 4, 10, CPU)
    for one, other in zip(whole, part, strict=True):
        assert torch.equal(one[4:], other)
    for keys in (DrawKeys(2, 7, 10), DrawKeys(1, 8, 10)):
        assert not torch.equal(whole.angles, three_kg.draw(keys, 8, 10, CPU).angles)


def test_options_bound_the_draws() -> None:
    angles, scales, _ = objective(max_angle=0, max_scale=1).draw(DrawKeys(1, 0, 0), 8, 10, CPU)
    assert not angles.any()
    assert (scales == 1).all()
    for wrong in ({"max_angle": -1}, {"max_scale": 0.9}, {"masked_fraction": 1}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            ThreeKGOptions.model_validate(wrong)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("patients", [[0, 1], [4, 2, 7, 9], [0, 0, 1, 2], [5, 1, 5, 5, 2]])
def test_loss_and_gradient_equal_the_reference(temperature: float, patients: list[int]) -> None:
    torch.manual_seed(len(patients))
    context = torch.randn(2 * len(patients), 3, 6)
    fast, slow = context.clone().requires_grad_(), context.double().requires_grad_()
    patient = torch.tensor(patients)
    loss, _ = patient_loss(compare(fast, patient, temperature))
    expected = reference_losses.patient_loss(slow.mean(1), patient.repeat_interleave(2), temperature)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    (actual_grad,) = torch.autograd.grad(loss, fast)
    (expected_grad,) = torch.autograd.grad(expected, slow)
    torch.testing.assert_close(actual_grad.double(), expected_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("patients", [[3], [6, 6, 6]])
def test_a_batch_of_one_patient_has_loss_zero_and_no_gradient(patients: list[int]) -> None:
    context = torch.randn(2 * len(patients), 3, 6, requires_grad=True)
    loss, metrics = patient_loss(compare(context, torch.tensor(patients), 0.1))
    (gradient,) = torch.autograd.grad(loss, context)
    assert loss == 0
    assert not gradient.any()
    assert metrics["accuracy_global"].item() == pytest.approx(1)


def test_accuracy_is_the_share_of_positives_above_every_negative() -> None:
    # Patients 0, 0 and 1. Of anchor 0, positives at 3 and 1, the highest negative at 2; all else as it should be.
    patient = torch.tensor([0, 0, 0, 0, 1, 1])
    logits = torch.where(patient == patient[:, None], 1.0, -1.0)
    logits[0] = torch.tensor([9.0, 3, 1, 3, 2, 0])
    comparison = Comparison(logits, torch.arange(6), patient, patient)
    assert patient_loss(comparison)[1]["accuracy_global"].item() == pytest.approx(13 / 14)


def test_fewer_leads_are_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"needs all 12 leads, got 6.*vectorcardiogram"):
        ThreeKG.check_leads(6)
    ThreeKG.check_leads(12)
