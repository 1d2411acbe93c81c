"""Applies a model to a whole input, and embeds or predicts into a file."""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from data_tools.validation import count
from engine.inference.crop_models import CropModel, Embedder, Predictor
from engine.inference.inputs import Crop, Input, Skipped, open_input
from engine.inference.predictions import PredictionStore
from engine.inference.store import EmbeddingStore
from engine.options import UserError
from engine.prefetch import prefetch

_NUM_EXAMPLES = 3
EMBEDDING_SUFFIXES = (".npz",)
PREDICTION_SUFFIXES = (".parquet", ".csv")


@dataclass
class Summary:
    """Counts of what a model was applied to.

    Attributes:
        num_crops: crops.
        num_segments: complete segments in these crops.
        num_recordings: recordings in the output of :func:`predict_input`.
        num_skipped: recordings, or parts of them, that could not be used.
        missing_leads: combination of leads in use -> number of crops that lack it; missing leads are zero.
        examples: the same combination -> the first few recordings that lack it.
    """

    num_crops: int = 0
    num_segments: int = 0
    num_recordings: int = 0
    num_skipped: int = 0
    missing_leads: Counter[tuple[str, ...]] = field(default_factory=Counter)
    examples: defaultdict[tuple[str, ...], list[str]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Runner:
    """How models are applied.

    Attributes:
        batch_size: crops per batch; results depend on it only by rounding.
        num_threads: number of reading threads; results do not depend on it.
        report: called with a line for each input that cannot be used, while the progress bar is shown.
    """

    batch_size: int
    num_threads: int
    report: Callable[[str], None]

    def apply(
        self, model: CropModel, source: Input, summary: Summary, description: str
    ) -> Iterator[tuple[list[Crop], NDArray[np.float32], NDArray[np.int64]]]:
        """Yields batches of crops in the order of the input, with the model's values and numbers of segments.

        Recordings that cannot be read are skipped, reported and counted in ``summary``.
        """
        batch: list[Crop] = []
        num_without_leads, without_leads = 0, list[str]()

        def apply_to_batch() -> Iterator[tuple[list[Crop], NDArray[np.float32], NDArray[np.int64]]]:
            if batch:
                values, num_segments = model(batch)
                summary.num_crops += len(batch)
                summary.num_segments += int(num_segments.sum())
                yield list(batch), values, num_segments
                batch.clear()

        items = prefetch(source.parts(), source.read, num_threads=self.num_threads)
        with closing(items), tqdm(total=source.total, desc=description, unit=source.unit, disable=None) as bar:
            for item in items:
                if item is None:
                    bar.update()
                elif isinstance(item, Skipped):
                    self.skip(summary, item.where, item.reason)
                elif not set(model.leads) & set(item.leads):
                    num_without_leads += 1
                    if len(without_leads) <= _NUM_EXAMPLES:
                        without_leads.append(item.key)
                else:
                    self._count_missing_leads(model, item, summary)
                    batch.append(item)
                    if len(batch) == self.batch_size:
                        yield from apply_to_batch()
            yield from apply_to_batch()
        if num_without_leads:
            summary.num_skipped += num_without_leads
            lacking = f"{count(num_without_leads, 'crop')} {'has' if num_without_leads == 1 else 'have'} none of the leads"
            self.report(f"{lacking} {', '.join(model.leads)}: {list_examples(without_leads)}")

    def skip(self, summary: Summary, where: str, reason: str) -> None:
        """Counts and reports an input that cannot be used."""
        summary.num_skipped += 1
        with tqdm.external_write_mode():
            self.report(f"{where}: {reason}")

    @staticmethod
    def _count_missing_leads(model: CropModel, crop: Crop, summary: Summary) -> None:
        missing = tuple(lead for lead in model.leads if lead not in crop.leads)
        if missing:
            summary.missing_leads[missing] += 1
            examples = summary.examples[missing]
            if len(examples) <= _NUM_EXAMPLES and crop.recording not in examples:
                examples.append(crop.recording)


def embed_input(
    embedder: Embedder, path: str | Path, out: Path, runner: Runner, *, split: str | None = None, plan: str | None = None
) -> Summary:
    """Embeds every crop of a dataset or of a folder of WFDB recordings.

    Recordings that cannot be read are skipped and reported; the others are written. Memory does not grow with the number of
    crops.

    Args:
        embedder: the model.
        path: the folder.
        out: the .npz file, written atomically, see :meth:`engine.inference.store.EmbeddingStore.write`. Meanwhile,
            temporary files of about the same size are kept next to it.
        runner: how the model is applied.
        split: split of a dataset; None: all splits.
        plan: plan whose splits are used; None: the stored splits.

    Raises:
        UserError: the input or output cannot be used, or nothing could be embedded.
        DatasetError: the dataset cannot be used.
        ValueError: the folder contains no recordings.
        OSError: a file cannot be written.
    """
    check_output(out, EMBEDDING_SUFFIXES)
    summary = Summary()
    with (
        _scratch_folder(out) as scratch,
        closing(open_input(path, split, plan, scratch)) as source,
        closing(EmbeddingStore(scratch, embedder.num_segments, embedder.width)) as store,
    ):
        for crops, embeddings, num_segments in runner.apply(embedder, source, summary, "embedding"):
            store.add(crops, embeddings, num_segments)
        if not len(store):
            raise UserError(f"{path}: no recording could be embedded (listed above); {out} was not written")
        store.write(out)
    return summary


def predict_input(
    predictor: Predictor, path: str | Path, out: Path, runner: Runner, *, split: str | None = None, plan: str | None = None
) -> Summary:
    """Predicts the labels of every recording of a dataset or of a folder of WFDB recordings.

    Arguments and errors as for :func:`embed_input`; ``out`` is a .parquet or .csv file, see
    :meth:`engine.inference.predictions.PredictionStore.write`.
    """
    check_output(out, PREDICTION_SUFFIXES)
    summary = Summary()
    with _scratch_folder(out) as scratch, closing(open_input(path, split, plan, scratch)) as source:
        with PredictionStore(scratch, predictor.definition) as store:
            for crops, predictions, num_segments in runner.apply(predictor, source, summary, "predicting"):
                store.add(crops, predictions, num_segments)
        if not summary.num_segments:
            raise UserError(f"{path}: no recording could be used for predictions (listed above); {out} was not written")
        summary.num_recordings, too_short = store.write(out)
        for recording in too_short:
            runner.skip(summary, recording, "shorter than a segment of the model")
    return summary


def list_examples(names: Sequence[str]) -> str:
    """Joins the first names; an ellipsis stands for the others."""
    return ", ".join([*names[:_NUM_EXAMPLES], *(["..."] if len(names) > _NUM_EXAMPLES else [])])


def check_output(out: Path, suffixes: tuple[str, ...], *, overwrite: bool = True) -> None:
    """Checks, before any work is done, that a file can be written.

    Raises:
        UserError: the suffix is wrong, the path is a folder or must not be replaced, or its parent does not exist.
    """
    if out.suffix not in suffixes:
        raise UserError(f"{out}: the file name must end in {' or '.join(suffixes)}")
    if out.is_dir():
        raise UserError(f"{out}: is a folder: choose a file")
    if out.exists() and not overwrite:
        raise UserError(f"{out}: already exists: choose another file, or replace it with --overwrite")
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}: no such folder: create it or write elsewhere")


@contextmanager
def _scratch_folder(out: Path) -> Iterator[Path]:
    """Creates a hidden folder next to the output file, and removes it at the end."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise UserError(f"{out.parent}: cannot be written to ({error.strerror}): write elsewhere") from None
    with folder as name:
        yield Path(name)
