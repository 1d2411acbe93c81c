"""Checkpoints that are whole or not there.

    RUN/checkpoints/step-00000100/checkpoint.json     what it is: step, loader position, configuration, shapes, files
                                  deepspeed/*.pt      what DeepSpeed wrote: model, optimizer, one part a rank
    RUN/checkpoints/.partial-step-00000200/           being written when the run died; removed by the next one

A checkpoint is written beside its place, flushed to the disk, and renamed. ``checkpoint.json`` holds every file's size and
SHA-256, so that one that was damaged later is found out, and passed over for the one before.
"""

import hashlib
import json
import math
import os
import shutil
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from torch import nn

from data_tools.files import sync_folder, write_text
from engine.options import RankError, UserError
from engine.training.distributed import Ranks, has_lost_a_rank

FORMAT_VERSION = 1
_PARTIAL = ".partial-"
_TAG = "deepspeed"


@dataclass(frozen=True)
class FileDescription:
    """What a file of a checkpoint must be: its size in bytes and its SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CheckpointInfo:
    """The contents of ``checkpoint.json``."""

    format_version: int
    step: int
    loader: dict[str, Any]
    config: dict[str, Any]
    world_size: int
    zero_stage: int
    shapes: dict[str, list[int]]
    valid_loss: float | None = None
    best_valid_loss: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileDescription] = field(default_factory=dict)


_INFO: Final = TypeAdapter(CheckpointInfo)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are; made if need be.
        ranks: all ranks call every method together.
        keep_last: how many of the newest are kept.
        keep_best: whether the one with the lowest validation loss is kept as well.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, keep_last: int, keep_best: bool) -> None:
        self.folder = folder
        self._ranks = ranks
        self._keep_last = keep_last
        self._keep_best = keep_best

    def save(self, engine: Any, info: CheckpointInfo) -> Path:
        """Writes a checkpoint of the engine and takes away those that are no longer to be kept.

        Raises:
            UserError: if it could not be written, on a full disk for example; earlier checkpoints are untouched.
        """
        name = _name(info.step)
        partial = self.folder / f"{_PARTIAL}{name}"
        self._ranks.on_main_rank(lambda: self._prepare(partial))
        try:
            engine.save_checkpoint(str(partial), tag=_TAG, client_state={}, save_latest=False)
            self._ranks.barrier()
            files = self._hash_files(partial)
        except (OSError, RuntimeError) as error:
            if has_lost_a_rank(error):
                raise
            # torch.save reports a full disk as a RuntimeError of its zip writer.
            reason = str(error).splitlines()[0]
            raise RankError(
                f"{self.folder / name}: the checkpoint could not be written ({reason}): see that the disk has room, then "
                f"start again; the earlier checkpoints are whole"
            ) from error
        self._ranks.on_main_rank(lambda: self._publish(partial, replace(info, files=files)))
        return self.folder / name

    def newest(self) -> tuple[Path, CheckpointInfo] | None:
        """The newest whole checkpoint, checked byte by byte; damaged ones are passed over with a warning."""
        self._ranks.on_main_rank(self._remove_partial)
        names: list[str] = self._ranks.on_main_rank(lambda: sorted((p.name for p in self.folder.glob("step-*")), reverse=True))
        for name in names:
            path = self.folder / name
            try:
                return path, self.read(path)
            except UserError as error:
                if self._ranks.is_main:
                    warnings.warn(f"passed over: {error}", stacklevel=2)
        return None

    def last_step(self) -> int | None:
        """The step of the newest checkpoint, whole or not."""
        names: list[str] = self._ranks.on_main_rank(lambda: [path.name for path in self.folder.glob("step-*")])
        return max((int(name.removeprefix("step-")) for name in names), default=None)

    def read(self, path: Path) -> CheckpointInfo:
        """Reads ``checkpoint.json`` and checks every file it names; each rank takes its share of them.

        Raises:
            UserError: if the checkpoint is not whole; all ranks raise the same error.
        """
        info: CheckpointInfo = self._ranks.on_main_rank(lambda: _read_info(path))
        problem = None
        for number, (name, expected) in enumerate(sorted(info.files.items())):
            if number % self._ranks.world_size == self._ranks.rank and problem is None:
                problem = _compare(path / name, expected)
        problems = [text for text in self._ranks.gather(problem) if text]
        if problems:
            raise UserError(f"{path}: the checkpoint is damaged: {problems[0]}")
        return info

    def load(self, engine: Any, path: Path) -> None:
        """Loads model and optimizer into the engine; :func:`check_fits` comes first."""
        loaded, _ = engine.load_checkpoint(str(path), tag=_TAG)
        assert loaded is not None, path

    def _prepare(self, partial: Path) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{partial}: cannot be made: {error.strerror}") from None

    def _hash_files(self, partial: Path) -> dict[str, FileDescription]:
        """Sizes and hashes of all files, each computed and flushed to disk by one rank."""
        # One rank lists them: on a network file system another machine may not see every new file yet.
        names: list[str] = self._ranks.on_main_rank(
            lambda: sorted(str(p.relative_to(partial)) for p in partial.rglob("*") if p.is_file())
        )
        mine = names[self._ranks.rank :: self._ranks.world_size]
        parts = self._ranks.gather({name: _describe(partial / name, flush=True) for name in mine})
        return {name: described for part in parts for name, described in part.items()}

    def _publish(self, partial: Path, info: CheckpointInfo) -> None:
        target = self.folder / _name(info.step)
        write_text(partial / "checkpoint.json", json.dumps(asdict(info), indent=1))
        sync_folder(partial)
        if target.exists():
            # The same step again, after a resume from before it.
            shutil.rmtree(target)
        partial.rename(target)
        sync_folder(self.folder)
        self._prune(target)

    def _prune(self, newest: Path) -> None:
        infos: dict[Path, CheckpointInfo] = {}
        for path in sorted(self.folder.glob("step-*")):
            if path.name > newest.name:
                continue  # a damaged one that was passed over: must not push out the whole ones before it
            try:
                infos[path] = _read_info(path)
            except UserError:
                continue  # damaged: not ours to remove, and not counted among those to keep
        keep = set(list(infos)[-self._keep_last :])
        if self._keep_best:
            scored = [
                (info.valid_loss, path)
                for path, info in infos.items()
                if info.valid_loss is not None and math.isfinite(info.valid_loss)
            ]
            keep |= {min(scored)[1]} if scored else set()
        for path in infos.keys() - keep:
            # Renamed first: half a removed checkpoint must not look like a whole one that was damaged.
            doomed = self.folder / f"{_PARTIAL}{path.name}"
            path.rename(doomed)
            shutil.rmtree(doomed)

    def _remove_partial(self) -> None:
        for path in self.folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path)


def read_checkpoint(path: Path) -> CheckpointInfo:
    """Reads ``checkpoint.json`` and checks every file it names, without other ranks.

    Raises:
        UserError: if the checkpoint is not whole.
    """
    info = _read_info(path)
    for name, expected in sorted(info.files.items()):
        problem = _compare(path / name, expected)
        if problem is not None:
            raise UserError(f"{path}: the checkpoint is damaged: {problem}")
    return info


def weights_folder(path: Path) -> Path:
    """Where in a checkpoint DeepSpeed's files are."""
    return path / _TAG


def check_fits(path: Path, info: CheckpointInfo, model: nn.Module, world_size: int, zero_stage: int) -> None:
    """Compares a checkpoint with the model and the ranks that are to go on from it.

    Raises:
        UserError: one line that says which shapes, ranks or ZeRO stages differ.
    """
    shapes = parameter_shapes(model)
    differing = [name for name in info.shapes.keys() | shapes.keys() if info.shapes.get(name) != shapes.get(name)]
    if differing:
        name = min(differing)
        raise UserError(
            f"{path}: holds another model: {name} is {info.shapes.get(name, 'absent')} there and "
            f"{shapes.get(name, 'absent')} in this configuration ({len(differing)} parameters differ): "
            f"give the 'model' and 'objective' it was trained with, or another output_dir"
        )
    # With ZeRO, each rank's file holds that rank's part; without, one file holds all and any number of ranks can read it.
    if (info.zero_stage, zero_stage) != (0, 0) and (info.zero_stage, info.world_size) != (zero_stage, world_size):
        raise UserError(
            f"{path}: was written by {info.world_size} ranks with zero.stage={info.zero_stage}, and this run has "
            f"{world_size} with zero.stage={zero_stage}: start it with the same"
        )


def parameter_shapes(model: nn.Module) -> dict[str, list[int]]:
    """The shape of every parameter by name, before DeepSpeed partitions them."""
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _read_info(path: Path) -> CheckpointInfo:
    file = path / "checkpoint.json"
    try:
        content = json.loads(file.read_text())
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}): give the folder of a whole checkpoint") from None
    except ValueError as error:
        raise UserError(f"{file}: is damaged: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: is damaged: it holds no mapping")
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise UserError(
            f"{file}: has format version {version}, this engine reads {FORMAT_VERSION}: take the engine that wrote it"
        )
    try:
        return _INFO.validate_python(content)
    except ValidationError as error:
        mistake = error.errors()[0]
        raise UserError(f"{file}: is damaged: {'.'.join(map(str, mistake['loc']))}: {mistake['msg']}") from None


def _describe(path: Path, *, flush: bool = False) -> FileDescription:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if flush:
            os.fsync(file.fileno())
    return FileDescription(path.stat().st_size, digest)


def _compare(path: Path, expected: FileDescription) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != expected.size:
        return f"{path.name} has {path.stat().st_size} bytes instead of {expected.size}"
    if _describe(path) != expected:
        return f"{path.name} has changed since it was written"
    return None
