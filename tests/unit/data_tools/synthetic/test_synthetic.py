"""The simulated cohort: hearts that behave as their labels say."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import find_peaks

from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic.heart import draw_anatomy, rotation
from data_tools.synthetic.patients import (
    ATRIAL_FIBRILLATION,
    FIRST_DEGREE_BLOCK,
    LEFT_BUNDLE_BRANCH_BLOCK,
    PREMATURE_VENTRICULAR,
    RIGHT_BUNDLE_BRANCH_BLOCK,
    SINUS_BRADYCARDIA,
    SINUS_RHYTHM,
    SINUS_TACHYCARDIA,
    Condition,
    Patient,
    RecordingPlan,
    draw_patient,
)
from data_tools.synthetic.rhythms import BeatKind, Beats, Breathing, sinus_beats, with_premature_beats
from data_tools.synthetic.signal import fibrillatory_waves, heart_vector, simulate_recording, twelve_leads
from data_tools.vcg import INDEPENDENT_LEADS

Signal = NDArray[np.int16]
NUM_PATIENTS = 32


@dataclass(frozen=True)
class Simulated:
    patient: Patient
    plan: RecordingPlan
    signal: Signal
    beats: Beats


@cache
def cohort() -> tuple[Simulated, ...]:
    """All recordings of four patients of each condition."""
    found = []
    for number in range(NUM_PATIENTS):
        patient = draw_patient(7, number)
        found += [Simulated(patient, plan, *simulate_recording(patient, plan)) for plan in patient.recordings]
    return tuple(found)


def labeled(code: str) -> list[Simulated]:
    """The recordings with a code, never none."""
    found = [item for item in cohort() if code in item.plan.labels]
    assert found
    return found


def r_peaks(signal: Signal) -> NDArray[np.int64]:
    """A plain QRS detector: peaks of the power of the slope of all leads in a window of 120 ms."""
    slope = np.gradient(signal.astype(np.float64), axis=1)
    power = np.convolve(np.square(slope).sum(axis=0), np.ones(60) / 60, "same")
    peaks: NDArray[np.int64] = find_peaks(power, height=0.4 * np.percentile(power, 98), distance=SAMPLING_RATE // 4)[0]
    return peaks


def heart_rate(signal: Signal) -> float:
    """Beats per minute, as measured."""
    return float(60 * SAMPLING_RATE / np.diff(r_peaks(signal)).mean())


def mean_beat(item: Simulated) -> NDArray[np.float64]:
    """The averaged beat [12, 300] of a recording from 100 ms before the onset of its QRS, without ectopic beats."""
    conducted = item.beats.onset[np.isin(item.beats.kind, (BeatKind.SINUS, BeatKind.FIBRILLATION))]
    first = np.rint(conducted * SAMPLING_RATE).astype(int) - 50
    first = first[(first >= 0) & (first + 300 <= item.signal.shape[1])]
    mean: NDArray[np.float64] = np.mean([item.signal[:, i : i + 300] for i in first], axis=0)
    return mean


def qrs_duration(item: Simulated) -> float:
    """Milliseconds that the averaged heart moves fast: the run about the fastest instant, gaps of 24 ms allowed."""
    beat = mean_beat(item)[:, :160]
    speed = np.linalg.norm(beat[:, 4:] - beat[:, :-4], axis=0)
    fast = np.flatnonzero(speed > 0.14 * speed.max())
    runs = np.split(fast, np.flatnonzero(np.diff(fast) > 12) + 1)
    run = next(run for run in runs if speed.argmax() in run)
    return 1000 * float(run[-1] - run[0]) / SAMPLING_RATE


# Rhythms and diagnoses


def test_every_condition_occurs_once_in_eight_patients() -> None:
    for block in range(4):
        assert {draw_patient(7, 8 * block + place).condition for place in range(8)} == set(Condition)


@pytest.mark.parametrize(
    ("code", "low", "high"), [(SINUS_BRADYCARDIA, 35, 60), (SINUS_RHYTHM, 60, 100), (SINUS_TACHYCARDIA, 100, 160)]
)
def test_measured_heart_rate_agrees_with_the_label(code: str, low: float, high: float) -> None:
    for item in labeled(code):
        if PREMATURE_VENTRICULAR not in item.plan.labels:
            assert low < heart_rate(item.signal) < high, item.plan.name


def test_fibrillation_is_less_regular_than_any_sinus_rhythm() -> None:
    def irregularity(item: Simulated) -> float:
        cycles = np.diff(r_peaks(item.signal))
        return float(cycles.std() / cycles.mean())

    fibrillation = [irregularity(item) for item in labeled(ATRIAL_FIBRILLATION)]
    sinus = [irregularity(item) for item in labeled(SINUS_RHYTHM) if PREMATURE_VENTRICULAR not in item.plan.labels]
    assert min(fibrillation) > max(sinus)


def test_fibrillation_has_fibrillatory_waves_and_no_p_wave() -> None:
    for item in labeled(ATRIAL_FIBRILLATION):
        assert (item.beats.kind == BeatKind.FIBRILLATION).all()
    for seed in range(20):
        seconds = np.arange(10 * SAMPLING_RATE) / SAMPLING_RATE
        waves = fibrillatory_waves(np.random.default_rng(seed), np.array([0.0, 0.0, -0.05]), seconds)
        power = np.square(np.abs(np.fft.rfft(waves[2])))
        frequency = np.fft.rfftfreq(len(seconds), 1 / SAMPLING_RATE)
        assert power[(frequency > 3) & (frequency < 10)].sum() > 0.6 * power.sum()
        assert 0.02 < waves[2].std() < 0.1


def test_pr_interval_exceeds_200_ms_in_first_degree_block_alone() -> None:
    for item in cohort():
        intervals = [item.patient.anatomy.pr_interval_at(cycle) for cycle in item.beats.cycle]
        if FIRST_DEGREE_BLOCK in item.plan.labels:
            assert min(intervals) > 0.2
        else:
            assert max(intervals) < 0.2


def test_the_p_wave_begins_where_the_pr_interval_says() -> None:
    for number in range(NUM_PATIENTS):
        anatomy = draw_patient(7, number).anatomy
        seconds = np.arange(-0.5, 0, 0.001)
        size = np.linalg.norm(anatomy.atrial_waves(1.0).at(seconds), axis=0)
        onset = seconds[np.flatnonzero(size > 0.05 * size.max())[0]]
        assert -onset == pytest.approx(anatomy.pr_interval, abs=0.012)


def test_qrs_is_wide_in_bundle_branch_blocks_alone() -> None:
    for item in cohort():
        blocked = {LEFT_BUNDLE_BRANCH_BLOCK, RIGHT_BUNDLE_BRANCH_BLOCK} & set(item.plan.labels)
        duration = qrs_duration(item)
        assert duration > 120 if blocked else 60 < duration < 110, (item.plan.name, duration)


def test_left_block_is_negative_in_v1_and_positive_without_q_in_v6_with_discordant_t() -> None:
    for item in labeled(LEFT_BUNDLE_BRANCH_BLOCK):
        beat = mean_beat(item)
        v1, v6 = beat[LEADS.index("V1")] - beat[6, :45].mean(), beat[LEADS.index("V6")] - beat[11, :45].mean()
        qrs, t_wave = slice(50, 130), slice(170, 260)
        assert -v1[qrs].min() > 3 * v1[qrs].max()
        assert v6[qrs].max() > 5 * -v6[50:90].min()
        assert v1[t_wave].mean() > 0 > v6[t_wave].mean()


def test_right_block_has_a_late_r_in_v1_and_a_wide_s_in_v6() -> None:
    for item in labeled(RIGHT_BUNDLE_BRANCH_BLOCK):
        beat = mean_beat(item)
        v1, v6 = beat[LEADS.index("V1")], beat[LEADS.index("V6")]
        late = slice(90, 120)
        assert v1[late].max() > 200, item.plan.name
        assert v1[50:90].min() < v1[late].max()
        assert v6[late].min() < -100, item.plan.name


@given(seed=st.integers(0, 2**32), rate=st.floats(55, 100), duration=st.floats(6, 30))
@settings(max_examples=60, deadline=None)
def test_premature_beats_are_early_and_followed_by_a_full_pause(seed: int, rate: float, duration: float) -> None:
    rng = np.random.default_rng(seed)
    sinus = sinus_beats(rng, duration, rate, 0.02, Breathing(0.25, 0.0))
    beats = with_premature_beats(rng, sinus, duration)
    premature = np.flatnonzero(beats.kind == BeatKind.PREMATURE)
    assert len(premature) >= 1
    assert (np.diff(beats.onset) > 0).all()
    assert 0 < beats.onset[premature].min() <= beats.onset[premature].max() < duration
    for index in premature:
        assert beats.kind[index - 1 : index + 3].tolist() == [
            BeatKind.SINUS,
            BeatKind.PREMATURE,
            BeatKind.BLOCKED,
            BeatKind.SINUS,
        ]
        cycle = beats.onset[index + 1] - beats.onset[index - 1]
        assert 0.45 < (beats.onset[index] - beats.onset[index - 1]) / cycle < 0.8
        # The node keeps its beat: the pause makes up for what the premature beat took.
        assert beats.onset[index + 2] - beats.onset[index - 1] == pytest.approx(2 * cycle, rel=0.1)


def test_a_premature_beat_is_wide_with_a_t_wave_against_its_qrs() -> None:
    for number in range(NUM_PATIENTS):
        ectopic = draw_patient(7, number).anatomy.ectopic
        assert 0.14 < ectopic.qrs.end < 0.20
        main, t_wave = ectopic.qrs.vector[1], ectopic.repolarization.vector[0]
        assert main @ t_wave / np.linalg.norm(main) / np.linalg.norm(t_wave) == pytest.approx(-1)


# Leads and patients


def test_einthoven_and_goldberger_hold_in_every_recording() -> None:
    for item in cohort():
        lead = dict(zip(LEADS, item.signal.astype(np.int64), strict=True))
        assert np.abs(lead["III"] - (lead["II"] - lead["I"])).max() <= 2
        assert np.abs(2 * lead["aVR"] + lead["I"] + lead["II"]).max() <= 4
        assert np.abs(2 * lead["aVL"] - (2 * lead["I"] - lead["II"])).max() <= 4
        assert np.abs(2 * lead["aVF"] - (2 * lead["II"] - lead["I"])).max() <= 4


def test_twelve_leads_keep_the_independent_ones() -> None:
    independent = np.random.default_rng(0).normal(0, 1, (8, 100))
    signal = twelve_leads(independent)
    rows = [LEADS.index(lead) for lead in INDEPENDENT_LEADS]
    np.testing.assert_array_equal(signal[rows], np.rint(independent * 1000))


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_rotations_keep_lengths_and_handedness(angles: list[float]) -> None:
    matrix = rotation(np.array(angles))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix) == pytest.approx(1)


def test_the_heart_vector_is_the_sum_of_its_beats() -> None:
    anatomy = draw_anatomy(np.random.default_rng(0), "normal", female=False)
    kinds = np.array([BeatKind.SINUS, BeatKind.PREMATURE, BeatKind.BLOCKED, BeatKind.FIBRILLATION], np.int8)
    beats = Beats(np.array([0.5, 1.0, 1.3, 2.1]), kinds, np.full(4, 0.8))
    total = heart_vector(anatomy, beats, 1500)
    seconds = np.arange(1500) / SAMPLING_RATE
    expected = np.zeros((3, 1500))
    for onset, kind in zip(beats.onset, kinds, strict=True):
        if kind in (BeatKind.SINUS, BeatKind.BLOCKED):
            expected += anatomy.atrial_waves(0.8).at(seconds - onset)
        if kind != BeatKind.BLOCKED:
            expected += anatomy.ventricular_waves(0.8, ectopic=kind == BeatKind.PREMATURE).at(seconds - onset)
    np.testing.assert_allclose(total, expected, atol=1e-3)


def test_recordings_of_one_patient_are_more_alike_than_those_of_two() -> None:
    shapes = defaultdict(list)
    for item in cohort():
        beat = mean_beat(item)[:, 40:110]
        beat -= beat[:, :1]
        shapes[item.patient.name].append((beat / np.linalg.norm(beat)).ravel())
    patients = list(shapes)
    same = [a @ b for name in patients for k, a in enumerate(shapes[name]) for b in shapes[name][k + 1 :]]
    other = [shapes[a][0] @ shapes[b][0] for k, a in enumerate(patients) for b in patients[k + 1 :]]
    assert np.mean(same) > 0.95
    assert np.mean(other) < np.mean(same) - 0.15


def test_most_recordings_last_ten_seconds_and_a_few_are_longer_or_shorter() -> None:
    seconds = np.array([plan.num_samples / SAMPLING_RATE for k in range(200) for plan in draw_patient(0, k).recordings])
    assert (seconds == 10).mean() > 0.8
    assert (seconds >= 15).mean() > 0.02
    assert ((seconds >= 6) & (seconds <= 9)).mean() > 0.02
    assert seconds.max() <= 30
