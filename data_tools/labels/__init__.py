"""Labels of recordings: the classes, and the label of each crop of a dataset.

definition.py  LabelDefinition, which travels with a model; Labels, the values; Labeler, where they come from
codes.py       labels from the codes in a dataset
cinc2021.py    the 26 classes of the CinC Challenge 2021
ptbxl.py       the statements of PTB-XL: all, diagnostic, subdiagnostic, superdiagnostic, form, rhythm
tables.py      labels from a user's CSV or Parquet table
"""

from data_tools.labels.cinc2021 import cinc2021
from data_tools.labels.codes import CodeLabeler
from data_tools.labels.definition import Kind, LabelDefinition, Labeler, LabelError, Labels, label_split
from data_tools.labels.ptbxl import PTBXL_LEVELS, ptbxl, read_ptbxl_database
from data_tools.labels.tables import LabelTable, read_label_table

__all__ = [
    "PTBXL_LEVELS",
    "CodeLabeler",
    "Kind",
    "LabelDefinition",
    "LabelError",
    "LabelTable",
    "Labeler",
    "Labels",
    "cinc2021",
    "label_split",
    "ptbxl",
    "read_label_table",
    "read_ptbxl_database",
]
