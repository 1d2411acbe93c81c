"""Classification and regression (paper, Section 4.1: diagnosis), on segments.

Legend: B segments, N samples, D width, C classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from data_tools.labels import LabelDefinition, LabelError
from data_tools.shards.dataset import Dataset
from engine import evaluation
from engine.config import FinetuneConfig
from engine.config.finetune import LabelOptions
from engine.data import Batch, CropStore, Split
from engine.evaluation.arrays import mean_by_group
from engine.evaluation.thresholds import DEFAULT_THRESHOLD
from engine.models import ClassificationHead, save
from engine.options import UserError
from engine.tasks.evaluators import Evaluator, PredictionEvaluator, Predictions
from engine.tasks.finetuning import FinetuningTask, open_train_segments
from engine.tasks.label_reading import make_labeler, read_labels
from engine.tasks.protocol import Score, StepOutput

SCORES = {
    "multilabel": Score("auroc_macro", "max"),
    "binary": Score("auroc_macro", "max"),
    "multiclass": Score("balanced_accuracy", "max"),
    "regression": Score("mae", "min"),
}


class LabelLoss(nn.Module):
    """The loss for the kind of label.

    Binary cross-entropy of each class (multilabel, binary), cross-entropy (multiclass), or the mean squared error of values
    that are standardized with the training set's mean and standard deviation (regression). With class weights, too, the loss is
    a plain mean over samples, so it depends neither on the micro-batch size nor on the number of ranks.

    Args:
        definition: the labels.
        options: the task's options.
        train_labels: labels of the training samples, for class weights and standardization; ``None``: neither.
    """

    weights: Tensor | None
    mean: Tensor
    deviation: Tensor

    def __init__(self, definition: LabelDefinition, options: LabelOptions, train_labels: NDArray[Any] | None = None) -> None:
        super().__init__()
        self.kind = definition.kind
        num_classes = len(definition.classes)
        weights, mean, deviation = None, torch.zeros(num_classes), torch.ones(num_classes)
        if train_labels is not None and self.kind == "regression":
            mean, deviation = (torch.tensor(f(train_labels, axis=0), dtype=torch.float32) for f in (np.mean, np.std))
            deviation = torch.where(deviation > 0, deviation, 1.0)
        elif train_labels is not None and options.class_weights == "balanced":
            weights = torch.tensor(balanced_weights(definition, train_labels))
        # Facts about the training set, not weights: they belong in no checkpoint.
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("deviation", deviation, persistent=False)

    def forward(self, outputs: Tensor, labels: Tensor) -> StepOutput:
        """Computes loss and predictions from the head's outputs [B, C] and labels as in :class:`data_tools.labels.Labels`."""
        outputs = outputs.float()
        metrics: dict[str, Tensor] = {}
        if self.kind == "multiclass":
            # The default reduction would divide by the weights of the micro-batch's labels instead of the number of samples.
            loss = F.cross_entropy(outputs, labels, weight=self.weights, reduction="sum") / len(labels)
            metrics["accuracy"] = (outputs.argmax(1) == labels).float().mean()
            predicted = outputs.softmax(1)
        elif self.kind == "regression":
            loss = F.mse_loss(outputs, (labels - self.mean) / self.deviation)
            predicted = outputs * self.deviation + self.mean
        else:
            loss = F.binary_cross_entropy_with_logits(outputs, labels, pos_weight=self.weights)
            predicted = outputs.sigmoid()
        return StepOutput(loss, metrics, {"predicted": predicted.detach()})


class LabelTask(FinetuningTask):
    """Learns the labels of :class:`engine.config.finetune.LabelOptions`.

    Args:
        config: the run's configuration, resolved.
        splits: the training and, if there is one, the validation split with their labels; ``None``: no
            statistics of the labels, as in a memory trial.
    """

    def __init__(self, config: FinetuneConfig, splits: Mapping[str, Split] | None = None) -> None:
        options: Any = config.task
        self._options: LabelOptions = options
        split = None if splits is None else splits["train"]
        known = None if split is None else split.definition  # avoids reading the table again
        self.definition: LabelDefinition = known or make_labeler(self._options).definition
        self._train_labels = None if split is None else split.labels
        self._last: tuple[NDArray[Any], NDArray[Any]] | None = None
        super().__init__(config, splits)

    @classmethod
    def score(cls, config: FinetuneConfig) -> Score:
        """See :class:`Task`."""
        options: Any = config.task
        return SCORES[options.kind if options.scheme == "table" else "multilabel"]

    def dummy_labels(self, size: int, device: torch.device) -> Tensor:
        """See :class:`Task`."""
        if self.definition.kind == "multiclass":
            return torch.zeros(size, dtype=torch.int64, device=device)
        return torch.zeros(size, len(self.definition.classes), device=device)

    def make_head(self, width: int) -> tuple[nn.Module, nn.Module]:
        """See :class:`FinetuningTask`."""
        head = ClassificationHead(width, len(self.definition.classes), self._options.dropout)
        return head, LabelLoss(self.definition, self._options, self._train_labels)

    @classmethod
    def open_splits(cls, config: FinetuneConfig, dataset: Dataset) -> dict[str, Split]:
        """See :class:`Task`: the segments of all crops that have a label."""
        options: Any = config.task
        names, plan = cls.split_names(config, dataset), config.data.plan
        try:
            labels_of = read_labels(dataset, options, [*names.values()] if plan is None else [None])
        except LabelError as error:
            raise UserError(str(error)) from None
        splits = {}
        for name, split in names.items():
            labels = labels_of[split if plan is None else None]
            if not labels.is_labeled.any():
                raise UserError(
                    f"{dataset.location}: no crop of split '{split}' has a label of {labels.definition.name}; `ecg-data info` "
                    "lists its labels, and task.scheme chooses them"
                )
            if name == "train":
                store = open_train_segments(config, dataset, split, labels.is_labeled)
            else:
                store = CropStore(dataset, split, plan=plan, unit="segment", chosen=labels.is_labeled)
            values = labels.values(store.crop)
            if name == "train" and labels.definition.kind in {"multilabel", "binary"} and not values.any():
                raise UserError(
                    f"{dataset.location}: no class of {labels.definition.name} is true for any crop of split '{split}'; "
                    "`ecg-data info` lists its labels, and task.scheme chooses them"
                )
            splits[name] = Split(store, values, labels.definition)
        return splits

    def compute(self, model: Any, batch: Batch, step: Tensor, row0: Tensor) -> StepOutput:
        """See :class:`Task`."""
        del step, row0
        labels = batch.labels
        assert labels is not None
        output: StepOutput = model(self.normalize(batch), labels)
        return output._replace(predictions={**output.predictions, "label": labels, "recording": batch.recording})

    def export(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """See :class:`Task`: a classifier, with thresholds that maximize F1 on the validation set."""
        definition = self.definition
        if self._last is not None and definition.kind in {"multilabel", "binary"}:
            definition = definition.with_thresholds(evaluation.choose_f1_thresholds(*self._last))
        content = {"kind": "classifier", "labels": definition.classes, "label_definition": definition}
        tensors = self.exported_tensors(weights)
        if definition.kind == "regression":
            # The exported model predicts values in their own unit.
            mean, deviation = (getattr(self.model.loss, name).cpu() for name in ("mean", "deviation"))
            tensors["head.projection.weight"] = tensors["head.projection.weight"] * deviation[:, None]
            tensors["head.projection.bias"] = tensors["head.projection.bias"] * deviation + mean
        save(folder, self.exported_config(content), tensors)

    def make_evaluator(self, num_batches: int) -> Evaluator:
        """See :class:`Task`."""
        return PredictionEvaluator(num_batches, self.metrics)

    def metrics(self, predictions: Predictions) -> dict[str, float]:
        """Computes metrics per recording: the predictions of its segments are averaged.

        Where crops of a recording have different labels, those with the same label are averaged.

        Args:
            predictions: ``predicted`` [N, C], ``label`` [N, ...] and ``recording`` [N] of all samples.
        """
        groups = np.column_stack([predictions["recording"], predictions["label"]])
        means, first = mean_by_group(predictions["predicted"], groups)
        labels = predictions["label"][first]
        self._last = (labels, means)
        computed = make_metrics(self.definition, labels, means)
        return {name: float(value) for name, value in evaluation.evaluate(computed).overall.items() if np.isfinite(value)}


def make_metrics(definition: LabelDefinition, labels: NDArray[Any], predicted: NDArray[Any]) -> evaluation.Metrics:
    """Returns the metrics of predictions [N, C] for labels [N, ...], by the kind of label."""
    if definition.kind == "multiclass":
        return evaluation.MulticlassMetrics(labels.astype(np.int64), predicted, definition.classes)
    if definition.kind == "regression":
        return evaluation.RegressionMetrics(labels, predicted, definition.classes)
    rewards = evaluation.load_rewards(definition.codes) if definition.name == "cinc2021" and definition.codes else None
    thresholds = DEFAULT_THRESHOLD if definition.thresholds is None else definition.thresholds
    return evaluation.MultilabelMetrics(labels, predicted, thresholds, definition.classes, rewards)


def balanced_weights(definition: LabelDefinition, labels: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the weight of each class [C]: of its positives (multilabel, binary) or of its samples (multiclass).

    A class without positives, or without negatives, has weight 1. In a multiclass task, the mean weight of the samples is 1.
    """
    if definition.kind == "multiclass":
        counts = np.bincount(labels, minlength=len(definition.classes))
        return np.where(counts > 0, len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1).astype(np.float32)
    positives = labels.sum(0)
    negatives = len(labels) - positives
    return np.where((positives > 0) & (negatives > 0), negatives / np.maximum(positives, 1), 1).astype(np.float32)
