"""CODE-15%: ``exams_part*.hdf5`` and ``exams.csv``. https://zenodo.org/records/4916206.

Tracings are sampled at 400 Hz and padded with zeros to 4096 samples; each file ends with a row of zeros. The table is in a
different order and is joined by ``exam_id`` and ``trace_file``. The labels are the names of the columns that are true. The
authors do not state the unit of the amplitudes, which appears to be mV, and have not removed the baseline.
"""

from pathlib import Path
from typing import ClassVar

from data_tools.leads import LEADS
from data_tools.sources.array_layout import ArrayLayout, Table
from data_tools.sources.hdf5 import Hdf5


class Code15(Hdf5):
    """The source ``code15``; the inputs are folders."""

    wanted = "the folder that contains exams.csv and exams_part*.hdf5"
    source: ClassVar[str] = "code-15"
    ends_with_zeros = True
    layout: ClassVar[ArrayLayout] = ArrayLayout(
        files="exams_part*.hdf5",
        signals="tracings",
        leads=LEADS,
        sampling_rate=400,
        names="exam_id",
        table=Table(
            file="exams.csv",
            name="exam_id",
            file_name="trace_file",
            patient="patient_id",
            age="age",
            sex="is_male",
            sex_values={"True": "male", "False": "female"},
            labels=("1dAVb", "RBBB", "LBBB", "SB", "ST", "AF", "normal_ecg"),
        ),
    )

    def _folder(self, path: Path) -> Path:
        return path

    def _layout(self, path: Path) -> tuple[str, ArrayLayout]:
        if not path.is_dir():
            raise ValueError(f"{path}: no such folder; choose {self.wanted}")
        return self.source, self.layout
