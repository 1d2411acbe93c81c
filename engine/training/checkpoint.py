"""Checkpoints, written atomically.

    RUN/checkpoints/step-00000100/checkpoint.json     step, loader position, configuration, shapes, files
                                  deepspeed/*.pt      DeepSpeed's files: model and optimizer, one part per rank
    RUN/checkpoints/.partial-step-00000200/           an unfinished checkpoint of a run that died; the next run removes it

A checkpoint is written to a temporary folder, flushed to disk, and renamed. ``checkpoint.json`` records the size and SHA-256 of
every file, so that a checkpoint that was damaged later is detected, and the one before it is used.
"""

import hashlib
import json
import math
import os
import shutil
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError
from torch import nn

from data_tools.files import sync_folder, write_text
from data_tools.validation import describe_validation_error
from engine.config import RunConfig
from engine.options import RankError, UserError
from engine.training.deepspeed_backend import DeepSpeedBackend, parameter_shapes
from engine.training.distributed import Ranks, is_peer_failure

FORMAT_VERSION = 2
_PARTIAL = ".partial-"
# Version 1 knew no score but the validation loss.
_RENAMED_SINCE_1 = {"valid_loss": "score", "best_valid_loss": "best_score"}


@dataclass(frozen=True)
class FileDescription:
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CheckpointInfo:
    """The contents of ``checkpoint.json``.

    Attributes:
        format_version: :data:`FORMAT_VERSION`.
        step: number of finished steps.
        loader: state of the training loader.
        config: the run's resolved configuration.
        world_size: number of ranks that wrote the checkpoint.
        zero_stage: ZeRO stage.
        shapes: shape of every parameter by name.
        score: validation score at this step, if it was computed.
        best_score: best validation score of the run so far.
        versions: versions of the packages that wrote the checkpoint.
        files: relative path -> description of every other file.
    """

    format_version: int
    step: int
    loader: dict[str, Any]
    config: dict[str, Any]
    world_size: int
    zero_stage: int
    shapes: dict[str, list[int]]
    score: float | None = None
    best_score: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, FileDescription] = field(default_factory=dict)


_INFO: Final = TypeAdapter(CheckpointInfo)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the checkpoints' folder; created if necessary.
        ranks: all ranks call every method together.
        keep_last: number of latest checkpoints to keep.
        keep_best: whether the best validation score to keep is the lowest ("min") or the highest ("max"); ``None``: the best
            checkpoint is not kept.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, keep_last: int, keep_best: Literal["min", "max"] | None) -> None:
        self.folder = folder
        self._ranks = ranks
        self._keep_last = keep_last
        self._keep_best = keep_best

    def path(self, step: int) -> Path:
        """Returns the folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def save(self, backend: DeepSpeedBackend, info: CheckpointInfo) -> Path:
        """Writes a checkpoint and removes those that are no longer kept.

        Raises:
            UserError: it could not be written, for example because the disk is full; earlier checkpoints are untouched.
        """
        target = self.path(info.step)
        partial = self.folder / f"{_PARTIAL}{target.name}"
        self._ranks.on_main_rank(lambda: self._prepare(partial))
        try:
            backend.save(partial)
            self._ranks.barrier()
            files = self._hash_files(partial)
        except (OSError, RuntimeError) as error:
            if is_peer_failure(error):
                raise
            # torch.save reports a full disk as a RuntimeError of its zip writer.
            reason = str(error).splitlines()[0]
            raise RankError(
                f"{target}: could not write the checkpoint ({reason}); earlier checkpoints are intact: free some "
                f"disk space and run again"
            ) from error
        self._ranks.on_main_rank(lambda: self._publish(partial, replace(info, files=files)))
        return target

    def newest(self) -> tuple[Path, CheckpointInfo] | None:
        """Returns the newest intact checkpoint, verified byte by byte; skips damaged ones with a warning."""
        self._ranks.on_main_rank(self._remove_partial)
        names: list[str] = self._ranks.on_main_rank(lambda: sorted((p.name for p in self.folder.glob("step-*")), reverse=True))
        for name in names:
            path = self.folder / name
            try:
                return path, self.read(path)
            except UserError as error:
                if self._ranks.is_main:
                    warnings.warn(f"skipped: {error}", stacklevel=2)
        return None

    def last_step(self) -> int | None:
        """Returns the step of the newest checkpoint, damaged or not."""
        names: list[str] = self._ranks.on_main_rank(lambda: [path.name for path in self.folder.glob("step-*")])
        return max((int(name.removeprefix("step-")) for name in names), default=None)

    def read(self, path: Path) -> CheckpointInfo:
        """Reads ``checkpoint.json`` and verifies every file it lists; the ranks share the files.

        Raises:
            UserError: the checkpoint is damaged; all ranks raise the same error.
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

    def _prepare(self, partial: Path) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{partial}: cannot be created: {error.strerror}") from None

    def _hash_files(self, partial: Path) -> dict[str, FileDescription]:
        """Returns sizes and hashes of all files, each computed and flushed to disk by one rank."""
        # One rank lists the files: on a network file system another machine may not see every new file yet.
        names: list[str] = self._ranks.on_main_rank(
            lambda: sorted(str(p.relative_to(partial)) for p in partial.rglob("*") if p.is_file())
        )
        mine = names[self._ranks.rank :: self._ranks.world_size]
        parts = self._ranks.gather({name: _describe(partial / name, flush=True) for name in mine})
        return {name: described for part in parts for name, described in part.items()}

    def _publish(self, partial: Path, info: CheckpointInfo) -> None:
        target = self.path(info.step)
        write_text(partial / "checkpoint.json", json.dumps(asdict(info), indent=1))
        sync_folder(partial)
        if target.exists():
            # The run resumed before this step and has reached it again.
            shutil.rmtree(target)
        partial.rename(target)
        sync_folder(self.folder)
        self._prune(target)

    def _prune(self, newest: Path) -> None:
        infos: dict[Path, CheckpointInfo] = {}
        for path in sorted(self.folder.glob("step-*")):
            if path.name > newest.name:
                continue  # damaged and skipped by newest(): must not displace the intact ones before it
            try:
                infos[path] = _read_info(path)
            except UserError:
                continue  # damaged: neither removed nor counted
        keep = set(list(infos)[-self._keep_last :])
        if self._keep_best is not None:
            scored = [
                (info.score, path) for path, info in infos.items() if info.score is not None and math.isfinite(info.score)
            ]
            choose = min if self._keep_best == "min" else max
            keep |= {choose(scored)[1]} if scored else set()
        for path in infos.keys() - keep:
            # Renamed first: a half-removed checkpoint must not look like a damaged one.
            doomed = self.folder / f"{_PARTIAL}{path.name}"
            path.rename(doomed)
            shutil.rmtree(doomed)

    def _remove_partial(self) -> None:
        for path in self.folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path)


def read_checkpoint(path: Path) -> CheckpointInfo:
    """Reads ``checkpoint.json`` and verifies every file it lists, without other ranks.

    Raises:
        UserError: the checkpoint is damaged.
    """
    info = _read_info(path)
    for name, expected in sorted(info.files.items()):
        problem = _compare(path / name, expected)
        if problem is not None:
            raise UserError(f"{path}: the checkpoint is damaged: {problem}")
    return info


def check_matches(path: Path, info: CheckpointInfo, model: nn.Module, config: RunConfig, world_size: int) -> None:
    """Compares a checkpoint with the model and the ranks that will resume from it.

    Raises:
        UserError: one line that says which shapes, parameter groups, ranks or ZeRO stages differ.
    """
    shapes = parameter_shapes(model)
    differing = [name for name in info.shapes.keys() | shapes.keys() if info.shapes.get(name) != shapes.get(name)]
    if differing:
        name = min(differing)
        raise UserError(
            f"{path}: belongs to another model: {name} is {info.shapes.get(name, 'absent')} there and "
            f"{shapes.get(name, 'absent')} in this configuration ({len(differing)} parameters differ): use the 'model' and "
            f"'objective' it was trained with, or another output_dir"
        )
    patterns = [group["match"] for group in info.config["optimizer"].get("groups", [])]
    if patterns != [group.match for group in config.optimizer.groups]:
        raise UserError(
            f"{path}: was written with other parameter groups ({', '.join(patterns) or 'none'}): use the same "
            f"'match' patterns in optimizer.groups, or another output_dir"
        )
    # With ZeRO, each rank's file holds that rank's part; without, one file holds everything, for any number of ranks.
    stage = config.zero.stage
    if (info.zero_stage, stage) != (0, 0) and (info.zero_stage, info.world_size) != (stage, world_size):
        raise UserError(
            f"{path}: was written by {info.world_size} ranks with zero.stage={info.zero_stage}, but this run has {world_size} "
            f"with zero.stage={stage}: use the same"
        )


def _read_info(path: Path) -> CheckpointInfo:
    file = path / "checkpoint.json"
    try:
        content = json.loads(file.read_text())
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}): give the folder of a complete checkpoint") from None
    except ValueError as error:
        raise UserError(f"{file}: is damaged: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: is damaged: expected a mapping")
    version = content.get("format_version")
    if version not in {1, FORMAT_VERSION}:
        raise UserError(
            f"{file}: has format version {version}, but this release reads versions 1 to {FORMAT_VERSION}: use the release "
            f"that wrote it"
        )
    if version == 1:
        content = {_RENAMED_SINCE_1.get(key, key): value for key, value in content.items()}
    try:
        return _INFO.validate_python(content)
    except ValidationError as error:
        raise UserError(f"{file}: is damaged: {describe_validation_error(error)}") from None


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
        return f"{path.name} has {path.stat().st_size} bytes, expected {expected.size}"
    if _describe(path) != expected:
        return f"{path.name} has changed since it was written"
    return None
