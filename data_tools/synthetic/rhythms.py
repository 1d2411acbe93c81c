"""The times and kinds of the beats of a recording. B is the number of beats."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from data_tools.vcg import FloatArray

# Beats are made from this long before the first sample, so that a recording begins anywhere in a cycle.
LEAD_IN_S = 2.0


class BeatKind(IntEnum):
    """What is excited, and from where."""

    SINUS = 0  # P wave, then QRS and T
    FIBRILLATION = 1  # QRS and T without a P wave
    PREMATURE = 2  # QRS and T from an ectopic focus in the ventricles
    BLOCKED = 3  # a P wave that finds the ventricles refractory after a premature beat


@dataclass(frozen=True)
class Beats:
    """The beats of a recording, in order.

    Attributes:
        onset: [B] onset of the QRS (of a blocked beat: where it would have been), seconds from the first sample.
        kind: [B] BeatKind.
        cycle: [B] the cycle length that sets PR and QT, seconds.
    """

    onset: FloatArray
    kind: NDArray[np.int8]
    cycle: FloatArray


@dataclass(frozen=True)
class Breathing:
    """Respiration as a sine: rate in Hz, phase in radians."""

    rate: float
    phase: float

    def at(self, seconds: FloatArray) -> FloatArray:
        """Returns the respiratory signal, between -1 and 1, at the instants [T]."""
        return np.sin(2 * np.pi * self.rate * seconds + self.phase)


def sinus_beats(rng: np.random.Generator, duration: float, rate: float, sinus_arrhythmia: float, breathing: Breathing) -> Beats:
    """Draws a sinus rhythm whose rate varies with blood pressure (LF, near 0.1 Hz) and with respiration (HF).

    The two peaks are those of the RR spectrum of McSharry et al. (2003); here the HF part is tied to the same respiration that
    moves the heart and the baseline.

    Args:
        rng: source of random numbers.
        duration: seconds.
        rate: mean heart rate, beats per minute.
        sinus_arrhythmia: relative size of the HF part.
        breathing: respiration.
    """
    slow_rate, slow_phase = rng.uniform(0.08, 0.12), rng.uniform(0, 2 * np.pi)
    mean = 60 / rate
    now = -LEAD_IN_S + rng.uniform(0, mean)
    onset, cycle = [], []
    while now < duration + 1:
        slow = np.sin(2 * np.pi * slow_rate * now + slow_phase)
        breath = np.sin(2 * np.pi * breathing.rate * now + breathing.phase)
        length = mean * (1 + 0.012 * slow - sinus_arrhythmia * breath + rng.normal(0, 0.004))
        onset.append(now)
        cycle.append(length)
        now += length
    return Beats(np.array(onset), np.full(len(onset), BeatKind.SINUS, np.int8), np.array(cycle))


def fibrillation_beats(rng: np.random.Generator, duration: float, rate: float) -> Beats:
    """Draws atrial fibrillation: the AV node conducts impulses at random, so successive cycles are independent.

    Args:
        rng: source of random numbers.
        duration: seconds.
        rate: mean ventricular rate, beats per minute.
    """
    mean = 60 / rate
    count = int((duration + LEAD_IN_S + 1) / (0.5 * mean)) + 4
    spread = rng.uniform(0.18, 0.27)
    ratio = np.clip(np.exp(rng.normal(-0.5 * spread**2, spread, count)), 0.6, 1.9)
    length = np.maximum(mean * ratio, 0.29)
    onset = -LEAD_IN_S + np.cumsum(length)
    keep = onset < duration + 1
    # QT depends on several preceding cycles, so it varies less than they do.
    cycle = 0.5 * (length + mean)
    return Beats(onset[keep], np.full(int(keep.sum()), BeatKind.FIBRILLATION, np.int8), cycle[keep])


def with_premature_beats(rng: np.random.Generator, beats: Beats, duration: float) -> Beats:
    """Adds premature ventricular beats, each followed by a full compensatory pause.

    The sinus node is not reset: its next impulse comes on time, finds the ventricles refractory and leaves only a P wave;
    the one after it is conducted. At least one premature beat lies wholly within the recording.

    Args:
        rng: source of random numbers.
        beats: sinus rhythm.
        duration: seconds.
    """
    onset, kind = beats.onset.copy(), beats.kind.copy()
    coupling = rng.uniform(0.56, 0.68)
    premature = onset[:-1] + (coupling + rng.normal(0, 0.012, len(onset) - 1)) * np.diff(onset)
    eligible = np.flatnonzero((premature > 0.6) & (premature < duration - 1.0)) + 1
    assert len(eligible), "a recording of 6 s holds several beats"
    num_wanted = 1 + int(rng.poisson(0.12 * duration))
    chosen: list[int] = []
    for index in rng.permutation(eligible):
        if len(chosen) < num_wanted and all(abs(index - other) > 1 for other in chosen):
            chosen.append(int(index))
    kind[chosen] = BeatKind.BLOCKED
    added = premature[np.array(chosen) - 1]
    order = np.argsort(np.concatenate([onset, added]), kind="stable")
    return Beats(
        np.concatenate([onset, added])[order],
        np.concatenate([kind, np.full(len(added), BeatKind.PREMATURE, np.int8)])[order],
        np.concatenate([beats.cycle, beats.cycle[chosen]])[order],
    )
