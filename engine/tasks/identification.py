"""Identification of patients (paper, Section 4.2): ArcFace over the training patients, on segments.

Legend: B segments, N samples, D width.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data_tools.shards.dataset import Dataset
from engine.collectives import rank
from engine.config import FinetuneConfig
from engine.config.finetune import IdentificationOptions
from engine.data import Batch, CropStore, Split
from engine.evaluation import match
from engine.models import ArcFace, save
from engine.options import UserError
from engine.tasks.evaluators import Evaluator, PredictionEvaluator, Predictions
from engine.tasks.finetuning import FinetuningTask, choose_crops, open_train_segments
from engine.tasks.protocol import Score, StepOutput


class MeanPool(nn.Module):
    """The mean over time, as in :meth:`engine.models.PretrainedModel.embed`."""

    def forward(self, context: Tensor) -> Tensor:
        """Context [B, T, D] -> fp32 [B, D]."""
        return context.float().mean(1)


class IdentificationLoss(nn.Module):
    """ArcFace in training; in evaluation, where patients have no directions, a loss of zero and the embeddings.

    Args:
        width: D.
        num_patients: number of patients in the training split.
        options: the task's options.
    """

    def __init__(self, width: int, num_patients: int, options: IdentificationOptions) -> None:
        super().__init__()
        self.arcface = ArcFace(width, num_patients, options.scale, options.margin)

    def forward(self, embeddings: Tensor, patient: Tensor) -> StepOutput:
        """Computes the loss of embeddings [B, D] of the patients int64 [B]."""
        if not self.training:
            return StepOutput(embeddings.new_zeros(()), {}, {"embedding": embeddings})
        output = self.arcface(embeddings, patient)
        accuracy = (output.cosine.argmax(1) == patient).float().mean()
        return StepOutput(output.loss.mean(), {"accuracy": accuracy})


class Pairs(NamedTuple):
    """Two segments of each of some patients.

    Attributes:
        gallery: int64 [P], rows of the segments that represent the patients.
        probe: int64 [P], rows of the segments to identify.
        are_sessions: whether the two are from different recordings.
    """

    gallery: NDArray[np.int64]
    probe: NDArray[np.int64]
    are_sessions: bool


class IdentificationTask(FinetuningTask):
    """Learns embeddings that tell patients apart; validation measures how well it identifies patients it has never seen.

    Args:
        config: the run's configuration, resolved.
        splits: the training and, if there is one, the validation split; labels are numbers of patients from 0.
    """

    def __init__(self, config: FinetuneConfig, splits: Mapping[str, Split] | None = None) -> None:
        labels = None if splits is None else splits["train"].labels
        assert labels is not None, "the number of patients is not known"
        self._num_patients = int(labels.max()) + 1
        super().__init__(config, splits)

    @classmethod
    def score(cls, config: FinetuneConfig) -> Score:
        """See :class:`Task`: the share of patients whose probe is closest to their own gallery entry."""
        del config
        return Score("rank1", "max")

    def dummy_labels(self, size: int, device: torch.device) -> Tensor:
        """See :class:`Task`."""
        return torch.zeros(size, dtype=torch.int64, device=device)

    def make_head(self, width: int) -> tuple[nn.Module, nn.Module]:
        """See :class:`FinetuningTask`."""
        options: Any = self.config.task
        return MeanPool(), IdentificationLoss(width, self._num_patients, options)

    @classmethod
    def open_splits(cls, config: FinetuneConfig, dataset: Dataset) -> dict[str, Split]:
        """See :class:`Task`: all segments of the training split, and the validation crops that contain the pairs."""
        names = cls.split_names(config, dataset)
        stores = {"train": open_train_segments(config, dataset, names["train"])}
        if len(np.unique(stores["train"].patient)) < 2:
            raise UserError(
                f"{dataset.location}: identification needs two or more patients; split '{names['train']}' with "
                f"label_fraction={config.label_fraction:g} has one: choose another split or a larger label_fraction"
            )
        if "valid" in names:
            store = CropStore(dataset, names["valid"], plan=config.data.plan, unit="segment")
            pairs = find_pairs(store.patient, store.recording)
            where = f"{dataset.location}: split '{names['valid']}'"
            if len(pairs.probe) < 2:
                raise UserError(f"{where}: fewer than two patients have two 5-s segments; choose another data.valid_split")
            if not pairs.are_sessions and rank() == 0:
                sys.stderr.write(
                    f"{where}: fewer than two patients have two recordings, so rank1 compares two segments of one recording\n"
                )
            rows = np.concatenate([pairs.gallery, pairs.probe])
            stores["valid"] = choose_crops(config, dataset, names["valid"], store.crop[rows])
        return {name: Split(store, np.unique(store.patient, return_inverse=True)[1]) for name, store in stores.items()}

    def compute(self, model: Any, batch: Batch, step: Tensor, row0: Tensor) -> StepOutput:
        """See :class:`Task`."""
        del step, row0
        output: StepOutput = model(self.normalize(batch), batch.labels)
        ids = {"patient": batch.patient, "recording": batch.recording} if output.predictions else {}
        return output._replace(predictions={**output.predictions, **ids})

    def make_evaluator(self, num_batches: int) -> Evaluator:
        """See :class:`Task`."""
        del num_batches
        return PredictionEvaluator(None, self.metrics)

    def metrics(self, predictions: Predictions) -> dict[str, float]:
        """Computes rank-1 and rank-5 accuracy and verification AUROC of one probe per patient.

        Args:
            predictions: ``embedding`` [N, D], ``patient`` and ``recording`` [N] of the segments, in the order of their rows.
        """
        patient = predictions["patient"]
        pairs = find_pairs(patient, predictions["recording"])
        if not len(pairs.probe):  # validation.max_batches has cut off all of them
            return {}
        gallery, probe = (predictions["embedding"][rows] for rows in pairs[:2])
        matching = match(probe, gallery, patient[pairs.probe], patient[pairs.gallery])
        return {"rank1": matching.rank_accuracy(1), "rank5": matching.rank_accuracy(5), "auroc": matching.auroc()}

    def export(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """See :class:`Task`: an encoder, whose ``embed`` gives what was compared."""
        save(folder, self.exported_config({"kind": "encoder"}), self.exported_tensors(weights))


def find_pairs(patient: NDArray[Any], recording: NDArray[Any]) -> Pairs:
    """Chooses two segments of each patient: the first ones of the patient's first and last recording.

    Patients with one recording are left out. Where fewer than two patients have two recordings, the first and the last segment
    of each patient with two or more segments are chosen instead.

    Args:
        patient: [N], number of each segment's patient.
        recording: [N], number of each segment's recording.
    """
    _, first_of_recording = np.unique(np.stack([patient, recording]), axis=1, return_index=True)
    gallery, probe = _first_and_last(patient, np.sort(first_of_recording))
    if len(probe) >= 2:
        return Pairs(gallery, probe, are_sessions=True)
    return Pairs(*_first_and_last(patient, np.arange(len(patient))), are_sessions=False)


def _first_and_last(patient: NDArray[Any], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first and the last of the rows, which ascend, of each patient who has two or more."""
    by_patient = rows[np.argsort(patient[rows], kind="stable")]
    _, start, count = np.unique(patient[by_patient], return_index=True, return_counts=True)
    last = start + count - 1
    return by_patient[start[count > 1]], by_patient[last[count > 1]]
