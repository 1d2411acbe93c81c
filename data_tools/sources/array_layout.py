"""The layout of recordings in the arrays of HDF5 or NumPy files: the file that the sources ``hdf5`` and ``numpy`` take.

It is YAML or JSON. CODE-15's layout is::

    files: exams_part*.hdf5                 # relative to the folder of this file
    signals: tracings                       # array of the signals
    axes: [recording, sample, lead]         # its axes; without "recording", a file has one recording
    leads: [I, II, III, aVR, aVL, aVF, V1, V2, V3, V4, V5, V6]
    sampling_rate: 400                      # Hz
    unit: mV
    names: exam_id                          # array of the recordings' names
    table: {file: exams.csv, name: exam_id, patient: patient_id, age: age}
"""

from pathlib import Path, PurePosixPath
from typing import Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from data_tools.leads import canonical_lead
from data_tools.options import Options
from data_tools.recording import RecordingError
from data_tools.sources.channels import units_per_millivolt
from data_tools.sources.folder_source import read_file
from data_tools.sources.input_folders import InputFolders
from data_tools.validation import describe_validation_error, one_line

_MAX_BYTES = 1 << 20


class Table(Options):
    """A CSV file with a row per recording, which identifies the patients."""

    file: str
    """Path, relative to the folder of the layout."""
    name: str | None = None
    """Column with the names of the recordings; null: the rows are in the order of the recordings."""
    file_name: str | None = None
    """Column with the name of the file that contains the recording."""
    patient: str | None = None
    """Column with the patient identifiers."""
    age: str | None = None
    """Column with the ages, in years."""
    sex: str | None = None
    """Column with the sexes: female, male, or the keys of ``sex_values``."""
    sex_values: dict[str, Literal["female", "male"]] = Field(default_factory=dict)
    """Meaning of other values in the column ``sex``."""
    labels: tuple[str, ...] = ()
    """Label columns: a recording has the label if its value is 1 or true."""

    @field_validator("file")
    @classmethod
    def _check_file(cls, file: str) -> str:
        return _check_relative(file)


class ArrayLayout(Options):
    """The layout of an input; an example is at the top of this module."""

    files: str
    """Paths of the files, relative to the folder of the layout; ``*`` and ``**`` as in a shell."""
    signals: str = ""
    """Name of the array with the signals; empty for .npy files."""
    axes: tuple[Literal["recording", "sample", "lead"], ...] = ("recording", "sample", "lead")
    """Axes of this array, in order; without "recording", a file contains one recording."""
    leads: tuple[str, ...]
    """Lead names, in the order of the lead axis; channels with unknown names are left out."""
    sampling_rate: float = Field(gt=0)
    """Sampling rate in Hz."""
    unit: str = "mV"
    """Unit of voltage."""
    gain: float = Field(default=1.0, gt=0)
    """Stored values per unit."""
    names: str | None = None
    """Name of the array with the names of the recordings; null: the file name and a number."""
    patients: str | None = None
    """Name of the array with the patient identifiers."""
    source: str | None = Field(default=None, min_length=1)
    """Name of the corpus; null: the name of the layout's file."""
    table: Table | None = None
    """Table with the patients and other metadata of the recordings."""

    @field_validator("files")
    @classmethod
    def _check_files(cls, files: str) -> str:
        return _check_relative(files)

    @field_validator("unit")
    @classmethod
    def _check_unit(cls, unit: str) -> str:
        if units_per_millivolt(unit) is None:
            raise ValueError(f"must be a unit of voltage such as mV or uV, got '{unit}'")
        return unit

    @model_validator(mode="after")
    def _check_axes(self) -> "ArrayLayout":
        if sorted(self.axes) not in (["lead", "recording", "sample"], ["lead", "sample"]):
            raise ValueError(
                "axes must list sample, lead and optionally recording, each once, in the order of the array; got "
                f"{', '.join(self.axes)}"
            )
        if not any(canonical_lead(lead) for lead in self.leads):
            raise ValueError(f"leads must contain a known lead, got {', '.join(self.leads)}")
        return self


def _check_relative(path: str) -> str:
    parts = PurePosixPath(path)
    if not path or "\0" in path or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"must be a path within the folder of the layout, got '{path}'")
    return path


def read_layout(path: Path, folders: InputFolders) -> ArrayLayout:
    """Reads a layout.

    Raises:
        ValueError: it cannot be read, or is invalid.
    """
    try:
        values = yaml.safe_load(read_file(path, folders, _MAX_BYTES))
    except (RecordingError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read ({one_line(error)[:200]}); expected the layout of the arrays as YAML"
        ) from None
    try:
        return ArrayLayout.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{path}: {describe_validation_error(error)}") from None
