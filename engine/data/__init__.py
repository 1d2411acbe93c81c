"""Loading: sample order, readers, loaders and their options.

Start at :func:`make_loader`. To add a loader: a file with a subclass of :class:`Loader`, an entry of :data:`LOADERS`, its
name in :class:`DataOptions`, and a line in ``LOADERS`` of ``tests/loader_factory.py``.
"""

import logging

import numpy as np
import numpy.typing as npt
import torch

from data_tools.augmentations import make_augmentations
from data_tools.augmentations.chain import AugmentationChain
from engine.data.batch import Batch, lead_statistics, random_batch
from engine.data.crops import CropStore, SampleStore, Split
from engine.data.dali_loader import DaliLoader, is_dali_installed
from engine.data.loader import Loader, LoaderSetup
from engine.data.mixture import MixtureOrder, MixtureStore, SectionOrder
from engine.data.options import DataOptions, DatasetOptions, find_leads
from engine.data.order import Order, SampleOrder
from engine.data.shared_plans import read_shared_plan
from engine.data.torch_loader import TorchLoader
from engine.data.training_sets import TRAINING_SETS, TrainedCrops, join_training_sets
from engine.data.transform import Transform
from engine.options import SegmentPair

LOADERS: dict[str, type[Loader]] = {"dali": DaliLoader, "torch": TorchLoader}

_logger = logging.getLogger(__name__)


def make_loader(
    options: DataOptions,
    store: SampleStore,
    order: Order,
    *,
    leads: int | list[str],
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    pair: SegmentPair = "adjacent",
    labels: npt.NDArray[np.generic] | None = None,
    with_statistics: bool = False,
) -> Loader:
    """Makes this rank's loader, at the beginning of the stream.

    Args:
        options: data options; path, splits, and block and window sizes are ignored, since ``store`` and ``order`` have them.
        store: the crops.
        order: their order.
        leads: number of leads or their names, see :func:`find_leads`.
        batch_size: number of crops in a micro-batch of one rank.
        rank: rank of this process, less than ``world_size``.
        world_size: number of ranks.
        device: device of the batches.
        pair: which segments of a crop a sample holds.
        labels: [num_samples, ...], the labels of the store's samples; ``None``: none.
        with_statistics: whether batches contain the statistics of the leads, see :func:`lead_statistics`.

    Raises:
        UserError: the device does not exist, or the loader is not installed.
        ValueError: an augmentation cannot be applied to these leads.
    """
    device = torch.device(device)
    name: str = options.loader
    if name == "auto":
        name = best_loader(device)
        _logger.info("data.loader=auto: using the %s loader", name)
    rows = find_leads(leads)
    chain = AugmentationChain(make_augmentations(options.augmentations, order.seed, rows), len(rows))
    setup = LoaderSetup(
        store=store,
        order=order,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        device=device,
        leads=rows,
        transform=Transform(chain, len(rows), seed=order.seed, pair=pair),
        options=options,
        labels=labels,
        with_statistics=with_statistics,
    )
    return LOADERS[name](setup)


def best_loader(device: torch.device) -> str:
    """Returns the name of the fastest loader for a device: DALI on a GPU, where it is installed, else torch.

    On a CPU, DALI takes 1.5 to 5 times as long for the same augmentations (``benchmarks/results/loader-cpu.json``).
    """
    return "dali" if device.type == "cuda" and is_dali_installed() else "torch"


__all__ = [
    "LOADERS",
    "TRAINING_SETS",
    "Batch",
    "CropStore",
    "DataOptions",
    "DatasetOptions",
    "Loader",
    "MixtureOrder",
    "MixtureStore",
    "Order",
    "SampleOrder",
    "SampleStore",
    "SectionOrder",
    "Split",
    "TrainedCrops",
    "best_loader",
    "find_leads",
    "join_training_sets",
    "lead_statistics",
    "make_loader",
    "random_batch",
    "read_shared_plan",
]
