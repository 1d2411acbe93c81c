"""The whole cohort: `training/simulated/gN/NAME.{mat,hea}` and `cohort.json`, on any number of processes."""

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from data_tools.files import atomic_write
from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic.patients import Patient, draw_patient
from data_tools.synthetic.signal import simulate_recording
from data_tools.synthetic.wfdb_files import write_recording

# Raised whenever the same (seed, number of patients) would give other bytes than before.
COHORT_VERSION = 1
_FORMAT = "ecg-engine-simulated-cohort"
# At most four recordings each: no more than the 1,000 recordings of PhysioNet 2021's folders.
_PATIENTS_PER_FOLDER = 250
_PATIENTS_PER_TASK = 16


@dataclass(frozen=True)
class CohortSummary:
    """What a cohort holds.

    Attributes:
        path: its folder.
        num_patients: patients.
        num_recordings: recordings.
        num_seconds: length of all recordings together.
        labels: SNOMED code to number of recordings that carry it, most frequent first.
        already_complete: whether the folder held this cohort before, so that nothing was written.
    """

    path: Path
    num_patients: int
    num_recordings: int
    num_seconds: float
    labels: dict[str, int]
    already_complete: bool


@dataclass(frozen=True)
class _Part:
    """What one task did; parts add up to the summary."""

    num_recordings: int
    num_written: int
    num_samples: int
    labels: Counter[str]


def _folder(out: Path, number: int) -> Path:
    """Folder of the recordings of a patient."""
    return out / "training" / "simulated" / f"g{1 + number // _PATIENTS_PER_FOLDER}"


def _comments(patient: Patient, age: int, labels: tuple[str, ...]) -> dict[str, str]:
    """The comment lines of a header; PhysioNet 2021 has no Patient, which the others' readers pass over."""
    return {
        "Age": str(age),
        "Sex": patient.sex,
        "Dx": ",".join(labels),
        "Rx": "Unknown",
        "Hx": "Unknown",
        "Sx": "Unknown",
        "Patient": patient.name,
    }


def _write_patients(out: Path, seed: int, numbers: range) -> _Part:
    """Writes the recordings of some patients that are not there yet."""
    num_recordings = num_written = num_samples = 0
    labels: Counter[str] = Counter()
    for number in numbers:
        patient = draw_patient(seed, number)
        folder = _folder(out, number)
        for plan in patient.recordings:
            num_recordings += 1
            num_samples += plan.num_samples
            labels.update(plan.labels)
            if (folder / f"{plan.name}.hea").is_file() and (folder / f"{plan.name}.mat").is_file():
                continue
            signal = simulate_recording(patient, plan).signal
            write_recording(folder, plan.name, signal, SAMPLING_RATE, _comments(patient, plan.age, plan.labels))
            num_written += 1
    return _Part(num_recordings, num_written, num_samples, labels)


def _claim(out: Path, num_patients: int, seed: int) -> None:
    """Makes the folder this cohort's own, or refuses it."""
    identity = {"format": _FORMAT, "version": COHORT_VERSION, "num_patients": num_patients, "seed": seed}
    marker = out / "cohort.json"
    if marker.is_file():
        try:
            found = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if found != identity:
            raise ValueError(
                f"{out} already holds another cohort ({marker.name} says {found}, asked for {num_patients} patients, "
                f"seed {seed}, version {COHORT_VERSION}): give another folder, or remove this one first"
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "is not empty and holds no simulated cohort" if out.is_dir() else "is not a folder"
        raise ValueError(f"{out} {what}: give a new or empty folder")
    out.mkdir(parents=True, exist_ok=True)
    for number in range(0, num_patients, _PATIENTS_PER_FOLDER):
        _folder(out, number).mkdir(parents=True, exist_ok=True)
    with atomic_write(marker) as file:
        file.write((json.dumps(identity) + "\n").encode())


def _parts(out: Path, seed: int, tasks: list[range], workers: int) -> Iterator[_Part]:
    """The parts of all tasks, in order, computed on a number of processes."""
    work = partial(_write_patients, out, seed)
    if workers == 1 or len(tasks) == 1:
        yield from map(work, tasks)
        return
    # Spawned, because a forked child inherits the locks of threads that it does not have.
    with ProcessPoolExecutor(min(workers, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, tasks)


def write_cohort(out: Path, num_patients: int, seed: int, workers: int = 1) -> CohortSummary:
    """Writes a cohort of simulated patients as WFDB files in PhysioNet 2021's layout.

    The bytes depend on the seed and on each patient's number only: not on the number of workers, and a larger cohort of the
    same seed begins with the patients of a smaller one. A cohort that was stopped half-way goes on where it stopped; one
    that is complete is left as it is.

    Args:
        out: a new or empty folder, or one with the same cohort.
        num_patients: each has two to four recordings; every eight in a row have one of each condition.
        seed: of all random numbers, not negative.
        workers: processes.

    Returns:
        CohortSummary: what the cohort holds.

    Raises:
        ValueError: a number is out of range, the folder holds something else, or it cannot be written.
    """
    for name, value, least in (("number of patients", num_patients, 1), ("seed", seed, 0), ("number of workers", workers, 1)):
        if value < least:
            raise ValueError(f"the {name} must be at least {least}, got {value}")
    tasks = [
        range(first, min(first + _PATIENTS_PER_TASK, num_patients)) for first in range(0, num_patients, _PATIENTS_PER_TASK)
    ]
    num_recordings = num_written = num_samples = 0
    labels: Counter[str] = Counter()
    try:
        _claim(out, num_patients, seed)
        with tqdm(total=num_patients, desc="simulating", unit="patient", disable=None) as progress:
            for task, part in zip(tasks, _parts(out, seed, tasks, workers), strict=True):
                num_recordings += part.num_recordings
                num_written += part.num_written
                num_samples += part.num_samples
                labels += part.labels
                progress.update(len(task))
    except OSError as error:
        raise ValueError(
            f"cannot write the cohort to {out}: {error.strerror or error}; free space or give another folder"
        ) from error
    return CohortSummary(
        path=out,
        num_patients=num_patients,
        num_recordings=num_recordings,
        num_seconds=num_samples / SAMPLING_RATE,
        labels=dict(labels.most_common()),
        already_complete=num_written == 0,
    )
