"""Who is in the cohort: each patient's condition, anatomy and recordings, as a pure function of (seed, number)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic.heart import Anatomy, draw_anatomy
from data_tools.synthetic.rhythms import Breathing
from data_tools.vcg import FloatArray

# SNOMED CT codes as scored by the PhysioNet/CinC Challenge 2021.
SINUS_RHYTHM = "426783006"
SINUS_BRADYCARDIA = "426177001"
SINUS_TACHYCARDIA = "427084000"
ATRIAL_FIBRILLATION = "164889003"
FIRST_DEGREE_BLOCK = "270492004"
PREMATURE_VENTRICULAR = "427172004"
LEFT_BUNDLE_BRANCH_BLOCK = "164909002"
RIGHT_BUNDLE_BRANCH_BLOCK = "59118001"


class Condition(StrEnum):
    """The condition of a patient; each block of eight patients has one of each."""

    HEALTHY = "healthy"
    BRADYCARDIA = "bradycardia"
    TACHYCARDIA = "tachycardia"
    FIBRILLATION = "atrial fibrillation"
    SLOW_CONDUCTION = "first-degree atrioventricular block"
    PREMATURE_BEATS = "premature ventricular beats"
    LEFT_BLOCK = "left bundle branch block"
    RIGHT_BLOCK = "right bundle branch block"


class _Traits(NamedTuple):
    ages: tuple[int, int]
    resting_rate: tuple[float, float] = (66.0, 88.0)  # mean over recordings, beats per minute
    rate_limits: tuple[float, float] = (63.0, 96.0)  # of a recording: stays clear of 60 and 100 despite sinus arrhythmia
    conduction: str = "normal"  # how impulses reach the ventricles
    label: str | None = None  # the code that this adds to the rhythm's


_TRAITS = {
    Condition.HEALTHY: _Traits((20, 75)),
    Condition.BRADYCARDIA: _Traits((18, 85), (44.0, 54.0), (41.0, 57.0)),
    Condition.TACHYCARDIA: _Traits((18, 80), (110.0, 135.0), (104.0, 148.0)),
    Condition.FIBRILLATION: _Traits((55, 89), (70.0, 125.0), (62.0, 140.0)),
    Condition.SLOW_CONDUCTION: _Traits((45, 88), conduction="slow", label=FIRST_DEGREE_BLOCK),
    Condition.PREMATURE_BEATS: _Traits((25, 85)),
    Condition.LEFT_BLOCK: _Traits((52, 89), conduction="left", label=LEFT_BUNDLE_BRANCH_BLOCK),
    Condition.RIGHT_BLOCK: _Traits((40, 88), conduction="right", label=RIGHT_BUNDLE_BRANCH_BLOCK),
}
# Fibrillation and premature beats come and go: this share of such patients' recordings is plain sinus rhythm.
_FREE_SHARE = 0.2


@dataclass(frozen=True)
class RecordingPlan:
    """One recording before it is simulated.

    Attributes:
        name: record name.
        entropy: key of its random numbers.
        num_samples: length at 500 Hz.
        labels: SNOMED CT codes, the rhythm first.
        age: age in years.
        rate: mean heart rate, beats per minute.
        fibrillation: whether the atria fibrillate.
        premature_beats: whether there are premature ventricular beats.
        orientation: [3] angles of the heart relative to the electrodes, radians.
        breathing: respiration during the recording.
    """

    name: str
    entropy: tuple[int, ...]
    num_samples: int
    labels: tuple[str, ...]
    age: int
    rate: float
    fibrillation: bool
    premature_beats: bool
    orientation: FloatArray
    breathing: Breathing


@dataclass(frozen=True)
class Patient:
    """A simulated patient.

    Attributes:
        name: "P00001" and so on.
        condition: what the patient has.
        sex: "Male" or "Female", as PhysioNet 2021 spells it.
        anatomy: the heart.
        sinus_arrhythmia: relative variation of the cycle length with respiration; smaller with age and in tachycardia.
        recordings: two to four.
    """

    name: str
    condition: Condition
    sex: str
    anatomy: Anatomy
    sinus_arrhythmia: float
    recordings: tuple[RecordingPlan, ...]


def generator(*entropy: int) -> np.random.Generator:
    """Returns a generator whose numbers depend only on the key ``entropy``."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def _condition(seed: int, number: int) -> Condition:
    """Returns the condition of a patient by number, from 0: each block of eight has all conditions, in random order."""
    block, place = divmod(number, len(Condition))
    return list(Condition)[int(generator(seed, 0, block).permutation(len(Condition))[place])]


def _num_samples(rng: np.random.Generator) -> int:
    """Draws the length of a recording: most last 10 s, a few 15 to 30 s, a few 6 to 9 s."""
    chance = rng.random()
    if chance < 0.06:
        return int(rng.integers(15 * SAMPLING_RATE, 30 * SAMPLING_RATE + 1))
    if chance < 0.12:
        return int(rng.integers(6 * SAMPLING_RATE, 9 * SAMPLING_RATE + 1))
    return 10 * SAMPLING_RATE


def _rhythm_label(rate: float) -> str:
    """Returns the code of a sinus rhythm at a rate."""
    if rate < 60:
        return SINUS_BRADYCARDIA
    return SINUS_TACHYCARDIA if rate > 100 else SINUS_RHYTHM


def draw_patient(seed: int, number: int) -> Patient:
    """Draws a patient and plans the recordings.

    Args:
        seed: seed of the cohort.
        number: number of the patient, from 0.
    """
    rng = generator(seed, 1, number)
    condition = _condition(seed, number)
    female = bool(rng.random() < 0.5)
    traits = _TRAITS[condition]
    age = int(rng.integers(*traits.ages, endpoint=True))
    anatomy = draw_anatomy(rng, traits.conduction, female)
    resting_rate = rng.uniform(*traits.resting_rate)
    breathing_rate = rng.uniform(0.20, 0.30)
    recordings = []
    for index in range(int(rng.integers(2, 4, endpoint=True))):
        age += int(rng.integers(0, 2, endpoint=True)) if index else 0
        free = bool(rng.random() < _FREE_SHARE)
        fibrillation = condition is Condition.FIBRILLATION and not free
        premature_beats = condition is Condition.PREMATURE_BEATS and not free
        limits = _TRAITS[Condition.HEALTHY if condition is Condition.FIBRILLATION and free else condition].rate_limits
        rate = float(np.clip(resting_rate * np.exp(rng.normal(0, 0.07)), *limits))
        labels = [ATRIAL_FIBRILLATION if fibrillation else _rhythm_label(rate)]
        labels += [traits.label] if traits.label else []
        labels += [PREMATURE_VENTRICULAR] if premature_beats else []
        recordings.append(
            RecordingPlan(
                name=f"P{number + 1:05d}R{index + 1}",
                entropy=(seed, 2, number, index),
                num_samples=_num_samples(rng),
                labels=tuple(labels),
                age=age,
                rate=rate,
                fibrillation=fibrillation,
                premature_beats=premature_beats,
                orientation=rng.normal(0, 0.07, 3),
                breathing=Breathing(breathing_rate * float(np.exp(rng.normal(0, 0.08))), rng.uniform(0, 2 * np.pi)),
            )
        )
    sway = 0.05 * np.exp(-(age - 20) / 35) * rng.uniform(0.5, 1.3) * (0.3 if condition is Condition.TACHYCARDIA else 1.0)
    return Patient(
        name=f"P{number + 1:05d}",
        condition=condition,
        sex="Female" if female else "Male",
        anatomy=anatomy,
        sinus_arrhythmia=float(sway),
        recordings=tuple(recordings),
    )
