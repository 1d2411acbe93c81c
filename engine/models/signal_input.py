"""Converts signals with any leads, sampling rate and length to the segments that a model expects.

Legend: B recordings, K segments of a recording, N leads of the signals, C leads of the model, T samples.
"""

from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from data_tools.leads import LEAD_COMBINATIONS, LEADS, canonical_lead
from data_tools.recording import CROP_SAMPLES, SAMPLING_RATE
from data_tools.signal_ops import resample
from data_tools.sources.channels import units_per_millivolt
from engine.models.model_config import ModelConfig
from engine.models.plausibility import find_implausible
from engine.options import UserError

Signals = TypeVar("Signals", bound=Tensor | NDArray[Any])
"""An array or a tensor; the output has the type of the input."""

# As when a dataset is built; a rate in kHz, or a duration, is outside.
_MIN_SAMPLING_RATE, _MAX_SAMPLING_RATE = 50, 20_000


class SignalInput:
    """Checks signals and cuts them into the segments of a model.

    Args:
        config: the model's configuration.
        leads: names of the signals' leads, in any order and case, or a number of leads in
            :data:`data_tools.leads.LEAD_COMBINATIONS`. Leads that the model lacks, or that its fine-tuning did not
            use, are ignored; missing ones become zero, as in training. None: the model's leads, in its order.
        sampling_rate: sampling rate of the signals in Hz; None: the model's.
        unit: "V", "mV", "uV" or another name of these; None: mV for floating-point numbers, uV for integers, as in a dataset.

    Attributes:
        num_leads: number of leads of the signals.

    Raises:
        UserError: unknown or repeated leads, none that the model uses, an unknown unit, or a sampling rate that is not a number
            from 50 to 20,000 Hz, or differs from the model's if that is not 500 Hz.
    """

    def __init__(
        self,
        config: ModelConfig,
        leads: int | Sequence[str] | None = None,
        sampling_rate: float | None = None,
        unit: str | None = None,
    ) -> None:
        self._config = config
        self._leads = config.leads if leads is None else _find_leads(leads)
        self.num_leads = len(self._leads)
        used = config.leads if leads is None else config.trained_leads or config.leads
        self._rows = [config.leads.index(lead) for lead in self._leads if lead in used]
        self._signal_rows = [row for row, lead in enumerate(self._leads) if lead in used]
        if not self._rows:
            raise UserError(f"leads={list(self._leads)}: expected at least one of the model's leads ({', '.join(used)})")
        self._sampling_rate = config.sampling_rate if sampling_rate is None else sampling_rate
        _check_sampling_rate(self._sampling_rate, config.sampling_rate)
        self._units_per_mv = None if unit is None else _find_unit(unit)
        self._is_named = leads is not None

    def is_segments(self, signals: Tensor) -> bool:
        """Returns whether a tensor already is a batch of segments [B, C, ``config.segment_samples``] in mV."""
        shape = (len(self._config.leads), self._config.segment_samples)
        is_native = not self._is_named and self._sampling_rate == self._config.sampling_rate
        is_native = is_native and self._units_per_mv in {None, 1}
        return is_native and signals.dim() == 3 and signals.shape[1:] == shape and signals.is_floating_point()

    def read(self, signals: Tensor | NDArray[Any]) -> Tensor:
        """Returns checked signals as float32 [B, N, T] in mV, on the device where they are.

        Args:
            signals: [N, T] or [B, N, T] of any integer or floating-point dtype.

        Raises:
            TypeError: neither a NumPy array nor a tensor.
            UserError: wrong dtype, number of axes or leads, no samples, or NaN or infinity.
        """
        if not isinstance(signals, Tensor | np.ndarray):
            raise TypeError(f"expected a NumPy array or a tensor, got {type(signals).__name__}")
        self._check_shape(tuple(signals.shape))
        if not (_is_floating(signals) or _is_integer(signals)):
            raise UserError(f"expected integers or floating-point numbers, got {signals.dtype}")
        if isinstance(signals, Tensor):
            values = signals.detach().float()
        else:
            with np.errstate(over="ignore"):  # becomes infinity, which is refused below
                values = torch.from_numpy(np.require(signals, np.float32, ["C", "W"]))
        values = values[None] if values.dim() == 2 else values
        self.check_finite(values, is_batch=signals.ndim == 3)
        scale = self._find_scale(signals)
        return values if scale == 1 else values / scale

    def find_implausible(self, values: Tensor, signals: Tensor | NDArray[Any], *, is_scaled: bool) -> list[str]:
        """Returns what is implausible about the leads that the model uses, each as one line.

        Args:
            values: [B, N, T] in mV, from :meth:`read`.
            signals: what was read.
            is_scaled: whether the amplitudes matter: not those of normalized signals.
        """
        lowest, highest = values.aminmax(dim=-1)
        amplitudes = (highest.float() - lowest.float())[:, self._signal_rows].amax(1).cpu()
        return find_implausible(amplitudes, self._find_scale(signals) if is_scaled else None, is_batch=signals.ndim == 3)

    def _find_scale(self, signals: Tensor | NDArray[Any]) -> float:
        """Returns how many of the signals' unit make 1 mV."""
        return self._units_per_mv or (1 if _is_floating(signals) else 1000)

    def check_finite(self, signals: Tensor, *, is_batch: bool = True) -> None:
        """Checks that signals [B, N, T] have no NaN or infinity.

        Raises:
            UserError: they have; the message names the first such row and its leads.
        """
        if not signals.numel():
            return
        is_bad = ~(signals.amax(-1).isfinite() & signals.amin(-1).isfinite())
        if not is_bad.any():
            return
        bad_rows = is_bad.any(1).nonzero().flatten().tolist()
        leads = ", ".join(self._leads[lead] for lead in is_bad[bad_rows[0]].nonzero().flatten().tolist())
        where = f"row {bad_rows[0]}, lead {leads}" if is_batch else f"lead {leads}"
        more = f" ({len(bad_rows)} such rows)" if len(bad_rows) > 1 else ""
        raise UserError(f"{where}: contains NaN or infinity{more}; fill the gaps, or leave the recording out")

    def cut(self, signals: Tensor, normalize: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Returns the segments of signals from :meth:`read`: [B, N, T] -> [B, K, C, ``config.segment_samples``].

        These are the complete segments of consecutive crops of 10 s, as in a dataset. A remainder is dropped; a recording
        shorter than a segment is padded with zeros at its end.

        Args:
            signals: [B, N, T].
            normalize: applied to every crop, [B, C, T]; None: nothing.
        """
        chosen, rate, length = signals[:, self._signal_rows], self._config.sampling_rate, self._config.segment_samples
        if self._sampling_rate != rate:
            chosen = torch.from_numpy(resample(chosen.cpu().numpy(), self._sampling_rate))
        ordered = chosen.new_zeros(len(chosen), len(self._config.leads), chosen.shape[-1])
        ordered[:, self._rows] = chosen
        crops = ordered.split(max(CROP_SAMPLES * rate // SAMPLING_RATE, length), dim=-1)
        usable = [crop for crop in crops if crop.shape[-1] >= length] or [ordered]
        return torch.cat([_cut_crop(crop if normalize is None else normalize(crop), length) for crop in usable], dim=1)

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        expected = "expected signals [leads, samples] or [batch, leads, samples]"
        if len(shape) not in {2, 3}:
            hint = "a lead axis is missing" if len(shape) < 2 else "remove the other axes"
            example = "; for one lead, pass signals[None]" if len(shape) == 1 and self.num_leads == 1 else ""
            raise UserError(f"{expected}, got shape {list(shape)}: {hint}{example}")
        if shape[-2] != self.num_leads:
            if shape[-1] == self.num_leads:
                hint = "swap the last two axes"
            elif self.num_leads == 1 and len(shape) == 2:
                hint = "for a batch of recordings, pass signals[:, None]"
            else:
                hint = "pass the names of the signals' leads as leads=[...]"
            leads = f"{self.num_leads} {'lead' if self.num_leads == 1 else 'leads'} ({', '.join(self._leads)})"
            raise UserError(f"{expected} with {leads}, got shape {list(shape)}; {hint}")
        if not shape[-1]:
            raise UserError(f"signals of shape {list(shape)} have no samples")


def _cut_crop(crop: Tensor, length: int) -> Tensor:
    """Returns the complete segments of a crop, [B, C, T] -> [B, K, C, length], or one that is padded with zeros."""
    padded = pad(crop, (0, max(length - crop.shape[-1], 0)))
    segments: Tensor = padded.unfold(-1, length, length)  # [B, C, K, length]
    return segments.transpose(1, 2)


def _is_floating(signals: Tensor | NDArray[Any]) -> bool:
    return signals.is_floating_point() if isinstance(signals, Tensor) else signals.dtype.kind == "f"


def _is_integer(signals: Tensor | NDArray[Any]) -> bool:
    if isinstance(signals, Tensor):
        return signals.dtype != torch.bool and not signals.is_complex()
    return signals.dtype.kind in "iu"


def _find_leads(leads: int | Sequence[str]) -> tuple[str, ...]:
    """Returns the canonical names of leads.

    Raises:
        UserError: a number without a combination, a text instead of a list, or an unknown or repeated name.
    """
    if isinstance(leads, Integral):
        if leads not in LEAD_COMBINATIONS:
            raise UserError(f"leads={leads}: use {', '.join(map(str, LEAD_COMBINATIONS))}, or a list of names")
        return LEAD_COMBINATIONS[int(leads)]
    if isinstance(leads, str) or not isinstance(leads, Iterable):
        raise UserError(f"leads={leads!r}: expected a list of names, such as ['I', 'II'], or a number of leads")
    names = [canonical_lead(str(name)) for name in leads]
    unknown = [str(given) for given, name in zip(leads, names, strict=True) if name is None]
    if unknown:
        raise UserError(f"unknown leads: {', '.join(unknown)}; remove their names and signals; known: {', '.join(LEADS)}")
    found = tuple(filter(None, names))
    repeated = sorted({name for name in found if found.count(name) > 1}, key=LEADS.index)
    if repeated:
        raise UserError(f"leads named more than once: {', '.join(repeated)}; keep one name and signal of each")
    return found


def _find_unit(unit: str) -> float:
    """Returns how many of a unit make 1 mV."""
    units_per_mv = units_per_millivolt(str(unit))
    if units_per_mv is None:
        raise UserError(f"unit={unit!r}: use 'V', 'mV' or 'uV'")
    return units_per_mv


def _check_sampling_rate(sampling_rate: float, model_rate: int) -> None:
    if not isinstance(sampling_rate, int | float | np.number):
        raise UserError(f"sampling_rate={sampling_rate!r}: expected a number")
    if sampling_rate == model_rate:
        return
    if not _MIN_SAMPLING_RATE <= sampling_rate <= _MAX_SAMPLING_RATE:
        raise UserError(f"sampling_rate={sampling_rate:g}: expected {_MIN_SAMPLING_RATE} to {_MAX_SAMPLING_RATE:,} Hz")
    if model_rate != SAMPLING_RATE:
        raise UserError(f"the model expects {model_rate} Hz: resample the signals, and omit sampling_rate")
