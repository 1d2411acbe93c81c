"""Extracts the archives in which a corpus is published."""

import shutil
import zipfile
from pathlib import Path

from data_tools.download.http import DownloadError
from data_tools.files import atomic_write
from data_tools.remote.locations import is_safe_name


def extract_archive(path: Path, folder: Path) -> None:
    """Extracts the files of a zip archive that do not exist yet.

    Raises:
        DownloadError: it is not a valid archive, has a name that would leave the folder, or is larger than the free space.
        OSError: a file cannot be written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.is_dir():
                    continue
                out = folder / member.filename
                if not is_safe_name(member.filename) or not out.parent.resolve().is_relative_to(folder.resolve()):
                    raise DownloadError(f"{path}: contains {member.filename!r}, which is not a safe path")
                if out.exists() and out.stat().st_size == member.file_size:
                    continue
                free = shutil.disk_usage(folder).free
                if member.file_size > free:
                    raise DownloadError(
                        f"{path}: {member.filename} takes {member.file_size / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are "
                        "free; free some space and run the same command again"
                    )
                out.parent.mkdir(parents=True, exist_ok=True)
                # zipfile checks size and CRC.
                with archive.open(member) as source, atomic_write(out) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{path}: cannot be extracted ({error}); remove it and run the same command again") from None
