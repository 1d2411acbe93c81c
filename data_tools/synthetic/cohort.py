"""Writes a cohort, with any number of processes: `training/simulated/gN/NAME.{mat,hea}` and `cohort.json`."""

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from data_tools.files import write_text
from data_tools.recording import SAMPLING_RATE
from data_tools.synthetic.patients import draw_patient
from data_tools.synthetic.signal import simulate_recording
from data_tools.synthetic.wfdb_files import write_recording

# Increased when the same seed and number of patients no longer give the same bytes.
COHORT_VERSION = 1
_FORMAT = "ecg-engine-simulated-cohort"
# With at most four recordings each, no more than the 1,000 recordings per folder of PhysioNet 2021.
_PATIENTS_PER_FOLDER = 250
_PATIENTS_PER_TASK = 16


@dataclass(frozen=True)
class CohortSummary:
    """The contents of a cohort.

    Attributes:
        path: the folder.
        num_patients: number of patients.
        num_recordings: number of recordings.
        num_seconds: total length of the recordings.
        labels: SNOMED CT code -> number of recordings with it, most frequent first.
        already_complete: whether the cohort was complete before, so that nothing was written.
    """

    path: Path
    num_patients: int
    num_recordings: int
    num_seconds: float
    labels: dict[str, int]
    already_complete: bool


def _folder(out: Path, number: int) -> Path:
    """Returns the folder of a patient's recordings."""
    return out / "training" / "simulated" / f"g{1 + number // _PATIENTS_PER_FOLDER}"


def _write_patient(out: Path, seed: int, number: int) -> tuple[Counter[str], Counter[str]]:
    """Writes the recordings of a patient that do not exist yet; returns counts for the summary, and counts of labels."""
    counts: Counter[str] = Counter()
    patient = draw_patient(seed, number)
    folder = _folder(out, number)
    for plan in patient.recordings:
        counts += Counter(recordings=1, samples=plan.num_samples)
        if (folder / f"{plan.name}.hea").is_file() and (folder / f"{plan.name}.mat").is_file():
            continue
        signal = simulate_recording(patient, plan)[0]
        comments = {"Age": str(plan.age), "Sex": patient.sex, "Dx": ",".join(plan.labels)}
        comments |= {"Rx": "Unknown", "Hx": "Unknown", "Sx": "Unknown"}
        comments |= {"Patient": patient.name}  # not in PhysioNet 2021; other readers ignore it
        write_recording(folder, plan.name, signal, SAMPLING_RATE, comments)
        counts["written"] += 1
    return counts, Counter(label for plan in patient.recordings for label in plan.labels)


def _claim(out: Path, num_patients: int, seed: int) -> None:
    """Marks the folder as this cohort's.

    Raises:
        ValueError: the folder contains something else.
    """
    identity = {"format": _FORMAT, "version": COHORT_VERSION, "num_patients": num_patients, "seed": seed}
    marker = out / "cohort.json"
    if marker.is_file():
        try:
            found = json.loads(marker.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            found = None
        if found != identity:
            raise ValueError(
                f"{out}: already contains another cohort ({marker.name}: {found}; requested: {num_patients} patients, "
                f"seed {seed}, version {COHORT_VERSION}); choose another folder or remove it"
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        problem = "is not empty and contains no simulated cohort" if out.is_dir() else "is not a folder"
        raise ValueError(f"{out}: {problem}; choose a new or empty folder")
    out.mkdir(parents=True, exist_ok=True)
    for number in range(0, num_patients, _PATIENTS_PER_FOLDER):
        _folder(out, number).mkdir(parents=True, exist_ok=True)
    write_text(marker, json.dumps(identity) + "\n")


def write_cohort(out: Path, num_patients: int, seed: int, workers: int = 1) -> CohortSummary:
    """Writes a cohort of simulated patients as WFDB files in PhysioNet 2021's layout.

    The bytes depend only on the seed and the patients' numbers, not on the number of workers; a larger cohort of the same
    seed starts with the patients of a smaller one. An interrupted cohort is resumed, a complete one is left unchanged.

    Args:
        out: a new or empty folder, or one that contains the same cohort.
        num_patients: number of patients, with two to four recordings each; every eight in a row have the eight conditions.
        seed: random seed, 0 or more.
        workers: number of processes.

    Returns:
        The contents of the cohort.

    Raises:
        ValueError: a number is out of range, or the folder contains something else or cannot be written.
    """
    for name, value, least in (("number of patients", num_patients, 1), ("seed", seed, 0), ("number of workers", workers, 1)):
        if value < least:
            raise ValueError(f"the {name} must be at least {least}, got {value}")
    counts: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    write = partial(_write_patient, out, seed)
    try:
        _claim(out, num_patients, seed)
        with ExitStack() as stack:
            mapped: Iterator[tuple[Counter[str], Counter[str]]] = map(write, range(num_patients))
            if min(workers, num_patients) > 1:
                # Spawned, because a forked child inherits locks that threads of the parent hold.
                pool = ProcessPoolExecutor(min(workers, num_patients), multiprocessing.get_context("spawn"))
                mapped = stack.enter_context(pool).map(write, range(num_patients), chunksize=_PATIENTS_PER_TASK)
            for own_counts, own_labels in tqdm(mapped, "simulating", num_patients, unit="patient", disable=None):
                counts += own_counts
                labels += own_labels
    except OSError as error:
        raise ValueError(
            f"{out}: cannot be written ({error.strerror or error}); free some space or choose another folder"
        ) from error
    return CohortSummary(
        path=out,
        num_patients=num_patients,
        num_recordings=counts["recordings"],
        num_seconds=counts["samples"] / SAMPLING_RATE,
        labels=dict(labels.most_common()),
        already_complete=counts["written"] == 0,
    )
