"""One file per corpus or format, whose class implements :class:`data_tools.sources.protocol.Source`, and a table of names."""

from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path

from data_tools.sources.protocol import Acceptable, RecordingFile, Source
from data_tools.validation import suggest

# Module and class of each source. Modules are imported only when needed, so that the command line starts quickly.
SOURCES: dict[str, tuple[str, str]] = {
    "physionet2021": ("physionet2021", "PhysioNet2021"),
    "ptbxl": ("ptbxl", "PtbXl"),
    "mimic_iv_ecg": ("mimic_iv_ecg", "MimicIvEcg"),
    "code15": ("code15", "Code15"),
    "sami_trop": ("sami_trop", "SamiTrop"),
    "wfdb": ("wfdb", "Wfdb"),
    "hdf5": ("hdf5", "Hdf5"),
    "numpy": ("numpy_files", "NumPy"),
    "muse_xml": ("muse_xml", "MuseXml"),
    "dicom": ("dicom", "Dicom"),
    "edf": ("edf", "Edf"),
}

__all__ = ["SOURCES", "Acceptable", "RecordingFile", "Source", "make_source"]


def make_source(name: str, inputs: Sequence[Path], accept: Collection[Acceptable] = ()) -> Source:
    """Returns the source with a name in :data:`SOURCES`; see :class:`data_tools.sources.protocol.Source`.

    Raises:
        ValueError: the name is unknown.
    """
    check_source(name)
    module, class_name = SOURCES[name]
    source: type[Source] = getattr(import_module(f"{__name__}.{module}"), class_name)
    return source(inputs, accept)


def check_source(name: str) -> None:
    """Checks the name of a source.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in SOURCES:
        raise ValueError(f"unknown source '{name}'{suggest(name, SOURCES)}")
