"""MIMIC-IV-ECG 1.0: ``record_list.csv`` and ``files/pNNNN/pSUBJECT/sSTUDY/STUDY.{hea,dat}``.

https://physionet.org/content/mimic-iv-ecg/1.0/. A recording is named by its ``study_id``, its patient by ``subject_id``.
Age, sex and diagnoses are in MIMIC-IV itself; labels made from it are given to fine-tuning as a table.
"""

from data_tools.sources.descriptions import Description
from data_tools.sources.id_table import parse_number
from data_tools.sources.wfdb_corpus import WfdbCorpus


class MimicIvEcg(WfdbCorpus):
    """The source ``mimic_iv_ecg``; see :class:`data_tools.sources.wfdb_corpus.WfdbCorpus`."""

    corpus = "MIMIC-IV-ECG 1.0"
    source = "mimic-iv-ecg"
    folder = "files"
    table = "record_list.csv"
    key = "study_id"
    columns = ("subject_id", "path")
    wanted = "MIMIC-IV-ECG's recordings"

    @staticmethod
    def _number(name: str) -> str:
        return name

    def _parse_row(self, row: dict[str, str]) -> Description:
        if not row["subject_id"]:
            return Description(problem=f"no patient: {self.table} names none for it")
        return Description(patient=parse_number(row["subject_id"]))
