"""Metrics of the individual datasets of a mixture, named METRIC/DATASET.

A batch has samples of several datasets, and their numbers differ between ranks. So the share of each dataset, and its loss
times its share, are averaged over ranks and micro-batches; their quotient is the mean loss of the dataset's samples.

Legend: N samples, D datasets.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_SHARE, _PART, _LOSS = "share/", "loss_part/", "loss/"


def metrics_of_datasets(loss_by_sample: Tensor, dataset: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Returns each dataset's share of a batch, and the part of the loss that its samples contribute.

    Args:
        loss_by_sample: fp32 [N], whose mean is the loss.
        dataset: int64 [N], number of each sample's dataset.
        names: D names.
    """
    is_own = (dataset == torch.arange(len(names), device=dataset.device)[:, None]).float()
    shares, parts = is_own.mean(1).unbind(), (is_own * loss_by_sample).mean(1).unbind()
    return {
        **{_SHARE + name: share for name, share in zip(names, shares, strict=True)},
        **{_PART + name: part for name, part in zip(names, parts, strict=True)},
    }


def divide_by_shares(means: Mapping[str, float]) -> dict[str, float]:
    """Replaces the parts of the loss by the losses of the datasets; one without a sample has no loss."""
    metrics = {name: value for name, value in means.items() if not name.startswith(_PART)}
    for name in [name.removeprefix(_PART) for name in means if name.startswith(_PART)]:
        if means[_SHARE + name] > 0:
            metrics[_LOSS + name] = means[_PART + name] / means[_SHARE + name]
    return metrics
