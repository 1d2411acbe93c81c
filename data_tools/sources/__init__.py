"""One file per corpus, whose class implements :class:`data_tools.sources.protocol.Source`, and a table of names."""

from collections.abc import Collection, Sequence
from pathlib import Path

from data_tools.sources.code15 import Code15
from data_tools.sources.dicom import Dicom
from data_tools.sources.edf import Edf
from data_tools.sources.hdf5 import Hdf5
from data_tools.sources.mimic_iv_ecg import MimicIvEcg
from data_tools.sources.muse_xml import MuseXml
from data_tools.sources.numpy_files import NumPy
from data_tools.sources.physionet2021 import PhysioNet2021
from data_tools.sources.protocol import Acceptable, RecordingFile, Source
from data_tools.sources.ptbxl import PtbXl
from data_tools.sources.sami_trop import SamiTrop
from data_tools.sources.wfdb import Wfdb

SOURCES: dict[str, type[Source]] = {
    "physionet2021": PhysioNet2021,
    "ptbxl": PtbXl,
    "mimic_iv_ecg": MimicIvEcg,
    "code15": Code15,
    "sami_trop": SamiTrop,
    "wfdb": Wfdb,
    "hdf5": Hdf5,
    "numpy": NumPy,
    "muse_xml": MuseXml,
    "dicom": Dicom,
    "edf": Edf,
}

__all__ = ["SOURCES", "Acceptable", "RecordingFile", "Source", "make_source"]


def make_source(name: str, inputs: Sequence[Path], accept: Collection[Acceptable] = ()) -> Source:
    """Returns the source with a name in :data:`SOURCES`; see :class:`data_tools.sources.protocol.Source`.

    Raises:
        ValueError: the name is unknown.
    """
    check_source(name)
    return SOURCES[name](inputs, accept)


def check_source(name: str) -> None:
    """Checks the name of a source.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in SOURCES:
        raise ValueError(f"unknown source '{name}'; sources are {', '.join(SOURCES)}")
