"""One simulated recording: beats of the heart vector, respiration, noise, and the 12 leads in microvolts."""

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import derive_limb_leads
from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic.heart import Anatomy, rotation
from data_tools.synthetic.patients import Patient, RecordingPlan, generator
from data_tools.synthetic.rhythms import BeatKind, Beats, Breathing, fibrillation_beats, sinus_beats, with_premature_beats
from data_tools.vcg import DOWER, FloatArray

# A beat is evaluated from this long before the onset of its QRS to this long after it, seconds.
_BEFORE_S, _AFTER_S = 0.40, 0.75


def _draw_beats(rng: np.random.Generator, patient: Patient, plan: RecordingPlan) -> Beats:
    """Draws the beats of a recording."""
    duration = plan.num_samples / SAMPLING_RATE
    if plan.fibrillation:
        return fibrillation_beats(rng, duration, plan.rate)
    beats = sinus_beats(rng, duration, plan.rate, patient.sinus_arrhythmia, plan.breathing)
    return with_premature_beats(rng, beats, duration) if plan.premature_beats else beats


def heart_vector(anatomy: Anatomy, beats: Beats, num_samples: int) -> FloatArray:
    """Returns the heart vector of a series of beats, without noise.

    Args:
        anatomy: the patient's heart.
        beats: when it beats.
        num_samples: T, at 500 Hz.

    Returns:
        [3, T] mV.
    """
    vector = np.zeros((3, num_samples))
    for onset, kind, cycle in zip(beats.onset.tolist(), beats.kind.tolist(), beats.cycle.tolist(), strict=True):
        first = max(int(np.ceil((onset - _BEFORE_S) * SAMPLING_RATE)), 0)
        last = min(int((onset + _AFTER_S) * SAMPLING_RATE), num_samples)
        if first >= last:
            continue
        if kind == BeatKind.BLOCKED:
            waves = anatomy.atrial_waves(cycle)
        else:
            waves = anatomy.ventricular_waves(cycle, ectopic=kind == BeatKind.PREMATURE)
            if kind == BeatKind.SINUS:
                waves = anatomy.atrial_waves(cycle).joined(waves)
        vector[:, first:last] += waves.at(np.arange(first, last) / SAMPLING_RATE - onset)
    return vector


def fibrillatory_waves(rng: np.random.Generator, direction: FloatArray, seconds: FloatArray) -> FloatArray:
    """Draws fibrillatory waves, [3, T] in mV: a sawtooth of three harmonics whose rate (5 to 8 Hz) and size wander.

    After M. Stridh, L. Sörnmo: "Spatiotemporal QRST cancellation techniques for analysis of atrial fibrillation",
    IEEE Trans. Biomed. Eng. 48(1), 2001, doi:10.1109/10.900266.
    """
    rate, wander = rng.uniform(5.0, 8.0), rng.uniform(0.15, 0.5)
    knots = np.arange(0, seconds[-1] + 1, 0.5)
    jitter = np.interp(seconds, knots, rng.normal(0, 1.2, len(knots)))
    phase = 2 * np.pi * rate * seconds + wander * np.sin(2 * np.pi * wander * seconds) + jitter
    size = 1 + 0.35 * np.sin(2 * np.pi * rng.uniform(0.2, 0.6) * seconds + rng.uniform(0, 2 * np.pi))
    order = np.arange(1, 4)
    # Each harmonic has its own direction, so that the shape of the waves, not only their size, differs from lead to lead.
    vectors = np.stack([rotation(rng.normal(0, 0.25, 3)) @ direction / harmonic for harmonic in order])
    harmonics: FloatArray = vectors.T @ np.sin(order[:, None] * phase)
    return harmonics * size


def _moved_by_breath(vector: FloatArray, rng: np.random.Generator, breath: FloatArray) -> FloatArray:
    """Turns the heart by a few degrees with respiration [T], and shrinks the vector as the lungs fill."""
    axis = rng.normal(0, 0.03, 3)
    return vector * (1 - 0.03 * breath) + np.cross(axis, vector, axisb=0, axisc=0) * breath


def _noise(rng: np.random.Generator, breathing: Breathing, seconds: FloatArray) -> FloatArray:
    """Draws baseline wander and muscle noise for the eight independent leads, [8, T] in mV."""
    num_leads, num_samples = len(DOWER), len(seconds)
    rates = np.concatenate([[breathing.rate], rng.uniform(0.06, 0.45, 3)])
    phase = 2 * np.pi * rates[:, None] * seconds
    basis = np.concatenate([np.sin(phase), np.cos(phase)])
    baseline = rng.normal(0, np.exp(rng.uniform(*np.log([0.006, 0.03]))), (num_leads, len(basis))) @ basis
    # White noise through (1 + z)(1 - z^2): nothing at 0 and 250 Hz, most near 80 Hz, like the electromyogram.
    white = rng.standard_normal((num_leads, num_samples + 3), dtype=np.float32)
    step = white[:, 2:] - white[:, :-2]
    muscle = step[:, 1:] + step[:, :-1]
    size = 0.5 * np.exp(rng.uniform(*np.log([0.002, 0.014]))) * np.exp(rng.normal(0, 0.25, (num_leads, 1)))
    noise: FloatArray = baseline + size * muscle
    return noise


def twelve_leads(independent: FloatArray) -> NDArray[np.int16]:
    """Derives the 12 leads from the eight independent ones, in whole microvolts.

    The other limb leads are derived after rounding, so that III = II - I holds exactly and Goldberger's relations to half a
    unit.

    Args:
        independent: [8, T] mV, rows as in INDEPENDENT_LEADS.

    Returns:
        int16 [12, T] in uV, in the order of LEADS.
    """
    microvolt = np.rint(independent * 1000)
    lead_i, lead_ii = microvolt[0], microvolt[1]
    signal = np.stack([lead_i, lead_ii, *derive_limb_leads(lead_i, lead_ii), *microvolt[2:]])
    assert np.abs(signal).max() < 32767, "a simulated heart never reaches 32 mV"
    whole: NDArray[np.int16] = np.rint(signal).astype(np.int16)
    return whole


def simulate_recording(patient: Patient, plan: RecordingPlan) -> tuple[NDArray[np.int16], Beats]:
    """Simulates one recording of a patient; the same plan gives the same signal, bit for bit.

    Returns:
        The signal, int16 [12, T] in uV, in the order of LEADS; and its beats, some of them before the first sample or after the
        last.
    """
    rng = generator(*plan.entropy)
    beats = _draw_beats(rng, patient, plan)
    seconds = np.arange(plan.num_samples) / SAMPLING_RATE
    vector = heart_vector(patient.anatomy, beats, plan.num_samples)
    if plan.fibrillation:
        vector += fibrillatory_waves(rng, patient.anatomy.fibrillation, seconds)
    vector = _moved_by_breath(vector, rng, plan.breathing.at(seconds))
    independent = DOWER @ rotation(plan.orientation) @ vector + _noise(rng, plan.breathing, seconds)
    return twelve_leads(independent), beats
