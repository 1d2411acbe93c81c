"""Metrics of the datasets of a mixture."""

import pytest
import torch

from engine.tasks.dataset_metrics import divide_by_shares, metrics_of_datasets

NAMES = ("ptb", "code15", "small")


def test_losses_of_datasets_are_means_over_their_samples_on_all_ranks() -> None:
    losses = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    datasets = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0]])
    ranks = [metrics_of_datasets(loss, dataset, NAMES) for loss, dataset in zip(losses, datasets, strict=True)]
    means = {name: float(sum(rank[name] for rank in ranks) / 2) for name in ranks[0]}
    metrics = divide_by_shares({"loss": 4.5, **means})
    assert metrics == {
        "loss": 4.5,
        "share/ptb": 3 / 8,
        "share/code15": 5 / 8,
        "share/small": 0,
        "loss/ptb": pytest.approx((1 + 3 + 8) / 3),
        "loss/code15": pytest.approx((2 + 4 + 5 + 6 + 7) / 5),
    }


def test_other_metrics_stay_as_they_are() -> None:
    assert divide_by_shares({"loss": 2.0, "loss_local": 1.0}) == {"loss": 2.0, "loss_local": 1.0}
