"""What a source is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from data_tools.recording import Recording


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A recording found but not yet opened. There may be millions, so it is small: a Path would take four times the memory.

    Attributes:
        location: its file, without the extension where a recording is several files.
        source: name of the corpus or of the database within it.
        name: of the recording; unique within ``source`` in a sound corpus.
        size: of its files, in bytes.
    """

    location: str
    source: str
    name: str
    size: int

    @property
    def path(self) -> Path:
        """The location as a path."""
        return Path(self.location)


class Source(Protocol):
    """A corpus: finds recordings in folders and opens them one by one, in any process."""

    def find(self, inputs: Sequence[Path]) -> Iterator[RecordingFile]:
        """Finds every recording once, those included that will turn out to be broken.

        Args:
            inputs: folders (or files, where the corpus comes in files).

        Returns:
            In an order that depends on the inputs' order and the names in them alone.

        Raises:
            ValueError: an input that is missing or holds no recording, at once; a folder that cannot be listed, on the way.
        """
        ...

    def open(self, file: RecordingFile) -> Recording:
        """Opens a recording.

        Raises:
            RecordingError: it cannot be used.
        """
        ...
