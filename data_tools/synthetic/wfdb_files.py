"""The `.mat` and `.hea` of one recording, as PhysioNet 2021 writes them.

The `.mat` is a MATLAB level 4 file with one int16 matrix `val` [12, T]: a header of 24 bytes, then the samples column by
column, so all leads of an instant are together. For WFDB this is format 16 with an offset of 24 bytes.
"""

from pathlib import Path

import numpy as np
import scipy.io
from numpy.typing import NDArray

from data_tools.files import atomic_write, write_text
from data_tools.leads import LEADS


def write_recording(folder: Path, name: str, signal: NDArray[np.int16], sampling_rate: int, comments: dict[str, str]) -> None:
    """Writes `NAME.mat`, then `NAME.hea`, so a recording with a header is complete.

    Args:
        folder: an existing folder.
        name: record name.
        signal: int16 [12, T], 1000 units per mV, in the order of LEADS.
        sampling_rate: Hz.
        comments: facts about the patient, written as lines `# key: value` at the end of the header.

    Raises:
        OSError: the folder cannot be written or the disk is full.
    """
    with atomic_write(folder / f"{name}.mat") as file:
        scipy.io.savemat(file, {"val": signal}, format="4")  # type: ignore[arg-type] # the stubs know only paths
    # The checksum is the sum of all samples in 16 bits, signed.
    checksums = signal.sum(axis=1, dtype=np.int64).astype(np.int16)
    lines = [f"{name} {len(LEADS)} {sampling_rate} {signal.shape[1]}"]
    for lead, first, checksum in zip(LEADS, signal[:, 0], checksums, strict=True):
        lines.append(f"{name}.mat 16x1+24 1000.0(0)/mV 16 0 {first} {checksum} 0 {lead}")
    lines += [f"# {key}: {value}" for key, value in comments.items()]
    write_text(folder / f"{name}.hea", "\n".join(lines) + "\n")
