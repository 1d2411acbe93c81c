"""Loss and gradient of a global batch do not depend on how many ranks share it."""

import pytest
import reference_losses
import torch
from distributed_helpers import run_ranks
from tiny_model import EVERY_OBJECTIVE, random_batch, tiny_model
from torch import Tensor

from engine.collectives import gather_ranks, min_over_ranks, rank, sum_over_ranks, world_size
from engine.objectives import DrawKeys
from engine.objectives.w2v_cmsc import W2VCMSC

OWN_RANK = [case for case in EVERY_OBJECTIVE if case.endswith("official")]  # negatives of its own rank only
CASES = [case for case in EVERY_OBJECTIVE if case not in OWN_RANK]
NUM_PAIRS = 6
STEP, ROW0 = 11, 24


# Loss, metrics, gradient.
Result = tuple[float, dict[str, float], Tensor]


def run_case(case: str, pairs: slice) -> Result:
    """Returns loss, metrics and gradient for some pairs of the global batch; the first two pairs share a patient."""
    model = tiny_model(case)
    segments, patient = random_batch(NUM_PAIRS)
    loss, metrics = model(segments[pairs], patient[pairs], STEP, ROW0 + pairs.start)
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return loss.item(), {name: value.item() for name, value in metrics.items()}, gradient


def run_every_case(rank: int, num_ranks: int) -> list[Result]:
    pairs_per_rank = NUM_PAIRS // num_ranks
    keys = DrawKeys(0, STEP, 2 * (ROW0 + rank * pairs_per_rank))
    assert keys.batch_row(2 * pairs_per_rank, torch.device("cpu")).tolist() == [2 * ROW0], "the same on every rank"
    return [run_case(case, slice(rank * pairs_per_rank, (rank + 1) * pairs_per_rank)) for case in [*CASES, *OWN_RANK]]


@pytest.fixture(scope="module")
def results() -> list[list[Result]]:
    """Returns the results of each rank and case."""
    return run_ranks(run_every_case, 2, 2)


@pytest.mark.parametrize("case", CASES)
def test_means_over_ranks_equal_the_results_of_one_process(results: list[list[Result]], case: str) -> None:
    expected_loss, expected_metrics, expected_gradient = run_case(case, slice(0, NUM_PAIRS))
    (loss0, metrics0, gradient0), (loss1, metrics1, gradient1) = (result[CASES.index(case)] for result in results)
    assert loss0 != loss1
    assert (loss0 + loss1) / 2 == pytest.approx(expected_loss, rel=1e-6)
    for name, value in expected_metrics.items():
        assert (metrics0[name] + metrics1[name]) / 2 == pytest.approx(value, rel=1e-6), name
    error = (gradient0 + gradient1) / 2 - expected_gradient
    # Another order of summation causes fp32 rounding errors, well above 1e-6 only in single parameters.
    assert error.norm() <= 3e-6 * expected_gradient.norm()


def metrics_of_each_rank(results: list[list[Result]], case: str) -> list[dict[str, float]]:
    return [result[[*CASES, *OWN_RANK].index(case)][1] for result in results]


@pytest.mark.parametrize("case", [case for case in OWN_RANK if not case.startswith("w2v")])
def test_global_losses_with_own_rank_negatives_equal_the_reference(results: list[list[Result]], case: str) -> None:
    """The loss of all ranks is the mean of the figures of each; of 3KG, of all pairs of views of one patient."""
    segments, patient = random_batch(NUM_PAIRS)
    figures = []
    for own in (slice(0, 3), slice(3, 6)):
        pooled = tiny_model(case).encoder(segments[own].flatten(0, 1)).context.mean(1).double()
        if case.startswith("3kg"):
            patients = patient[own].repeat_interleave(2)
            num_positives = int((patients == patients[:, None]).sum()) - len(patients)
            figures.append((num_positives, reference_losses.patient_loss(pooled, patients, 0.1).item()))
        else:
            form, positives = ("symmetric", "all") if case.startswith("cmsc") else ("ntxent", "pair")
            figures.append((1, reference_losses.global_loss(pooled, patient[own], form, 0.1, positives).item()))
    expected = sum(weight * figure for weight, figure in figures) / sum(weight for weight, _ in figures)
    losses = [metrics["loss_global"] for metrics in metrics_of_each_rank(results, case)]
    assert sum(losses) / 2 == pytest.approx(expected, rel=1e-5)


def test_own_rank_negatives_give_each_rank_its_own_global_loss(results: list[list[Result]]) -> None:
    case = "w2v_cmsc-official"
    for number, metrics in enumerate(metrics_of_each_rank(results, case)):
        pairs = slice(number * NUM_PAIRS // 2, (number + 1) * NUM_PAIRS // 2)
        model = tiny_model(case)
        segments, patient = random_batch(NUM_PAIRS)
        # Masks are still those of the whole batch, trimmed to the segment with the fewest masked tokens.
        draws = model.objective.draw(
            DrawKeys(model.seed, STEP, 2 * ROW0), 2 * NUM_PAIRS, model.encoder.num_tokens(640), patient.device
        )
        mask = draws.mask[2 * pairs.start : 2 * pairs.stop]
        output = model.encoder(segments[pairs].flatten(0, 1), mask)
        assert isinstance(model.objective, W2VCMSC)
        expected, _ = model.objective.cmsc.global_loss(output.context, patient[pairs])
        assert metrics["loss_global"] == pytest.approx(expected.item(), rel=1e-6)


def differentiate_collectives(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    inputs, weights = torch.randn(3, 2, 4), torch.randn(3, 6, 4)
    x = inputs[rank].clone().requires_grad_()
    total = sum_over_ranks(x)
    (sum_grad,) = torch.autograd.grad((total * weights[rank, :2]).sum(), x)
    gathered = gather_ranks(x)
    (gather_grad,) = torch.autograd.grad((gathered * weights[rank]).sum(), x)
    assert torch.equal(min_over_ranks(inputs[rank]), inputs.amin(0))
    return total.detach(), sum_grad, gathered.detach(), gather_grad


def test_backward_of_each_collective_is_its_adjoint() -> None:
    torch.manual_seed(0)
    inputs, weights = torch.randn(3, 2, 4), torch.randn(3, 6, 4)
    for rank_, (total, sum_grad, gathered, gather_grad) in enumerate(run_ranks(differentiate_collectives, 3)):
        torch.testing.assert_close(total, inputs.sum(0))
        torch.testing.assert_close(sum_grad, weights[:, :2].sum(0))
        assert torch.equal(gathered, inputs.flatten(0, 1))
        torch.testing.assert_close(gather_grad, weights.sum(0)[2 * rank_ : 2 * rank_ + 2])


def test_one_process_needs_no_group() -> None:
    x = torch.randn(3)
    assert (world_size(), rank()) == (1, 0)
    assert sum_over_ranks(x) is x
    assert gather_ranks(x) is x
    assert min_over_ranks(x) is x
