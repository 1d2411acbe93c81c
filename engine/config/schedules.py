"""Learning-rate schedules: multipliers of the peak learning rate, as pure functions of the step.

To add a schedule: a subclass of :class:`Schedule` and a line in :data:`SCHEDULES`.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Self

from pydantic import Field, model_validator

from engine.options import Options

Fraction = Annotated[float, Field(ge=0, le=1)]


class Schedule(Options, ABC):
    """Options of a schedule, and its values."""

    @abstractmethod
    def factor(self, step: int, num_steps: int) -> float:
        """Returns the multiplier of the peak learning rate.

        Args:
            step: number of the step, from 0.
            num_steps: total number of steps of the run.
        """


class _WarmupSchedule(Schedule):
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly to its peak."""

    def _warmup(self, step: int) -> float:
        return min(1.0, (step + 1) / max(1, self.warmup_steps))

    def _progress(self, step: int, num_steps: int) -> float:
        """Fraction of the steps after the warm-up that are done, in [0, 1]."""
        return min(1.0, max(0, step + 1 - self.warmup_steps) / max(1, num_steps - self.warmup_steps))


class ConstantSchedule(_WarmupSchedule):
    """Linear warm-up, then constant."""

    def factor(self, step: int, num_steps: int) -> float:
        """See :class:`Schedule`."""
        del num_steps
        return self._warmup(step)


class LinearSchedule(_WarmupSchedule):
    """Linear warm-up, then a linear decay over the remaining steps."""

    final_scale: Fraction = 0.0
    """Learning rate at the last step, as a fraction of the peak."""

    def factor(self, step: int, num_steps: int) -> float:
        """See :class:`Schedule`."""
        return self._warmup(step) * (1 - (1 - self.final_scale) * self._progress(step, num_steps))


class CosineSchedule(_WarmupSchedule):
    """Linear warm-up, then half a cosine over the remaining steps (https://arxiv.org/abs/1608.03983, without restarts)."""

    final_scale: Fraction = 0.0
    """Learning rate at the last step, as a fraction of the peak."""

    def factor(self, step: int, num_steps: int) -> float:
        """See :class:`Schedule`."""
        cosine = 0.5 * (1 + math.cos(math.pi * self._progress(step, num_steps)))
        return self._warmup(step) * (self.final_scale + (1 - self.final_scale) * cosine)


class WarmupStableDecaySchedule(_WarmupSchedule):
    """Linear warm-up, constant, then a linear decay over the last steps (https://arxiv.org/abs/2404.06395)."""

    decay_fraction: Fraction = 0.1
    """Fraction of all steps over which the learning rate decays."""
    final_scale: Fraction = 0.0
    """Learning rate at the last step, as a fraction of the peak."""

    def factor(self, step: int, num_steps: int) -> float:
        """See :class:`Schedule`."""
        num_decay_steps = round(self.decay_fraction * num_steps)
        progress = max(0.0, (step + 1 - (num_steps - num_decay_steps)) / max(1, num_decay_steps))
        return self._warmup(step) * (1 - (1 - self.final_scale) * min(1.0, progress))


class TriStageSchedule(Schedule):
    """Linear warm-up, constant, exponential decay, then constant at ``final_scale``.

    D. S. Park et al., "SpecAugment", https://arxiv.org/abs/1904.08779; the official code fine-tunes identification with it.
    """

    warmup_fraction: Fraction = 0.1
    """Fraction of all steps in the linear warm-up."""
    hold_fraction: Fraction = 0.2
    """Fraction of all steps at the peak."""
    decay_fraction: Fraction = 0.7
    """Fraction of all steps in the exponential decay."""
    initial_scale: Fraction = 0.01
    """Learning rate at the first step, as a fraction of the peak."""
    final_scale: float = Field(0.01, gt=0, le=1)
    """Learning rate at the end of the decay, as a fraction of the peak."""

    @model_validator(mode="after")
    def _check_fractions(self) -> Self:
        total = self.warmup_fraction + self.hold_fraction + self.decay_fraction
        if total > 1 + 1e-9:
            raise ValueError(f"warmup_fraction, hold_fraction and decay_fraction add up to {total:g}, more than 1")
        return self

    def factor(self, step: int, num_steps: int) -> float:
        """See :class:`Schedule`."""
        num_warmup, num_hold, num_decay = (
            round(fraction * num_steps) for fraction in (self.warmup_fraction, self.hold_fraction, self.decay_fraction)
        )
        if step < num_warmup:
            return self.initial_scale + (1 - self.initial_scale) * step / num_warmup
        since_hold = max(0, step - num_warmup - num_hold)
        return float(self.final_scale ** min(1.0, since_hold / max(1, num_decay)))


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": ConstantSchedule,
    "linear": LinearSchedule,
    "cosine": CosineSchedule,
    "tri_stage": TriStageSchedule,
    "warmup_stable_decay": WarmupStableDecaySchedule,
}
"""Name in a configuration -> schedule."""
