"""Embeds an input into a file."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from engine.inference.embedder import Embedder
from engine.inference.inputs import Crop, Input, Skipped, open_input
from engine.inference.store import EmbeddingStore
from engine.options import UserError
from engine.prefetch import prefetch

_SUFFIX = ".npz"


@dataclass
class Summary:
    """Counts of what was embedded.

    Attributes:
        num_crops: embedded crops.
        num_segments: complete segments in these crops.
        num_skipped: recordings, or parts of them, that could not be embedded.
        missing_leads: number of crops by the leads in use that they lack; these were zeros.
    """

    num_crops: int = 0
    num_segments: int = 0
    num_skipped: int = 0
    missing_leads: Counter[tuple[str, ...]] = field(default_factory=Counter)


def embed_input(
    embedder: Embedder,
    path: Path,
    out: Path,
    *,
    split: str | None = None,
    batch_size: int = 32,
    num_threads: int = 2,
    report: Callable[[str], None],
) -> Summary:
    """Embeds every crop of a dataset or of a folder of WFDB recordings.

    What cannot be read is skipped and reported; the rest is written. Memory does not grow with the number of crops. The result
    does not depend on ``num_threads``, and on ``batch_size`` only by rounding.

    Args:
        embedder: the model.
        path: the folder.
        out: the .npz file, written atomically, see :meth:`engine.inference.store.EmbeddingStore.write`. Temporary files of
            about its size are kept beside it meanwhile.
        split: split of a dataset; None: all splits.
        batch_size: crops per batch.
        num_threads: number of reading threads.
        report: called at the end with a line for each thing that could not be embedded.

    Raises:
        UserError: the input or output cannot be used, or nothing could be embedded.
        DatasetError: the dataset cannot be used.
        ValueError: the folder contains no recordings.
        OSError: a file cannot be written.
    """
    check_output(out)
    with (
        _scratch_folder(out) as scratch,
        closing(open_input(path, split, scratch)) as source,
        closing(EmbeddingStore(scratch, embedder.num_segments, embedder.width)) as store,
    ):
        summary = _fill(store, embedder, source, batch_size, num_threads)
        for where, reason in store.skipped():
            report(f"{where}: {reason}")
        if not len(store):
            raise UserError(f"{path}: none of the recordings could be embedded (listed above); {out} was not written")
        store.write(out)
    return summary


def check_output(out: Path) -> None:
    """Checks, before any work is done, that a file can be written.

    Raises:
        UserError: the suffix is not .npz, the path is a folder, or its parent does not exist.
    """
    if out.suffix != _SUFFIX:
        raise UserError(f"{out}: the file name must end in {_SUFFIX}")
    if out.is_dir():
        raise UserError(f"{out}: is a folder: name a file")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}: no such folder: create it or write elsewhere")


@contextmanager
def _scratch_folder(out: Path) -> Iterator[Path]:
    """Creates a hidden folder beside the output file, and removes it at the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise UserError(f"{out.parent}: cannot be written to ({error.strerror}): write elsewhere") from None
    with folder as name:
        yield Path(name)


def _fill(store: EmbeddingStore, embedder: Embedder, source: Input, batch_size: int, num_threads: int) -> Summary:
    """Embeds the whole input into the store."""
    summary = Summary()
    batch: list[Crop] = []

    def embed_batch() -> None:
        if batch:
            embeddings, num_segments = embedder(batch)
            store.add([crop.key for crop in batch], embeddings, num_segments)
            summary.num_crops += len(batch)
            summary.num_segments += int(num_segments.sum())
            batch.clear()

    def skip(where: str, reason: str) -> None:
        store.add_skipped(where, reason)
        summary.num_skipped += 1

    def add(crop: Crop) -> None:
        missing = tuple(lead for lead in embedder.leads if lead not in crop.leads)
        if len(missing) == len(embedder.leads):
            skip(crop.key, f"has none of the leads {', '.join(missing)}")
            return
        if missing:
            summary.missing_leads[missing] += 1
        batch.append(crop)
        if len(batch) == batch_size:
            embed_batch()

    items = prefetch(source.parts(), source.read, num_threads=num_threads)
    with closing(items), tqdm(total=source.total, desc="embedding", unit=source.unit, disable=None) as bar:
        for item in items:
            if isinstance(item, Crop):
                add(item)
            elif isinstance(item, Skipped):
                skip(item.where, item.reason)
            else:
                bar.update()
        embed_batch()
    return summary
