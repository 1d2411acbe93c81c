"""Pooling over valid tokens, and the classification head."""

import pytest
import torch

from data_tools.labels import Kind
from engine.models.heads import ClassificationHead, pool, to_predictions


def test_pooling_without_padding_is_the_mean() -> None:
    context = torch.randn(3, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(pool(context), context.mean(1))
    torch.testing.assert_close(pool(context, torch.ones(3, 7, dtype=torch.bool)), context.mean(1))


def test_padding_does_not_matter() -> None:
    context = torch.randn(2, 7, 5, dtype=torch.float64)
    valid = torch.arange(7) < torch.tensor([4, 7])[:, None]
    expected = torch.stack([context[0, :4].mean(0), context[1].mean(0)])
    torch.testing.assert_close(pool(context, valid), expected)
    padded = context.clone()
    padded[0, 4:] = float("nan")
    torch.testing.assert_close(pool(padded, valid), expected)


def test_padding_gets_no_gradient() -> None:
    context = torch.randn(2, 7, 5, requires_grad=True)
    valid = torch.arange(7) < torch.tensor([4, 7])[:, None]
    pool(context, valid).square().sum().backward()
    assert context.grad is not None
    assert (context.grad[0, 4:] == 0).all()
    assert (context.grad[0, :4] != 0).all()


def test_a_segment_without_valid_tokens_gives_zeros() -> None:
    assert (pool(torch.randn(1, 4, 3), torch.zeros(1, 4, dtype=torch.bool)) == 0).all()


def test_dropout_in_training_only() -> None:
    torch.manual_seed(0)
    head = ClassificationHead(64, 3, dropout=0.5)
    context = torch.randn(4, 7, 64)
    assert not torch.equal(head(context), head(context))
    head.eval()
    torch.testing.assert_close(head(context), head.projection(context.mean(1)))
    assert set(head.state_dict()) == {"projection.weight", "projection.bias"}


@pytest.mark.parametrize("kind", ["multilabel", "binary", "multiclass", "regression"])
def test_outputs_become_predictions(kind: Kind) -> None:
    outputs = torch.tensor([[-2.0, 0.5], [3.0, 3.0]], dtype=torch.bfloat16)
    predictions = to_predictions(outputs, kind)
    assert predictions.dtype == torch.float32
    exponentials = outputs.float().exp()
    expected = {
        "multiclass": exponentials / exponentials.sum(1, keepdim=True),
        "regression": outputs.float(),
    }.get(kind, exponentials / (1 + exponentials))
    torch.testing.assert_close(predictions, expected)
