"""The interface of a source."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from data_tools.recording import Recording

# Inputs that a source rejects unless told to accept them: links out of the input, wrong checksums, unusual sampling rates, and
# short gaps of invalid samples, which are interpolated.
Acceptable = Literal["links", "checksums", "sampling-rates", "gaps"]


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A recording that has not been opened. There may be millions, and a Path takes four times the memory of a string.

    Attributes:
        location: path of its file; without suffix if it has several files, with ":row" if the file has several recordings.
        source: name of the corpus or of the database within it.
        name: name of the recording; normally unique within ``source``.
        size: size of its files in bytes.
        details: what the source knows about it from tables, in a format of its own.
    """

    location: str
    source: str
    name: str
    size: int
    details: str = ""

    @property
    def path(self) -> Path:
        """The location as a path."""
        return Path(self.location)


class Source(Protocol):
    """A corpus: finds recordings in folders and opens them one by one, in any process."""

    def __init__(self, inputs: Sequence[Path], accept: Collection[Acceptable] = ()) -> None:
        """Creates the source.

        Args:
            inputs: folders, or files if the corpus consists of files.
            accept: kinds of suspicious inputs to use all the same.
        """
        ...

    def find(self) -> Iterator[RecordingFile]:
        """Finds every recording once, including those that cannot be used.

        Returns:
            Recordings in an order that depends only on the inputs' order and on file names.

        Raises:
            ValueError: an input is missing or contains no recording (raised by the call), or a folder cannot be listed (raised
                while iterating).
        """
        ...

    def open(self, file: RecordingFile) -> Recording:
        """Opens a recording.

        Raises:
            RecordingError: it cannot be used.
        """
        ...
