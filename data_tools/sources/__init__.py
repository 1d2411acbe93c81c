"""One file per corpus, each turning its files into recordings.

A new corpus is a file here with a class of the shape of :class:`data_tools.sources.protocol.Source`, and a line in SOURCES.
"""

from data_tools.sources.physionet2021 import PhysioNet2021
from data_tools.sources.protocol import RecordingFile, Source

SOURCES: dict[str, type[Source]] = {"physionet2021": PhysioNet2021}

__all__ = ["SOURCES", "RecordingFile", "Source", "make_source"]


def make_source(name: str) -> Source:
    """The source of a name in :data:`SOURCES`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in SOURCES:
        raise ValueError(f"unknown source '{name}'; known are {', '.join(SOURCES)}")
    return SOURCES[name]()
