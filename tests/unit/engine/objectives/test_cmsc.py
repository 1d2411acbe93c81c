"""The global objective against its float64 reference, and its rules."""

import math

import pytest
import reference_losses
import torch
from tiny_model import tiny_encoder_options
from torch import Tensor

from engine.models import EncoderOutput
from engine.objectives import OBJECTIVES
from engine.objectives.cmsc import CMSC, CMSCOptions
from engine.objectives.contrast import Comparison, PairForm, Positives, pair_candidates

FORMS: list[PairForm] = ["ntxent", "symmetric"]


def as_output(context: Tensor) -> EncoderOutput:
    return EncoderOutput(context=context, features=context, latents=context)


def objective(form: PairForm, temperature: float = 0.1, positives: Positives = "pair") -> CMSC:
    return CMSC(CMSCOptions(form=form, temperature=temperature, positives=positives), tiny_encoder_options())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positives", ["pair", "all"])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("patients", [[3], [0, 1], [4, 2, 7, 9], [0, 0, 1, 2], [5, 1, 5, 5, 2], [6, 6, 6]])
@pytest.mark.parametrize("num_tokens", [1, 7])
def test_value_and_gradient_equal_the_reference(
    form: PairForm, positives: Positives, temperature: float, patients: list[int], num_tokens: int
) -> None:
    torch.manual_seed(len(patients))
    context = torch.randn(2 * len(patients), num_tokens, 6)
    fast, slow = context.clone().requires_grad_(), context.double().requires_grad_()
    patient = torch.tensor(patients)
    loss, _ = objective(form, temperature, positives).global_loss(as_output(fast).context, patient)
    expected = reference_losses.global_loss(slow.mean(1), patient, form, temperature, positives)
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
        _, candidates = pair_candidates(Comparison(torch.zeros(4, 6), anchor, patients[anchor], patients), form)
        assert torch.equal(candidates, torch.tensor(expected, dtype=torch.bool))


@pytest.mark.parametrize("form", FORMS)
def test_loss_and_accuracy_at_both_extremes(form: PairForm) -> None:
    directions = torch.eye(8)[:, None].repeat_interleave(2, 0)
    loss, metrics = objective(form).global_loss(as_output(directions).context, torch.arange(8))
    num_negatives = 14 if form == "ntxent" else 7
    assert metrics["cosine_pairs"] == 1
    assert metrics["cosine_patients"] == 0
    assert metrics["variance_per_dimension"].item() == pytest.approx(7 / 64)
    assert loss.item() == pytest.approx(math.log1p(num_negatives * math.exp(-10)), abs=2e-6)
    assert metrics["accuracy_global"] == 1
    same = torch.eye(8)[:1, None].expand(16, 1, 8)
    loss, metrics = objective(form).global_loss(as_output(same).context, torch.arange(8))
    assert loss.item() == pytest.approx(math.log(1 + num_negatives), rel=1e-5)
    assert loss.item() == pytest.approx(metrics["uniform_loss_global"].item(), rel=1e-5)
    assert metrics["accuracy_global"] == 0
    assert metrics["cosine_pairs"].item() == metrics["cosine_patients"].item() == pytest.approx(1)
    assert metrics["variance_per_dimension"] < 1e-12
    assert metrics["chance_global"].item() == pytest.approx(1 / (1 + num_negatives))


@pytest.mark.parametrize("name", ["cmsc", "simclr", "3kg"])
def test_constant_norms_change_the_gradient_and_not_the_loss(name: str) -> None:
    torch.manual_seed(0)
    context, patient = torch.randn(8, 5, 6), torch.tensor([0, 1, 1, 3])

    def run(*, constant_norms: bool) -> tuple[Tensor, Tensor]:
        options = OBJECTIVES[name].options_class.model_validate({"constant_norms": constant_norms})
        tokens = context.clone().requires_grad_()
        loss, _ = OBJECTIVES[name](options, tiny_encoder_options())(
            lambda _: as_output(tokens), torch.zeros(4, 2, 12, 1), patient, None
        )
        return loss, torch.autograd.grad(loss, tokens)[0]

    loss, gradient = run(constant_norms=True)
    assert loss.item() == pytest.approx(run(constant_norms=False)[0].item(), rel=1e-6)
    slow = context.double().requires_grad_()
    similarity = reference_losses.constant_norm_cosine
    if name == "3kg":
        expected = reference_losses.patient_loss(slow.mean(1), patient.repeat_interleave(2), 0.1, similarity)
    else:
        expected = reference_losses.global_loss(slow.mean(1), patient, "ntxent", 0.1, similarity=similarity)
    (expected_gradient,) = torch.autograd.grad(expected, slow)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-6)
    assert (gradient - run(constant_norms=False)[1]).abs().max() > 1e-3
