"""3KG's loss against its float64 reference; its views are augmentations."""

import pytest
import reference_losses
import torch

from engine.objectives.contrast import Comparison, compare
from engine.objectives.three_kg import patient_loss


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
    metrics = patient_loss(comparison)[1]
    assert metrics["accuracy_global"].item() == pytest.approx(13 / 14)
    assert metrics["chance_global"].item() == pytest.approx((12 / 3 + 2 / 5) / 14)
