"""Crops to embeddings of their segments.

Legend: N crops, K segments of a crop, C leads of the model, T samples, D width.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE
from engine.inference.inputs import Crop
from engine.models import ModelConfig, PretrainedModel
from engine.models.pretrained import zscore_per_lead
from engine.options import UserError

Precision = Literal["fp32", "bf16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Embedder:
    """A model that embeds crops.

    Args:
        model: is moved to the device.
        leads: what it may see, as names in the order of LEADS; the model's other channels are zero. None for all of them.
        device: to compute on.
        precision: to compute in.

    Attributes:
        leads: names of the leads it looks at.
        num_segments: K.
        width: D.

    Raises:
        UserError: a lead that the model does not take, or a model of another sampling rate or of longer segments.
    """

    def __init__(
        self,
        model: PretrainedModel,
        leads: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        config = model.config
        _check_model(config)
        self.leads = _choose_leads(config, leads)
        self.num_segments = CROP_SAMPLES // config.segment_samples
        self.width = config.encoder.width
        self._model = model.to(device).eval()
        self._device = torch.device(device)
        self._dtype = _DTYPES[precision]
        self._rows = [LEADS.index(lead) for lead in config.leads]
        self._is_hidden = torch.tensor([lead not in self.leads for lead in config.leads], device=device)

    @torch.no_grad()
    def __call__(self, crops: Sequence[Crop]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Embeds crops.

        The normalization is that of the model's configuration, over the valid samples of a crop (for a recording of 10 s,
        over the whole of it, as in the training of models with z-scores).

        Args:
            crops: N.

        Returns:
            Embeddings [N, K, D], the mean of the encoder's context over time, NaN for segments that are not whole; and how
            many are whole [N].
        """
        segment_samples = self._model.config.segment_samples
        num_segments = np.array([crop.num_valid_samples // segment_samples for crop in crops], dtype=np.int64)
        signals = torch.from_numpy(np.stack([crop.signal[self._rows] for crop in crops])).to(self._device) / 1000.0
        signals = signals.masked_fill(self._is_hidden[:, None], 0.0)
        if self._model.config.normalization == "zscore_per_lead":
            for signal, crop in zip(signals, crops, strict=True):
                valid = signal[:, : crop.num_valid_samples]
                valid.copy_(zscore_per_lead(valid))
        whole = signals[..., : self.num_segments * segment_samples]
        segments = whole.unflatten(-1, (self.num_segments, segment_samples)).transpose(1, 2)
        is_whole = np.arange(self.num_segments) < num_segments[:, None]
        embeddings = np.full((len(crops), self.num_segments, self.width), np.nan, dtype=np.float32)
        if is_whole.any():
            embeddings[is_whole] = self._embed(segments[torch.from_numpy(is_whole).to(self._device)])
        return embeddings, num_segments

    def _embed(self, segments: Tensor) -> NDArray[np.float32]:
        """Whole, normalized segments [B, C, T] -> [B, D]."""
        context = self._model.encoder(segments.to(self._dtype)).context
        embeddings: NDArray[np.float32] = context.mean(1, dtype=torch.float32).cpu().numpy()
        return embeddings


def _check_model(config: ModelConfig) -> None:
    if config.sampling_rate != SAMPLING_RATE:
        raise UserError(f"the model takes {config.sampling_rate} Hz; only models of {SAMPLING_RATE} Hz can embed crops")
    if config.segment_samples > CROP_SAMPLES:
        longest = CROP_SAMPLES / SAMPLING_RATE
        raise UserError(
            f"the model takes segments of {config.segment_samples} samples; a crop has {CROP_SAMPLES} ({longest:g} s)"
        )


def _choose_leads(config: ModelConfig, leads: Sequence[str] | None) -> tuple[str, ...]:
    surplus = [lead for lead in leads or () if lead not in config.leads]
    if surplus:
        raise UserError(
            f"the model takes the leads {', '.join(config.leads)}, and not {', '.join(surplus)}: ask for some of its leads"
        )
    return tuple(config.leads if leads is None else leads)
