"""The statements of PTB-XL, grouped as in the corpus's scp_statements.csv.

https://physionet.org/content/ptb-xl/1.0.3/. The six levels are those of the benchmark of Strodthoff et al. 2021, "Deep Learning
for ECG Analysis: Benchmarks and Insights from PTB-XL".
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from data_tools.labels.codes import encode_codes
from data_tools.labels.definition import LabelDefinition, LabelError
from data_tools.labels.tables import LabelTable, ecg_ids, read_columns

# Superclass -> subclass -> diagnostic statements.
_DIAGNOSTIC: Final[dict[str, dict[str, str]]] = {
    "NORM": {"NORM": "NORM"},
    "MI": {
        "AMI": "AMI ASMI ALMI INJAS INJAL INJLA",
        "IMI": "IMI ILMI IPMI IPLMI INJIN INJIL",
        "LMI": "LMI",
        "PMI": "PMI",
    },
    "STTC": {
        "STTC": "NDT DIG LNGQT ANEUR EL",
        "NST_": "NST_",
        "ISC_": "ISC_",
        "ISCA": "ISCAL ISCAS ISCLA ISCAN",
        "ISCI": "ISCIN ISCIL",
    },
    "CD": {
        "LAFB/LPFB": "LAFB LPFB",
        "IRBBB": "IRBBB",
        "ILBBB": "ILBBB",
        "CLBBB": "CLBBB",
        "CRBBB": "CRBBB",
        "_AVB": "1AVB 2AVB 3AVB",
        "IVCD": "IVCD",
        "WPW": "WPW",
    },
    "HYP": {"LVH": "LVH", "RVH": "RVH", "LAO/LAE": "LAO/LAE", "RAO/RAE": "RAO/RAE", "SEHYP": "SEHYP"},
}
# The first four are diagnostic too.
_FORM: Final = (
    "NDT NST_ DIG LNGQT ABQRS PVC STD_ VCLVH QWAVE LOWT NT_ PAC LPR INVT LVOLT HVOLT TAB_ STE_ PRC(S)".split()  # noqa: SIM905
)
_RHYTHM: Final = "SR AFIB STACH SARRH SBRAD PACE SVARR BIGU AFLT SVTAC PSVT TRIGU".split()  # noqa: SIM905

PTBXL_LEVELS: Final = ("all", "diagnostic", "subdiagnostic", "superdiagnostic", "form", "rhythm")


def _groups(level: str) -> Mapping[str, list[str]]:
    """Returns the statements of each class of a level."""
    subclasses = {name: codes.split() for group in _DIAGNOSTIC.values() for name, codes in group.items()}
    diagnostic = [code for codes in subclasses.values() for code in codes]
    match level:
        case "subdiagnostic":
            return subclasses
        case "superdiagnostic":
            return {name: " ".join(group.values()).split() for name, group in _DIAGNOSTIC.items()}
        case _:
            codes = {"all": {*diagnostic, *_FORM, *_RHYTHM}, "diagnostic": diagnostic, "form": _FORM, "rhythm": _RHYTHM}
            return {code: [code] for code in codes[level]}


def ptbxl(level: str) -> LabelDefinition:
    """Returns the definition of a level's classes, multilabel, in alphabetical order.

    Args:
        level: "all" (71 statements), "diagnostic" (44), "subdiagnostic" (23 groups of these), "superdiagnostic" (5),
            "form" (19) or "rhythm" (12).

    Raises:
        LabelError: an unknown level.
    """
    if level not in PTBXL_LEVELS:
        raise LabelError(f"unknown level '{level}' of PTB-XL; known: {', '.join(PTBXL_LEVELS)}")
    groups = _groups(level)
    names = tuple(sorted(groups))
    codes = tuple(tuple(groups[name]) for name in names)
    return LabelDefinition(name=f"ptbxl-{level}", kind="multilabel", classes=names, codes=codes)


def read_ptbxl_database(path: Path | str, level: str, min_likelihood: float = 0.0) -> LabelTable:
    """Reads the labels of ptbxl_database.csv, keyed by ecg_id, which is part of the recordings' names.

    By default a statement counts whatever its likelihood (0 means unknown), as in the benchmark. A recording without a
    statement of the level has no label; the benchmark leaves it out too.

    Args:
        path: path of ptbxl_database.csv.
        level: see :func:`ptbxl`.
        min_likelihood: lowest likelihood, in percent, of the statements that count.

    Raises:
        LabelError: an unknown level, or a file that is not PTB-XL's.
    """
    definition = ptbxl(level)
    table = read_columns(Path(path), ["ecg_id", "scp_codes"], text=["scp_codes"])
    known = {code for codes in _groups("all").values() for code in codes}
    statements: list[list[str]] = []
    for ecg_id, text in zip(table["ecg_id"].to_pylist(), table["scp_codes"].to_pylist(), strict=True):
        likelihoods = parse_statements(text)
        if likelihoods is None:
            raise LabelError(
                f"{path}: ecg_id {ecg_id}: invalid scp_codes '{str(text)[:60]}'; expected a dictionary "
                "such as {'NORM': 100.0}"
            )
        if unknown := sorted(likelihoods.keys() - known):
            raise LabelError(f"{path}: ecg_id {ecg_id}: unknown statement '{unknown[0]}'; PTB-XL 1.0.3 has 71 statements")
        statements.append([code for code, likelihood in likelihoods.items() if likelihood >= min_likelihood])
    labels = encode_codes(definition, pa.array(statements, pa.list_(pa.string())))
    labels.is_labeled[:] = np.asarray(labels.values).any(1)
    return LabelTable(str(path), "ecg_id", table["ecg_id"].cast(pa.string()).combine_chunks(), labels, ecg_ids)


def parse_statements(text: object) -> dict[str, float] | None:
    """Returns the likelihoods, in percent, of a cell of ``scp_codes``, such as ``{'NORM': 100.0}``; None if it is invalid."""
    try:
        value = ast.literal_eval(str(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(value, dict) or not all(isinstance(code, str) for code in value):
        return None
    return value if all(isinstance(likelihood, float | int) for likelihood in value.values()) else None
