"""The heart vector: the electrical activity of the heart as one dipole that turns and grows with every beat.

A beat is a sum of Gaussian waves in time, each along its own direction in space. Because the directions differ and the
waves overlap, the tip of the vector runs through loops (P, QRS, T), as in a vectorcardiogram. The leads are projections
of it. This is the dynamical model of McSharry et al. ("A dynamical model for generating synthetic electrocardiogram
signals", IEEE Trans. Biomed. Eng. 50(3), 2003, doi:10.1109/TBME.2003.808805) in the three-dimensional form of Sameni et
al. ("Multichannel ECG and noise modeling", EURASIP J. Adv. Signal Process. 2007, doi:10.1155/2007/43407), with two
changes: waves are placed in seconds instead of in the phase of the cycle, because a heart that beats faster shortens its
diastole and QT but hardly its PR and QRS; and a wave may rise and fall with different widths, as a T wave does.

Axes as in :mod:`data_tools.vcg`. Unit mV.
K is the number of waves, T the number of samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from data_tools.vcg import FloatArray

# A Gaussian wave counts as begun and ended this many of its widths from its center (4% of its height).
ONSET_WIDTHS = 2.5


@dataclass(frozen=True)
class Waves:
    """K Gaussian waves of the heart vector.

    Attributes:
        vector: [K, 3] direction and height at the center, mV.
        center: [K] seconds from a reference instant that is given where the waves are made.
        rise: [K] standard deviation before the center, seconds.
        fall: [K] standard deviation after the center, seconds.
    """

    vector: FloatArray
    center: FloatArray
    rise: FloatArray
    fall: FloatArray

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, float, float, float, float]]) -> Self:
        """Makes waves from rows (x, y, z in mV; center, rise, fall in milliseconds)."""
        table = np.array(rows, dtype=np.float64)
        return cls(table[:, :3], table[:, 3] / 1e3, table[:, 4] / 1e3, table[:, 5] / 1e3)

    def stretched(self, factor: float) -> "Waves":
        """Returns the waves stretched in time by a factor, about the reference instant."""
        return Waves(self.vector, self.center * factor, self.rise * factor, self.fall * factor)

    def shifted(self, seconds: float) -> "Waves":
        """Returns the waves, delayed."""
        return Waves(self.vector, self.center + seconds, self.rise, self.fall)

    def turned(self, rotation: FloatArray) -> "Waves":
        """Returns the waves with every vector multiplied by a [3, 3] matrix."""
        return Waves(self.vector @ rotation.T, self.center, self.rise, self.fall)

    def joined(self, other: "Waves") -> "Waves":
        """Returns both groups of waves as one."""
        return Waves(*map(np.concatenate, zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def end(self) -> float:
        """When the last wave has ended, seconds from the reference instant."""
        return float(np.max(self.center + ONSET_WIDTHS * self.fall))

    def at(self, seconds: FloatArray) -> FloatArray:
        """Returns the heart vector, [3, T] in mV, at the instants [T]."""
        offset = seconds - self.center[:, None]
        width = np.where(offset < 0, self.rise[:, None], self.fall[:, None])
        return self.vector.T @ np.exp(-0.5 * np.square(offset / width))


@dataclass(frozen=True)
class Ventricles:
    """How the ventricles depolarize and repolarize when excited from one place.

    Attributes:
        qrs: waves from the onset of the QRS.
        repolarization: ST segment and T wave, relative to the end of the T wave (so at negative times), at a cycle of 1 s.
        qt_extra: prolongation of QT by a slow QRS, seconds.
    """

    qrs: Waves
    repolarization: Waves
    qt_extra: float


@dataclass(frozen=True)
class Anatomy:
    """The heart of one patient.

    Attributes:
        atria: P wave, from its onset.
        ventricles: excited through the conduction system (with or without a bundle branch block).
        ectopic: excited from an ectopic focus in the ventricles.
        pr_interval: onset of P to onset of QRS at 60 beats per minute, seconds.
        qt_interval: QT at a cycle of 1 s with a narrow QRS, seconds.
        fibrillation: [3] direction and size of the fibrillatory waves, mV.
    """

    atria: Waves
    ventricles: Ventricles
    ectopic: Ventricles
    pr_interval: float
    qt_interval: float
    fibrillation: FloatArray

    def atrial_waves(self, cycle: float) -> Waves:
        """Returns the P wave, relative to the onset of the following QRS; PR is a little shorter in a faster heart."""
        return self.atria.shifted(-self.pr_interval_at(cycle))

    def pr_interval_at(self, cycle: float) -> float:
        """Returns the PR interval at a cycle length, both in seconds."""
        return self.pr_interval * (1 - 0.12 * float(np.clip(1 / cycle - 1, -0.3, 1.5)))

    def ventricular_waves(self, cycle: float, ectopic: bool = False) -> Waves:
        """Returns QRS, ST and T, relative to the onset of the QRS; QT follows Fridericia's cube root of the cycle in s."""
        source = self.ectopic if ectopic else self.ventricles
        stretch = float(np.cbrt(cycle))
        t_end = self.qt_interval * stretch + source.qt_extra
        return source.qrs.joined(source.repolarization.stretched(stretch).shifted(t_end))


_Rows = list[tuple[float, float, float, float, float, float]]

# Rows for Waves.of. The right atrium is first, forward and down; the left follows, backward and left.
_ATRIA: _Rows = [(0.045, 0.095, -0.050, 40, 16, 17), (0.070, 0.045, 0.045, 73, 17, 19)]

# Septum (right and forward: r in V1, q in V6), apex and free walls, posterior left wall, base.
_NORMAL_QRS: _Rows = [
    (-0.16, -0.06, -0.38, 18, 7, 7.5),
    (0.92, 0.72, 0.10, 41, 9, 9.5),
    (0.36, 0.22, 0.78, 57, 9.5, 10),
    (-0.22, -0.18, 0.22, 74, 8.5, 8.5),
]
_NORMAL_T: _Rows = [(0.31, 0.20, -0.17, -78, 52, 37), (0.03, 0.02, -0.03, -175, 40, 45)]

# The septum is crossed from right to left (no q in V6, QS in V1), then the left wall slowly, in two humps.
_LEFT_BLOCK_QRS: _Rows = [
    (0.28, 0.12, 0.10, 27, 11, 12),
    (0.92, 0.28, 0.58, 53, 13, 17),
    (0.90, 0.10, 0.88, 100, 19, 18),
]
_LEFT_BLOCK_T: _Rows = [(-0.30, -0.03, -0.33, -82, 58, 38), (-0.12, -0.01, -0.17, -190, 45, 50)]

# The left ventricle as in a normal heart; then, late and alone, the right ventricle: right and forward.
_RIGHT_BLOCK_QRS: _Rows = [
    (-0.16, -0.06, -0.38, 18, 7, 7.5),
    (0.88, 0.66, 0.10, 41, 9, 10),
    (0.30, 0.18, 0.52, 58, 9.5, 11),
    (-0.56, -0.04, -0.58, 103, 17, 21),
]
_RIGHT_BLOCK_T: _Rows = [(0.34, 0.17, 0.16, -78, 55, 37), (0.04, 0.02, 0.08, -175, 40, 45)]

_VENTRICLES: dict[str, tuple[_Rows, _Rows]] = {
    "normal": (_NORMAL_QRS, _NORMAL_T),
    "slow": (_NORMAL_QRS, _NORMAL_T),
    "left": (_LEFT_BLOCK_QRS, _LEFT_BLOCK_T),
    "right": (_RIGHT_BLOCK_QRS, _RIGHT_BLOCK_T),
}

# Ectopic foci: the wave of excitation runs away from them through the muscle itself, slowly.
_ECTOPIC_DIRECTIONS = {
    "right ventricular outflow tract": (0.30, 0.80, 0.52),
    "right ventricular apex": (0.62, -0.58, 0.53),
    "left ventricle": (-0.42, -0.45, -0.79),
}


def rotation(angles: FloatArray) -> FloatArray:
    """Returns the matrix [3, 3] of a rotation about x, then y, then z by the angles [3] in radians."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(angles), np.sin(angles)
    about_x = np.array([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = np.array([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    product: FloatArray = about_z @ about_y @ about_x
    return product


def _varied(rng: np.random.Generator, waves: Waves, direction: float = 0.14, size: float = 0.16) -> Waves:
    """Varies each wave's direction (radians, standard deviation), height and widths (relative)."""
    turned = np.stack([rotation(rng.normal(0, direction, 3)) @ vector for vector in waves.vector])
    num_waves = len(turned)
    height = np.exp(rng.normal(0, size, num_waves))
    width = np.exp(rng.normal(0, 0.04, num_waves))
    return Waves(turned * height[:, None], waves.center, waves.rise * width, waves.fall * width)


def _ectopic(rng: np.random.Generator) -> Ventricles:
    """Draws ventricles excited from an ectopic focus: a wide QRS, with ST and T in the opposite direction."""
    away = np.array(list(_ECTOPIC_DIRECTIONS.values())[rng.integers(len(_ECTOPIC_DIRECTIONS))])
    away = rotation(rng.normal(0, 0.2, 3)) @ away * rng.uniform(1.5, 2.1)
    bend = rotation(rng.normal(0, 0.5, 3)) @ away
    qrs = Waves(
        np.stack([0.35 * away, away, 0.45 * bend]),
        np.array([0.032, 0.072, 0.116]),
        np.array([0.013, 0.021, 0.021]),
        np.array([0.016, 0.022, 0.022]),
    )
    against = np.stack([-rng.uniform(0.35, 0.5) * away, -0.14 * away])
    repolarization = Waves(against, np.array([-0.085, -0.2]), np.array([0.062, 0.05]), np.array([0.042, 0.055]))
    return Ventricles(qrs.stretched(rng.uniform(0.9, 1.08)), repolarization, qt_extra=0.06)


def draw_anatomy(rng: np.random.Generator, conduction: str, female: bool) -> Anatomy:
    """Draws the heart of a patient.

    Args:
        rng: source of the patient's random numbers.
        conduction: "normal", "slow" (first-degree atrioventricular block), "left" or "right" (bundle branch block).
        female: women have somewhat shorter QRS, lower voltage and longer QT.

    Returns:
        The heart; its QRS lasts 78 to 100 ms, or 140 to 164 ms with a bundle branch block.
    """
    orientation = rotation(rng.normal(0, [0.12, 0.20, 0.24]))
    voltage = float(np.exp(rng.normal(-0.06 if female else 0.04, 0.18)))
    turn = voltage * orientation
    blocked = conduction in {"left", "right"}
    qrs_rows, t_rows = _VENTRICLES[conduction]
    qrs = _varied(rng, Waves.of(qrs_rows))
    target = rng.uniform(0.140, 0.164) if blocked else rng.uniform(0.082, 0.100) - (0.004 if female else 0)
    qrs = qrs.stretched(target / qrs.end)
    repolarization = _varied(rng, Waves.of(t_rows), direction=0.2, size=0.25)
    return Anatomy(
        atria=_varied(rng, Waves.of(_ATRIA), size=0.2).turned(orientation),
        ventricles=Ventricles(qrs.turned(turn), repolarization.turned(turn), qt_extra=0.045 if blocked else 0.0),
        ectopic=_ectopic(rng),
        pr_interval=float(rng.uniform(0.225, 0.31) if conduction == "slow" else rng.uniform(0.13, 0.18)),
        qt_interval=float(rng.normal(0.405 if female else 0.395, 0.012)),
        fibrillation=rotation(rng.normal(0, 0.3, 3)) @ np.array([-0.02, 0.035, -0.055]) * rng.uniform(0.7, 1.5),
    )
