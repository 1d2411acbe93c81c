"""The simulated cohort: real WFDB files, and hearts that behave as their labels say."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.signal import find_peaks

from data_tools.leads import LEADS
from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic import write_cohort
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
from data_tools.synthetic.wfdb_files import write_recording
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
        for plan in patient.recordings:
            recording = simulate_recording(patient, plan)
            found.append(Simulated(patient, plan, recording.signal, recording.beats))
    return tuple(found)


def labelled(code: str) -> list[Simulated]:
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
    for item in labelled(code):
        if PREMATURE_VENTRICULAR not in item.plan.labels:
            assert low < heart_rate(item.signal) < high, item.plan.name


def test_fibrillation_is_less_regular_than_any_sinus_rhythm() -> None:
    def irregularity(item: Simulated) -> float:
        cycles = np.diff(r_peaks(item.signal))
        return float(cycles.std() / cycles.mean())

    fibrillation = [irregularity(item) for item in labelled(ATRIAL_FIBRILLATION)]
    sinus = [irregularity(item) for item in labelled(SINUS_RHYTHM) if PREMATURE_VENTRICULAR not in item.plan.labels]
    assert min(fibrillation) > max(sinus)


def test_fibrillation_has_fibrillatory_waves_and_no_p_wave() -> None:
    for item in labelled(ATRIAL_FIBRILLATION):
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
    for item in labelled(LEFT_BUNDLE_BRANCH_BLOCK):
        beat = mean_beat(item)
        v1, v6 = beat[LEADS.index("V1")] - beat[6, :45].mean(), beat[LEADS.index("V6")] - beat[11, :45].mean()
        qrs, t_wave = slice(50, 130), slice(170, 260)
        assert -v1[qrs].min() > 3 * v1[qrs].max()
        assert v6[qrs].max() > 5 * -v6[50:90].min()
        assert v1[t_wave].mean() > 0 > v6[t_wave].mean()


def test_right_block_has_a_late_r_in_v1_and_a_wide_s_in_v6() -> None:
    for item in labelled(RIGHT_BUNDLE_BRANCH_BLOCK):
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
        main, t_wave = ectopic.qrs.vector[1], ectopic.repolarisation.vector[0]
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


# Files


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "cohort"
    write_cohort(out, 20, 3)
    return out


def test_summary_counts_what_was_written(tmp_path: Path) -> None:
    summary = write_cohort(tmp_path / "c", 8, 0)
    headers = list((tmp_path / "c").rglob("*.hea"))
    assert summary.num_patients == 8
    assert summary.num_recordings == len(headers) == len(list((tmp_path / "c").rglob("*.mat")))
    assert not summary.already_complete
    codes = re.findall(r"\d{8,}", " ".join(re.findall(r"# Dx: (.*)", "".join(map(Path.read_text, headers)))))
    assert summary.labels == {code: codes.count(code) for code in codes}
    records = [wfdb.rdheader(str(path.with_suffix(""))) for path in headers]
    assert summary.num_seconds == pytest.approx(sum(record.sig_len for record in records) / SAMPLING_RATE)


def test_bytes_do_not_depend_on_the_number_of_workers(written: Path, tmp_path: Path) -> None:
    write_cohort(tmp_path / "two", 20, 3, workers=2)
    assert contents(tmp_path / "two") == contents(written)


def test_a_larger_cohort_begins_with_the_smaller_one(written: Path, tmp_path: Path) -> None:
    write_cohort(tmp_path / "small", 2, 3)
    small, large = contents(tmp_path / "small"), contents(written)
    del small["cohort.json"]
    assert small.items() <= large.items()


def test_another_seed_gives_other_signals(written: Path, tmp_path: Path) -> None:
    write_cohort(tmp_path / "other", 2, 4)
    name = "training/simulated/g1/P00001R1.mat"
    assert contents(tmp_path / "other")[name] != contents(written)[name]


def test_wfdb_and_scipy_read_what_was_simulated(written: Path) -> None:
    patient = draw_patient(3, 0)
    plan = patient.recordings[0]
    signal = simulate_recording(patient, plan).signal
    path = written / "training" / "simulated" / "g1" / plan.name
    record = wfdb.rdrecord(str(path), physical=False)
    np.testing.assert_array_equal(record.d_signal.T, signal)
    assert record.sig_name == list(LEADS)
    assert record.fs == SAMPLING_RATE
    assert set(record.adc_gain) == {1000.0}
    assert set(record.units) == {"mV"}
    assert record.init_value == signal[:, 0].tolist()
    assert [value % 65536 for value in record.checksum] == record.calc_checksum()
    np.testing.assert_allclose(wfdb.rdrecord(str(path)).p_signal.T, signal / 1000)
    np.testing.assert_array_equal(scipy.io.loadmat(str(path) + ".mat")["val"], signal)
    assert f"Dx: {','.join(plan.labels)}" in record.comments
    assert f"Patient: {patient.name}" in record.comments


def layout(header: str) -> list[str]:
    """A header with its numbers and words of the patient made equal, to compare form only."""
    name = header.split(maxsplit=1)[0]
    lines = re.sub(rf"\b{name}\b", "NAME", header).splitlines()
    lines = [re.sub(r"16 0 -?\d+ -?\d+ 0", "16 0 FIRST CHECKSUM 0", line) for line in lines]
    return [re.sub(r"^# (Age|Sex|Dx): [\w,]+$", r"# \1: VALUE", line) for line in lines]


@pytest.mark.shared
def test_header_has_the_form_of_the_real_ones(written: Path, shared: Path) -> None:
    real = (shared / "ecg/physionet2021/training/ningbo/g10/JS20000.hea").read_text()
    ours = next(p for p in sorted(written.rglob("*.hea")) if p.read_text().split("\n")[0].endswith(" 5000")).read_text()
    *form, patient = layout(ours)
    assert form == layout(real)
    assert re.fullmatch(r"# Patient: P\d{5}", patient)
    assert ours.endswith("\n")
    assert "\r" not in ours


@pytest.mark.shared
def test_a_real_recording_is_written_back_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    real = shared / "ecg/physionet2021/training/ningbo/g10/JS20000"
    record = wfdb.rdrecord(str(real), physical=False)
    comments = dict(comment.split(": ", 1) for comment in record.comments)
    write_recording(tmp_path, "JS20000", record.d_signal.T.astype(np.int16), 500, comments)
    for suffix in (".hea", ".mat"):
        assert (tmp_path / f"JS20000{suffix}").read_bytes() == real.with_suffix(suffix).read_bytes()


# Folders


def test_the_same_cohort_again_does_nothing(tmp_path: Path) -> None:
    first = write_cohort(tmp_path, 2, 0)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.mat")}
    again = write_cohort(tmp_path, 2, 0)
    assert again.already_complete
    assert (again.num_recordings, again.labels) == (first.num_recordings, first.labels)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.mat")} == times


def test_a_cohort_that_was_stopped_goes_on(tmp_path: Path) -> None:
    write_cohort(tmp_path, 3, 0)
    whole = contents(tmp_path)
    (tmp_path / "training/simulated/g1/P00002R1.hea").unlink()
    (tmp_path / "training/simulated/g1/P00003R2.mat").unlink()
    assert not write_cohort(tmp_path, 3, 0).already_complete
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(("num_patients", "seed"), [(3, 0), (2, 1)])
def test_another_cohort_is_refused(tmp_path: Path, num_patients: int, seed: int) -> None:
    write_cohort(tmp_path, 2, 0)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"already holds another cohort.*give another folder") as caught:
        write_cohort(tmp_path, num_patients, seed)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("marker", ["{", "[]", json.dumps({"format": "ecg-engine-simulated-cohort"}), "\x00\x01"])
def test_a_broken_marker_is_refused(tmp_path: Path, marker: str) -> None:
    (tmp_path / "cohort.json").write_text(marker)
    with pytest.raises(ValueError, match="already holds another cohort"):
        write_cohort(tmp_path, 2, 0)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match="is not empty and holds no simulated cohort"):
        write_cohort(tmp_path, 2, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="is not a folder"):
        write_cohort(tmp_path / "out", 2, 0)
    with pytest.raises(ValueError, match="cannot write the cohort"):
        write_cohort(tmp_path / "out" / "deeper", 2, 0)


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_tools.synthetic.cohort.write_recording", full)
    with pytest.raises(ValueError, match="No space left on device") as caught:
        write_cohort(tmp_path / "out", 2, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("num_patients", "seed", "workers", "message"),
    [(0, 0, 1, "number of patients"), (1, -1, 1, "seed"), (1, 0, 0, "number of workers")],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, num_patients: int, seed: int, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_cohort(tmp_path / "out", num_patients, seed, workers)
    assert not (tmp_path / "out").exists()
