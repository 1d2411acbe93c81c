"""Finds files in folders at any depth."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from data_tools.sources.input_folders import InputFolders

MAX_DEPTH = 64

# Returns the name of the recording that a file belongs to; None if it belongs to none.
NameOf = Callable[["os.DirEntry[str]"], str | None]


def walk(
    folder: Path, folders: InputFolders, name_of: NameOf, seen: set[tuple[int, int]], depth: int = 0
) -> Iterator[tuple[Path, str, int]]:
    """Yields the recordings in a folder, at any depth and in the order of their paths, and the links that are not followed.

    Args:
        folder: the folder.
        folders: decides which links are followed.
        name_of: names the recording that a file belongs to.
        seen: device and inode of every listed folder; each is listed only once, so that links cannot form a cycle.
        depth: number of folders above this one.

    Yields:
        (folder, name, size of the files in bytes) of each recording.

    Raises:
        ValueError: a folder cannot be listed, or is too deep.
    """
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    if depth > MAX_DEPTH:
        raise ValueError(f"{folder}: more than {MAX_DEPTH} folders deep; move it up, or leave it out")
    sizes: dict[str, int] = {}
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                problem = folders.find_link_problem(Path(entry.path)) if entry.is_symlink() else None
                if problem is None and entry.is_dir():
                    inner.append(entry.name)
                elif (name := name_of(entry)) is not None:
                    has_size = problem is None and entry.is_file()
                    sizes[name] = sizes.get(name, 0) + (entry.stat().st_size if has_size else 0)
                elif problem and not Path(entry.path).is_file():
                    sizes[entry.name] = 0
    except OSError as error:
        raise ValueError(f"{folder}: cannot be listed ({error.strerror}); make it readable, or leave it out") from None
    # A recording comes before a folder of the same name, and a folder's contents before names that start with its name.
    for key in sorted([*sizes, *(f"{name}\0" for name in inner)]):
        if key.endswith("\0"):
            yield from walk(folder / key[:-1], folders, name_of, seen, depth + 1)
        else:
            yield folder, key, sizes[key]


def stem_of_suffix(*suffixes: str) -> NameOf:
    """Returns a function that names recordings of several files: the name of a file with one of the suffixes, without it."""

    def name_of(entry: "os.DirEntry[str]") -> str | None:
        name, suffix = os.path.splitext(entry.name)  # noqa: PTH122  (a Path for each entry is much slower)
        return name if suffix in suffixes else None

    return name_of


def name_with_suffix(*suffixes: str) -> NameOf:
    """Returns a function that names recordings of one file: the name of a file with one of the suffixes, in any case."""

    def name_of(entry: "os.DirEntry[str]") -> str | None:
        return entry.name if entry.name.lower().endswith(suffixes) else None

    return name_of
