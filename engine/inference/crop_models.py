"""Models applied to crops: embeddings and predictions of their segments.

Legend: N crops, K segments of a crop, W values of a segment, B segments, C leads of the model, T samples, T' tokens, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE
from engine.data import lead_statistics
from engine.device import DTYPES, Precision
from engine.inference.inputs import Crop
from engine.models import PretrainedModel
from engine.models.heads import to_predictions
from engine.models.normalization import standardize
from engine.options import UserError


class CropModel(ABC):
    """A model that computes some values of each complete segment of crops.

    Args:
        model: the model; it is moved to the device.
        leads: names of the leads to use; the model's other channels are zero. None: those it was fine-tuned with.
        device: device to compute on.
        precision: arithmetic of the encoder.

    Attributes:
        leads: names of the leads in use.
        num_segments: K.

    Raises:
        UserError: the model lacks a lead, or has another sampling rate or segments longer than a crop.
    """

    def __init__(
        self,
        model: PretrainedModel,
        leads: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        config = model.config
        if config.sampling_rate != SAMPLING_RATE:
            raise UserError(f"the model expects {config.sampling_rate} Hz, but crops have {SAMPLING_RATE} Hz")
        if config.segment_samples > CROP_SAMPLES:
            raise UserError(
                f"the model expects segments of {config.segment_samples} samples, more than a crop ({CROP_SAMPLES})"
            )
        unknown = [lead for lead in leads or () if lead not in config.leads]
        if unknown:
            raise UserError(f"the model has no lead {', '.join(unknown)}: choose from {', '.join(config.leads)}")
        self.leads = tuple(leads or config.trained_leads or config.leads)
        self.num_segments = CROP_SAMPLES // config.segment_samples
        self._model = model.to(device).eval()
        self._device = torch.device(device)
        self._dtype = DTYPES[precision]
        self._rows = [LEADS.index(lead) for lead in config.leads]
        self._is_hidden = torch.tensor([lead not in self.leads for lead in config.leads], device=device)

    @torch.no_grad()
    def __call__(self, crops: Sequence[Crop]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Computes the values of the segments of crops.

        Z-scores are taken over the valid samples of each crop (of a 10-s recording, over all of it), as when models with
        z-scores are pre-trained and fine-tuned.

        Args:
            crops: N crops.

        Returns:
            Values [N, K, W], NaN for incomplete segments; and the number of complete segments [N].
        """
        segment_samples = self._model.config.segment_samples
        num_segments = np.array([crop.num_valid_samples // segment_samples for crop in crops], dtype=np.int64)
        stored = np.stack([crop.signal[self._rows] for crop in crops])
        signals = torch.from_numpy(stored).to(self._device) / 1000.0
        used = signals.masked_fill(self._is_hidden[:, None], 0.0)[..., : self.num_segments * segment_samples]
        segments = used.unflatten(-1, (self.num_segments, segment_samples)).transpose(1, 2)
        if self._model.config.normalization == "zscore_per_lead":
            statistics = lead_statistics(stored, np.array([crop.num_valid_samples for crop in crops]))
            segments = standardize(segments, torch.from_numpy(statistics).to(self._device)[:, None])
        is_complete = np.arange(self.num_segments) < num_segments[:, None]
        values = np.full((len(crops), self.num_segments, self.width), np.nan, dtype=np.float32)
        if is_complete.any():
            chosen = segments[torch.from_numpy(is_complete).to(self._device)]
            context = self._model.encoder(chosen.to(self._dtype)).context
            values[is_complete] = self._values(context).cpu().numpy()
        return values, num_segments

    @property
    @abstractmethod
    def width(self) -> int:
        """W."""

    @abstractmethod
    def _values(self, context: Tensor) -> Tensor:
        """Returns float32 values [B, W] for the encoder's context [B, T', D]."""


class Embedder(CropModel):
    """Embeds segments: the mean of the encoder's context over time, W = D."""

    @property
    def width(self) -> int:
        """See :class:`CropModel`."""
        return self._model.config.encoder.width

    def _values(self, context: Tensor) -> Tensor:
        return context.mean(1, dtype=torch.float32)


class Predictor(CropModel):
    """Predicts one value for each class with a fine-tuned model, see :meth:`engine.models.PretrainedModel.predict`.

    Args:
        model, leads, device, precision: see :class:`CropModel`.
        with_embedding: whether the embedding, as from :class:`Embedder`, follows the values of the classes.

    Attributes:
        definition: the definition of the labels.

    Raises:
        UserError: the model is not a classifier, or as for :class:`CropModel`.
    """

    def __init__(
        self,
        model: PretrainedModel,
        leads: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
        *,
        with_embedding: bool = False,
    ) -> None:
        if model.head is None:
            raise UserError(f"a model of kind '{model.config.kind}' makes no predictions: fine-tune it with engine/finetune.py")
        super().__init__(model, leads, device, precision)
        self.definition = model.definition
        self._head = model.head
        self._with_embedding = with_embedding

    @property
    def width(self) -> int:
        """See :class:`CropModel`."""
        return len(self.definition.classes) + self._with_embedding * self._model.config.encoder.width

    def _values(self, context: Tensor) -> Tensor:
        predicted = to_predictions(self._head(context), self.definition.kind)
        return torch.cat([predicted, context.mean(1, dtype=torch.float32)], 1) if self._with_embedding else predicted
