"""Embedding all of an input into one file."""

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
    """What was done.

    Attributes:
        num_crops: embedded.
        num_segments: whole segments of these.
        num_lost: recordings, or parts of them, that could not be embedded.
        missing: leads that the model was to see and a crop lacked (they were zeros), and how many crops.
    """

    num_crops: int = 0
    num_segments: int = 0
    num_lost: int = 0
    missing: Counter[tuple[str, ...]] = field(default_factory=Counter)


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

    What cannot be read is passed over and reported; the rest is written. Memory does not grow with the number of crops. The
    result does not depend on ``num_threads``, and on ``batch_size`` by rounding only.

    Args:
        embedder: the model.
        path: the folder.
        out: the .npz file, see :meth:`engine.inference.store.EmbeddingStore.write`; it appears whole or not at all. Scratch
            files of about its size lie beside it meanwhile.
        split: of a dataset; None for all.
        batch_size: crops embedded at once.
        num_threads: that read.
        report: takes a line for each thing that could not be embedded, at the end.

    Raises:
        UserError: an input or output that cannot be, or nothing that could be embedded.
        DatasetError: a dataset that cannot be used.
        ValueError: a folder without recordings.
        OSError: a file that cannot be written.
    """
    check_output(out)
    with (
        _scratch_folder(out) as scratch,
        closing(open_input(path, split, scratch)) as source,
        EmbeddingStore(scratch, embedder.num_segments, embedder.width) as store,
    ):
        summary = _fill(store, embedder, source, batch_size, num_threads)
        for where, reason in store.skipped():
            report(f"{where}: {reason}")
        if not len(store):
            raise UserError(f"{path}: nothing could be embedded ({summary.num_lost} problems, above); {out} was not written")
        store.write(out)
    return summary


def check_output(out: Path) -> None:
    """Refuses a file that cannot be written, before any work is done.

    Raises:
        UserError: another suffix, a folder of that name, or no folder to write it to.
    """
    if out.suffix != _SUFFIX:
        raise UserError(f"cannot write embeddings to {out}: the name must end in {_SUFFIX}")
    if out.is_dir():
        raise UserError(f"{out}: is a folder; give the name of a file")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}: no such folder; make it, or write elsewhere")


@contextmanager
def _scratch_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside the file to be written, which is gone at the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise UserError(f"{out.parent}: cannot be written to ({error.strerror}); write elsewhere") from None
    with folder as name:
        yield Path(name)


def _fill(store: EmbeddingStore, embedder: Embedder, source: Input, batch_size: int, num_threads: int) -> Summary:
    """Embeds everything into the store."""
    summary = Summary()
    batch: list[Crop] = []

    def embed_batch() -> None:
        if batch:
            embeddings, num_segments = embedder(batch)
            store.add([crop.key for crop in batch], embeddings, num_segments)
            summary.num_crops += len(batch)
            summary.num_segments += int(num_segments.sum())
            batch.clear()

    def lose(where: str, reason: str) -> None:
        store.add_skipped(where, reason)
        summary.num_lost += 1

    def take(crop: Crop) -> None:
        missing = tuple(lead for lead in embedder.leads if lead not in crop.leads)
        if len(missing) == len(embedder.leads):
            lose(crop.key, f"has none of the leads {', '.join(missing)}")
            return
        if missing:
            summary.missing[missing] += 1
        batch.append(crop)
        if len(batch) == batch_size:
            embed_batch()

    items = prefetch(source.parts(), source.read, num_threads=num_threads)
    with closing(items), tqdm(total=source.total, desc="embedding", unit=source.unit, disable=None) as bar:
        for item in items:
            if isinstance(item, Crop):
                take(item)
            elif isinstance(item, Skipped):
                lose(item.where, item.reason)
            else:
                bar.update(item.count)
        embed_batch()
    return summary
