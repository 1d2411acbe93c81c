"""PTB-XL 1.0.3: ``ptbxl_database.csv`` and ``records500/NNNNN/NNNNN_hr.{hea,dat}``. https://physionet.org/content/ptb-xl/1.0.3/.

The labels are the statements of ``scp_codes``, whatever their likelihood. The folds of ``strat_fold`` become splits by
``ecg-data split --plan column --table ptbxl_database.csv --column strat_fold``, which finds recordings by their ``ecg_id``.
"""

import re
from pathlib import Path

from data_tools.labels.ptbxl import parse_statements
from data_tools.sources.descriptions import Description, parse_age
from data_tools.sources.id_table import IdTable, parse_number
from data_tools.sources.wfdb_corpus import WfdbCorpus

_NAME = re.compile(r"(\d{5})_hr")
_NUM_RECORDINGS = 21_799
_SEXES = {"0": "male", "1": "female"}
_OLDEST = "300"  # stands for all ages above 89


class PtbXl(WfdbCorpus):
    """The source ``ptbxl``; see :class:`data_tools.sources.wfdb_corpus.WfdbCorpus`."""

    corpus = "PTB-XL 1.0.3"
    source = "ptb-xl"
    folder = "records500"
    table = "ptbxl_database.csv"
    key = "ecg_id"
    columns = ("patient_id", "age", "sex", "scp_codes", "strat_fold")
    wanted = "PTB-XL's recordings at 500 Hz"

    def _read_table(self, folder: Path) -> IdTable:
        table = super()._read_table(folder)
        if len(table) > _NUM_RECORDINGS:
            raise ValueError(
                f"{folder}: {self.table} has {len(table)} rows, but {self.corpus} has {_NUM_RECORDINGS}, so it is of "
                f"another version; download {self.corpus}"
            )
        return table

    @staticmethod
    def _number(name: str) -> str:
        found = _NAME.fullmatch(name)
        return str(int(found[1])) if found else ""

    def _parse_row(self, row: dict[str, str]) -> Description:
        notes: list[str] = []
        if not row["patient_id"]:
            return Description(problem=f"no patient: {self.table} names none for it")
        statements = parse_statements(row["scp_codes"])
        if statements is None:
            notes.append(f"invalid scp_codes: '{row['scp_codes'][:40]}'")
        return Description(
            age=None if parse_number(row["age"]) == _OLDEST else parse_age(row["age"], notes),
            sex=_SEXES.get(parse_number(row["sex"])),
            labels=tuple(statements or ()),
            # The same name as in the plans of data_tools.splits.
            patient=f"patient {parse_number(row['patient_id'])}",
            notes=tuple(notes),
        )
