"""Models on the Hugging Face Hub: the three files of a model's folder, in a repository of the Hub.

Only these files are downloaded, after a check of their sizes in the same commit, and none is code.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from data_tools.files import write_text
from data_tools.validation import first_line
from engine.models.model_card import CARD_FILE
from engine.models.model_config import CONFIG_FILE
from engine.options import UserError

WEIGHTS_FILE = "model.safetensors"
MAX_BYTES = {WEIGHTS_FILE: 8 << 30, CONFIG_FILE: 1 << 20, CARD_FILE: 1 << 20}
"""File of a model's folder -> its largest size on the Hub."""

_TIMEOUT_SECONDS = 10.0  # for the first answer of the Hub
_MAIN_BRANCH = "main"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_repository(name: object) -> bool:
    """Returns whether a string has the form OWNER/NAME and is not an existing path."""
    return isinstance(name, str) and _REPOSITORY.fullmatch(name) is not None and not Path(name).exists()


def download(repository: str, revision: str | None = None) -> Path:
    """Downloads a model into the cache of huggingface_hub, or finds it there if the Hub cannot be reached.

    Args:
        repository: OWNER/NAME.
        revision: branch, tag or commit; None: the main branch.

    Returns:
        The model's folder, which must not be changed.

    Raises:
        UserError: huggingface_hub is not installed, the repository contains no model or a file that is too large, or the Hub
            cannot be reached and the cache does not have the model.
    """
    errors, api = _open_hub(f"{repository}: no such folder; to load it from the Hugging Face Hub")
    problem = commit = None
    try:
        info = api.model_info(repository, revision=revision, files_metadata=True, timeout=_TIMEOUT_SECONDS)
        _check_files(repository, {file.rfilename: file.size for file in info.siblings})
        commit = info.sha
    except errors.RevisionNotFoundError:
        raise UserError(f"{repository}: has no revision '{revision}' on the Hugging Face Hub") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{repository}: neither a folder nor a model on the Hugging Face Hub that you can read; check the name, or log in "
            f"with `hf auth login`"
        ) from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
        problem = first_line(error)
    try:
        # A branch could have moved since the check, so the commit is downloaded.
        folder = Path(
            api.snapshot_download(
                repository, revision=commit or revision, allow_patterns=list(MAX_BYTES), local_files_only=commit is None
            )
        )
    except errors.LocalEntryNotFoundError:
        raise UserError(f"{repository}: no such folder, and the Hugging Face Hub cannot be reached ({problem})") from None
    except (OSError, errors.HTTPError, errors.XetDownloadError) as error:
        raise UserError(f"{repository}: cannot be downloaded ({first_line(error)})") from None
    if commit is not None:
        _record_commit(folder, revision or _MAIN_BRANCH, commit)
    return folder


def _record_commit(folder: Path, revision: str, commit: str) -> None:
    """Records in the cache which commit a branch or tag is, so that the model is found there without the Hub.

    huggingface_hub does so only if it downloads the branch itself. The layout of its cache is documented:
    https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
    """
    if revision == commit:
        return
    reference = folder.parents[1] / "refs" / revision
    with suppress(OSError):  # a cache that cannot be written to is still good to read
        reference.parent.mkdir(parents=True, exist_ok=True)
        write_text(reference, commit)


def upload(folder: Path, repository: str, *, private: bool) -> str:
    """Uploads a model's folder in one commit; returns the address of the repository.

    Args:
        folder: the model's folder.
        repository: OWNER/NAME; is created if it does not exist.
        private: whether a new repository can be read only by its owner.

    Raises:
        UserError: huggingface_hub is not installed, the name is invalid, or the Hub refuses the upload.
    """
    errors, api = _open_hub(f"{repository}: to upload a model to the Hugging Face Hub")
    if not _REPOSITORY.fullmatch(repository):
        raise UserError(f"'{repository}': expected OWNER/NAME")
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=list(MAX_BYTES), commit_message="Upload an ECG model"
        )
    except (OSError, ValueError, errors.HTTPError, errors.XetDownloadError) as error:
        raise UserError(
            f"{repository}: cannot be uploaded ({first_line(error)}); check that you are logged in (`hf auth login`)"
        ) from None
    return str(address)


def _open_hub(purpose: str) -> tuple[Any, Any]:
    """Returns the module of errors of huggingface_hub, and its client.

    Raises:
        UserError: it is not installed.
    """
    try:
        from huggingface_hub import HfApi, errors
    except ImportError:
        raise UserError(f"{purpose}: pip install 'ecg-engine[hub]'") from None
    return errors, HfApi(library_name="ecg-engine")


def _check_files(repository: str, sizes: dict[str, int | None]) -> None:
    """Checks that a repository has the files of a model, and that they are not too large.

    Raises:
        UserError: a file is missing or too large.
    """
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in sizes]
    if missing:
        raise UserError(
            f"{repository}: has no {' and no '.join(missing)} on the Hugging Face Hub, so it contains no ecg-engine model"
        )
    for name, limit in MAX_BYTES.items():
        size = sizes.get(name, 0)
        if size is None or size > limit:
            raise UserError(f"{repository}: {name} has {size} bytes on the Hugging Face Hub; at most {limit} are downloaded")
