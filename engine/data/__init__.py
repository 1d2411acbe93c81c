"""Loading: which crops, in which order, read how, augmented how.

``make_loader`` is the way in. To add a loader: a file with a subclass of :class:`Loader`, an entry of :data:`LOADERS`, its
name in :class:`DataOptions`, and a subclass in ``tests/contracts/test_loaders.py``.
"""

import logging

import torch

from data_tools.augmentations import AugmentationOptions, make_augmentations
from data_tools.augmentations.chain import AugmentationChain
from engine.data.batch import Batch, random_batch
from engine.data.crops import CropStore
from engine.data.dali_loader import DaliLoader, is_dali_installed
from engine.data.loader import Loader, LoaderSetup, LoaderStateError
from engine.data.options import DataOptions, find_leads
from engine.data.order import SampleOrder
from engine.data.torch_loader import TorchLoader
from engine.data.transform import Transform
from engine.options import SegmentPair

LOADERS: dict[str, type[Loader]] = {"dali": DaliLoader, "torch": TorchLoader}

_logger = logging.getLogger(__name__)


def make_loader(
    options: DataOptions,
    store: CropStore,
    order: SampleOrder,
    *,
    leads: int | list[str],
    seed: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    pair: SegmentPair = "adjacent",
) -> Loader:
    """Makes the loader of a rank.

    Args:
        options: of the data; path, splits, block and window sizes are not looked at, being those of ``store`` and ``order``.
        store: of the crops.
        order: of the stream.
        leads: number of leads or their names, see :func:`find_leads`.
        seed: the run's seed; must equal ``order.seed``.
        batch_size: crops of one rank in a micro-batch.
        rank: of this process.
        world_size: number of ranks.
        device: of the batches.
        pair: which two segments of a crop a batch holds.

    Returns:
        The loader, at the beginning of the stream.

    Raises:
        UserError: a device that is not there, a loader that is not installed, numbers that do not fit together.
    """
    device = torch.device(device)
    name: str = options.loader
    if name == "auto":
        name = best_loader(device)
        _logger.info("data.loader=auto: taking the %s loader", name)
    rows = find_leads(leads)
    chain = AugmentationChain(make_augmentations(options.augmentations, seed, rows), len(rows))
    setup = LoaderSetup(
        store=store,
        order=order,
        seed=seed,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        device=device,
        leads=rows,
        transform=Transform(chain, len(rows), seed=seed, pair=pair),
        prefetch=options.prefetch,
        num_threads=options.num_threads,
    )
    return LOADERS[name](setup)


def best_loader(device: torch.device) -> str:
    """The name of the loader that is fastest for a device: DALI for a GPU, where it is installed, else torch.

    On a CPU the same augmentations take DALI 1.5 to 5 times as long (``benchmarks/results/loader-cpu.json``).
    """
    return "dali" if device.type == "cuda" and is_dali_installed() else "torch"


__all__ = [
    "LOADERS",
    "AugmentationOptions",
    "Batch",
    "CropStore",
    "DataOptions",
    "Loader",
    "LoaderStateError",
    "SampleOrder",
    "best_loader",
    "find_leads",
    "make_loader",
    "random_batch",
]
