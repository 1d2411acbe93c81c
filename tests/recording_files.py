"""WFDB recordings for tests, valid and broken, in the layout of PhysioNet 2021."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_tools.leads import LEADS

MAT_HEADER_BYTES = 24


def random_signal(seed: int, num_samples: int = 5000, num_leads: int = 12) -> NDArray[np.int16]:
    """Returns a random walk, int16 [leads, samples], that depends on the seed."""
    random = np.random.default_rng(seed)
    return random.integers(-60, 61, (num_leads, num_samples)).cumsum(axis=1).astype(np.int16)


def write_recording(
    folder: Path,
    name: str,
    signal: NDArray[np.int16],
    *,
    leads: Sequence[str] = LEADS,
    sampling_rate: str = "500",
    gain: str = "1000.0(0)/mV",
    comments: Sequence[str] = ("Age: 50", "Sex: Male", "Dx: 426783006"),
) -> Path:
    """Writes NAME.mat and NAME.hea; returns the path without extension.

    Args:
        folder: folder of the recording; is created.
        name: name of the recording.
        signal: ADC units [leads, samples].
        leads: names of the rows.
        sampling_rate: text in the record line.
        gain: text in every signal line.
        comments: text of the comment lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.with_name(f"{name}.mat").write_bytes(bytes(MAT_HEADER_BYTES) + signal.T.astype("<i2").tobytes())
    lines = [f"{name} {len(signal)} {sampling_rate} {signal.shape[1]}"]
    lines += [f"{name}.mat 16x1+24 {gain} 16 0 0 0 0 {lead}" for lead in leads]
    lines += [f"# {comment}" for comment in comments]
    path.with_name(f"{name}.hea").write_text("\n".join(lines) + "\n")
    return path
