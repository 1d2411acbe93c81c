"""Options of the data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from data_tools.leads import LEAD_COMBINATIONS, LEADS, canonical_lead
from engine.data.augmentations import AugmentationOptions
from engine.options import Options, UserError


class DataOptions(Options):
    """Which crops are read, and how they are loaded.

    Attributes:
        path: the dataset folder; must be given when a run starts.
        loader: "auto" takes DALI on a GPU, where it is installed, and torch on a CPU, where that is faster.
        leads: how many (12, 6, 3, 2 or 1, as in :data:`data_tools.leads.LEAD_COMBINATIONS`) or which by name; the model gets
            that many channels, in canonical order.
        train_split: split to train on.
        valid_split: split for the validation loss; may be absent from the dataset.
        block_size: crops that stay together in the first step of shuffling, see :mod:`engine.data.order`.
        window_blocks: blocks that are mixed in the second; more is closer to a full shuffle, and reads from more places.
        num_threads: reading and, on the CPU, transforming.
        prefetch: batches read ahead.
        verify: before the first step, compare the "hash" of every shard of the split with the manifest, or only its "size".
        augmentations: of training and validation batches alike; none by default.
    """

    path: Path | None = None
    loader: Literal["auto", "dali", "torch"] = "auto"
    train_split: str = "pretrain"
    valid_split: str = "valid"
    block_size: Annotated[int, Field(gt=0)] = 256
    window_blocks: Annotated[int, Field(gt=0)] = 16
    num_threads: Annotated[int, Field(gt=0)] = 2
    prefetch: Annotated[int, Field(gt=0)] = 4
    verify: Literal["hash", "size"] = "hash"
    augmentations: AugmentationOptions = AugmentationOptions()


def find_leads(leads: int | Sequence[str]) -> tuple[int, ...]:
    """Finds the rows of some leads in a crop.

    Args:
        leads: how many, as in LEAD_COMBINATIONS, or their names in any order and case.

    Returns:
        Ascending row numbers, that is in the order of LEADS.

    Raises:
        UserError: a number without a combination, a name that is none or stands twice, or no name at all.
    """
    if isinstance(leads, int):
        if leads not in LEAD_COMBINATIONS:
            numbers = ", ".join(map(str, LEAD_COMBINATIONS))
            raise UserError(f"no combination of {leads} leads; there are {numbers}, or give the names")
        names = LEAD_COMBINATIONS[leads]
    else:
        names = tuple(_find_lead(name) for name in leads)
        if not names or len(set(names)) < len(names):
            raise UserError(f"leads must be named, each once; got {list(leads)}")
    return tuple(sorted(LEADS.index(name) for name in names))


def _find_lead(name: str) -> str:
    canonical = canonical_lead(name)
    if canonical is None:
        raise UserError(f"no lead '{name}'; there are {', '.join(LEADS)}")
    return canonical
