"""The encoder against the official implementation's recorded outputs, in both norm modes."""

import pytest
import torch
from golden_weights import golden_model, load_golden
from torch import Tensor

from engine.models.feature_encoder import FeatureNorm

TOLERANCE = 1e-5


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    error = (actual - expected).norm() / expected.norm()
    assert error <= TOLERANCE


@pytest.mark.parametrize("norm", ["group_norm", "layer_norm"])
def test_encoder_reproduces_the_recorded_outputs(norm: FeatureNorm) -> None:
    golden = load_golden(norm)
    encoder = golden_model(golden, norm).encoder
    with torch.no_grad():
        assert_close(encoder.features(golden["source"]).mT, golden["conv_features"])
        unmasked = encoder(golden["source"])
        assert_close(unmasked.features.mT, golden["conv_features"])
        assert_close(unmasked.context, golden["encoder_out"])
        assert_close(unmasked.context.mean(1), golden["pooled"])
        assert_close(encoder(golden["source"], golden["mask"]).context, golden["masked_encoder_out"])
