"""The global objective against its float64 reference, and its rules."""

import math

import pytest
import reference_losses
import torch
from tiny_model import tiny_encoder_options
from torch import Tensor

from engine.models import EncoderOutput
from engine.objectives.cmsc import CMSC, CMSCOptions
from engine.objectives.contrast import Comparison, PairForm, pair_candidates

FORMS: list[PairForm] = ["ntxent", "symmetric"]


def as_output(context: Tensor) -> EncoderOutput:
    return EncoderOutput(context=context, features=context, latents=context)


def objective(form: PairForm, temperature: float = 0.1) -> CMSC:
    return CMSC(CMSCOptions(form=form, temperature=temperature), tiny_encoder_options())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("patients", [[3], [0, 1], [4, 2, 7, 9], [0, 0, 1, 2], [5, 1, 5, 5, 2], [6, 6, 6]])
@pytest.mark.parametrize("num_tokens", [1, 7])
def test_value_and_gradient_equal_the_reference(
    form: PairForm, temperature: float, patients: list[int], num_tokens: int
) -> None:
    torch.manual_seed(len(patients))
    context = torch.randn(2 * len(patients), num_tokens, 6)
    fast, slow = context.clone().requires_grad_(), context.double().requires_grad_()
    patient = torch.tensor(patients)
    loss, _ = objective(form, temperature).global_loss(as_output(fast), patient)
    expected = reference_losses.global_loss(slow.mean(1), patient, form, temperature)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    (actual_grad,) = torch.autograd.grad(loss, fast)
    (expected_grad,) = torch.autograd.grad(expected, slow)
    torch.testing.assert_close(actual_grad.double(), expected_grad, rtol=1e-4, atol=1e-6)


def test_other_crops_of_the_patient_are_not_candidates() -> None:
    # Pairs of patients 0, 0 and 1; anchors are the four segments of the last two pairs, as on a second rank.
    anchor, patients = torch.tensor([2, 3, 4, 5]), torch.tensor([0, 0, 0, 0, 1, 1])
    ntxent = [[0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 0]]
    symmetric = [[0, 0, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]]
    for form, expected in zip(FORMS, (ntxent, symmetric), strict=True):
        candidates = pair_candidates(Comparison(torch.zeros(4, 6), anchor, patients[anchor], patients), form)
        assert torch.equal(candidates, torch.tensor(expected, dtype=torch.bool))


@pytest.mark.parametrize("form", FORMS)
def test_loss_and_accuracy_at_both_extremes(form: PairForm) -> None:
    directions = torch.eye(8)[:, None].repeat_interleave(2, 0)
    loss, metrics = objective(form).global_loss(as_output(directions), torch.arange(8))
    num_negatives = 14 if form == "ntxent" else 7
    assert loss.item() == pytest.approx(math.log1p(num_negatives * math.exp(-10)), abs=2e-6)
    assert metrics["accuracy_global"] == 1
    same = torch.eye(8)[:1, None].expand(16, 1, 8)
    loss, metrics = objective(form).global_loss(as_output(same), torch.arange(8))
    assert loss.item() == pytest.approx(math.log(1 + num_negatives), rel=1e-5)
    assert metrics["accuracy_global"] == 0


def test_constant_norms_change_the_gradient_and_not_the_loss() -> None:
    torch.manual_seed(0)
    context, patient = torch.randn(8, 5, 6), torch.tensor([0, 1, 1, 3])
    constant = CMSC(CMSCOptions(form="symmetric", constant_norms=True), tiny_encoder_options())
    fast = context.clone().requires_grad_()
    loss, _ = constant.global_loss(as_output(fast), patient)
    assert loss.item() == pytest.approx(objective("symmetric").global_loss(as_output(context), patient)[0].item(), rel=1e-6)
    # Normalized vectors in the same directions, divided by constant norms.
    slow = context.double().requires_grad_()
    pooled = slow.mean(1)
    unit = pooled / pooled.detach().norm(dim=1, keepdim=True)
    expected = pooled.new_zeros(())
    for i in range(8):
        candidates = [k for k in range(8) if k % 2 != i % 2 and (k == i ^ 1 or patient[k // 2] != patient[i // 2])]
        similarities = torch.stack([unit[i] @ unit[k] for k in candidates]) / 0.1
        expected = expected - similarities.log_softmax(0)[candidates.index(i ^ 1)] / 8
    (actual_grad,) = torch.autograd.grad(loss, fast)
    (expected_grad,) = torch.autograd.grad(expected, slow)
    torch.testing.assert_close(actual_grad.double(), expected_grad, rtol=1e-4, atol=1e-6)
