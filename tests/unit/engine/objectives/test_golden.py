"""The objectives against the official implementation's recorded losses, in both norm modes."""

import numpy as np
import pytest
import torch
from golden_weights import GOLDEN, golden_draws, golden_model, load_golden, negative_positions
from torch import Tensor

from engine.models.feature_encoder import FeatureNorm
from engine.objectives.contrast import compare, pair_loss
from engine.objectives.three_kg import patient_loss
from engine.objectives.w2v_cmsc import W2VCMSC

TOLERANCE = 1e-5
NORMS = ["group_norm", "layer_norm"]


@pytest.mark.parametrize("norm", NORMS)
def test_targets_and_logits(norm: FeatureNorm) -> None:
    golden = load_golden(norm)
    model = golden_model(golden, norm)
    assert isinstance(model.objective, W2VCMSC)
    w2v, draws, mask = model.objective.w2v, golden_draws(golden), golden["mask"]
    num_segments, num_masked = golden["negatives"].shape[:2]
    with torch.no_grad():
        output = model.encoder(golden["source"], mask)
        logits, quantized, counts = w2v.contrast(output, draws)
        targets = w2v.target_projection(quantized.vectors)[mask].view(num_segments, num_masked, -1)
    torch.testing.assert_close(targets, golden["targets_projected"], rtol=TOLERANCE, atol=TOLERANCE)

    positions = negative_positions(golden)
    at_masked = logits[mask].view(num_segments, num_masked, -1)
    positive = logits.diagonal(dim1=1, dim2=2)[mask].view(num_segments, num_masked)
    negatives = at_masked.gather(2, positions)
    removed = counts[mask].view(num_segments, num_masked, -1).gather(2, positions) == 0
    ours = torch.cat([positive[None], negatives.masked_fill(removed, float("-inf")).permute(2, 0, 1)])
    assert removed.any()
    torch.testing.assert_close(ours, golden["logits"], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("norm", NORMS)
def test_every_part_of_the_loss(norm: FeatureNorm) -> None:
    golden = load_golden(norm)
    model = golden_model(golden, norm)
    segments = golden["source"].unflatten(0, (-1, 2))
    with torch.no_grad():
        loss, metrics = model.objective(model.encoder, segments, torch.arange(2), golden_draws(golden))
    num_masked = golden["sample_size"].item()
    assert num_masked == golden["mask"].sum()
    assert isinstance(model.objective, W2VCMSC)
    expected = {
        "loss_local": golden["loss_local_sum"].item() / num_masked,
        "loss_diversity": golden["loss_diversity_weighted"].item() / num_masked,
        "loss_features_penalty": golden["loss_features_pen_weighted"].item() / num_masked,
        "loss_global": golden["loss_cmsc_weighted"].item() / num_masked,
        "prob_perplexity": golden["prob_perplexity"].item(),
        "code_perplexity": golden["code_perplexity"].item(),
    }
    for name, value in expected.items():
        assert metrics[name].item() == pytest.approx(value, rel=TOLERANCE), name
    penalty = metrics["loss_features_penalty"] / model.objective.w2v.options.features_penalty_weight
    assert penalty.item() == pytest.approx(golden["features_pen"].item(), rel=TOLERANCE)
    assert loss.item() == pytest.approx(golden["loss_per_masked_step"].item(), rel=TOLERANCE)


@pytest.fixture
def contrastive() -> dict[str, Tensor]:
    """The arrays of contrastive.npz; rows 2 i and 2 i + 1 of ``features`` are a pair."""
    with np.load(GOLDEN / "contrastive.npz") as arrays:
        golden = {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}
    assert torch.equal(golden["pair_id"], torch.arange(12) // 2)
    assert torch.equal(golden["segment"], torch.arange(12) % 2)
    return golden


def as_context(golden: dict[str, Tensor]) -> Tensor:
    """The features are the pooled vectors: with one token per segment, pooling is the identity."""
    return golden["features"][:, None]


def test_symmetric_form_of_the_global_loss(contrastive: dict[str, Tensor]) -> None:
    loss, _ = pair_loss(compare(as_context(contrastive), torch.arange(6), 0.1), "symmetric")
    assert loss.item() == pytest.approx(contrastive["cmsc_symmetric_cross_entropy"].item(), rel=TOLERANCE)


def test_simclr(contrastive: dict[str, Tensor]) -> None:
    loss, _ = pair_loss(compare(as_context(contrastive), torch.arange(6), 0.1), "ntxent")
    assert 12 * loss.item() == pytest.approx(contrastive["simclr_ntxent_sum"].item(), rel=TOLERANCE)


@pytest.mark.parametrize("case", ["", "_repeated_patient"])
def test_3kg(contrastive: dict[str, Tensor], case: str) -> None:
    patient, expected = contrastive["pair_id" + case], contrastive["3kg_sum" + case]
    num_positives = int((patient == patient[:, None]).sum()) - 12
    assert torch.equal(patient[::2], patient[1::2])
    loss, _ = patient_loss(compare(as_context(contrastive), patient[::2], 0.1))
    assert num_positives * loss.item() == pytest.approx(expected.item(), rel=TOLERANCE)
