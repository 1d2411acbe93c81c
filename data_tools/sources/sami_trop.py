"""SaMi-Trop: ``exams.hdf5`` and ``exams.csv``, one exam per patient. https://zenodo.org/records/4905618.

Like CODE-15%, but the file of tracings contains no exam IDs: the rows of the table are in the order of the tracings.
"""

from data_tools.leads import LEADS
from data_tools.sources.array_layout import ArrayLayout, Table
from data_tools.sources.code15 import Code15


class SamiTrop(Code15):
    """The source ``sami_trop``; the inputs are folders."""

    wanted = "the folder that contains exams.csv and exams.hdf5"
    source = "sami-trop"
    ends_with_zeros = False
    layout = ArrayLayout(
        files="exams.hdf5",
        signals="tracings",
        leads=LEADS,
        sampling_rate=400,
        table=Table(
            file="exams.csv",
            patient="exam_id",
            age="age",
            sex="is_male",
            sex_values={"True": "male", "False": "female"},
            labels=("normal_ecg",),
        ),
    )
