"""SimCLR: the loss of its views, encoded without masking."""

import pytest
import reference_losses
import torch
from tiny_model import random_batch, tiny_model

from engine.objectives.simclr import SimCLR


@pytest.mark.parametrize("num_pairs", [1, 2, 5])
def test_the_loss_equals_the_reference_on_the_encoders_means(num_pairs: int) -> None:
    model = tiny_model("simclr")
    segments, patient = random_batch(num_pairs)
    loss, _ = model(segments, patient, 0)
    pooled = model.encoder(segments.flatten(0, 1)).context.mean(1)
    expected = reference_losses.global_loss(pooled.double(), patient, "ntxent", 0.1)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)


def test_pairs_are_two_views_of_one_segment() -> None:
    assert set(SimCLR.pairs.values()) == {"same"}
