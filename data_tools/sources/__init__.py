"""One file per corpus, whose class implements :class:`data_tools.sources.protocol.Source`, and a table of names."""

from data_tools.sources.physionet2021 import PhysioNet2021
from data_tools.sources.protocol import RecordingFile, Source

SOURCES: dict[str, type[Source]] = {"physionet2021": PhysioNet2021}

__all__ = ["SOURCES", "RecordingFile", "Source", "make_source"]


def make_source(name: str) -> Source:
    """Returns the source with a name in :data:`SOURCES`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in SOURCES:
        raise ValueError(f"unknown source '{name}'; sources are {', '.join(SOURCES)}")
    return SOURCES[name]()
