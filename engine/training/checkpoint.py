"""Checkpoints, written atomically; any number of ranks with any ZeRO stage can resume from them.

    RUN/checkpoints/step-00000100/checkpoint.json         step, loader position, configuration, shapes, parts, files
                                  weights-*.safetensors, optimizer-*.safetensors: the parts, one of each per rank
    RUN/checkpoints/.partial-step-00000200/               an unfinished checkpoint of a run that died; the next run removes it

A checkpoint is written to a temporary folder, flushed to disk, and renamed. ``checkpoint.json`` records the size and SHA-256 of
every file, so that a checkpoint that was damaged later is detected, and the one before it is used. Nothing in a checkpoint is
code: it may come from anyone.
"""

import json
import math
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from data_tools.files import sync, write_text
from engine.options import RankError, UserError
from engine.training.checkpoint_files import FileDescription, ParameterSlice, Part, compare_file, read_slices, write_part
from engine.training.checkpoint_info import FOLDER_NAME, CheckpointInfo, UnsupportedVersionError, read_info
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks

_PARTIAL = ".partial-"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the checkpoints' folder; created if necessary.
        ranks: all ranks call every method together.
        keep_last: number of most recent checkpoints to keep.
        keep_best: whether the best validation score to keep is the lowest ("min") or the highest ("max"); ``None``: the best
            checkpoint is not kept.
        background: whether a thread writes the checkpoints from a copy while training continues.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        *,
        keep_last: int,
        keep_best: Literal["min", "max"] | None,
        background: bool = False,
    ) -> None:
        self.folder = folder
        self._ranks = ranks
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._thread = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._thread_ranks = ranks.with_own_group() if background else None
        self._pending: Future[None] | None = None

    def path(self, step: int) -> Path:
        """Returns the folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def save(self, backend: DeepSpeedBackend, info: CheckpointInfo) -> Path:
        """Writes a checkpoint and removes those that are no longer kept; returns its folder.

        In the background, this returns after copying weights and optimizer state; errors are raised by :meth:`check`,
        :meth:`wait` or the next call.

        Raises:
            UserError: it could not be written, for example because the disk is full; earlier checkpoints are untouched.
        """
        self.wait()
        info = replace(info, num_updates=backend.num_updates())
        slices = backend.owned_slices()
        if self._thread is None:
            self._write(self._ranks, info, slices)
        else:
            assert self._thread_ranks is not None
            self._pending = self._thread.submit(self._write, self._thread_ranks, info, [piece.copied() for piece in slices])
        return self.path(info.step)

    def check(self) -> None:
        """Raises the error of a checkpoint that could not be written in the background."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is complete.

        Raises:
            RankError: it could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                pending.result()
            except UserError as error:
                # The ranks notice it at different steps.
                raise RankError(str(error)) from error

    def load(self, path: Path, info: CheckpointInfo, backend: DeepSpeedBackend) -> None:
        """Loads a verified checkpoint's weights and optimizer state; each rank reads what it holds.

        Raises:
            RankError: a file does not match ``checkpoint.json``.
        """
        try:
            backend.load(lambda slices: read_slices(path, info.parts, slices), info.num_updates)
        except UserError as error:
            raise RankError(str(error)) from None

    def newest(self) -> tuple[Path, CheckpointInfo] | None:
        """Returns the newest intact checkpoint, verified byte by byte; skips damaged ones with a warning.

        Raises:
            UserError: a newer checkpoint is of another format version.
        """
        self._ranks.on_main_rank(self._remove_partial)
        names: list[str] = self._ranks.on_main_rank(lambda: [path.name for path in self._saved()])
        for name in reversed(names):
            path = self.folder / name
            try:
                return path, self.read(path)
            except UnsupportedVersionError:
                raise
            except UserError as error:
                if self._ranks.is_main:
                    warnings.warn(f"skipped: {error}", stacklevel=2)
        return None

    def best(self) -> tuple[Path, CheckpointInfo] | None:
        """Returns the checkpoint with the best validation score, or the newest one if the best is not kept; verified."""
        if self._keep_best is None:
            return self.newest()
        path: Path | None = self._ranks.on_main_rank(lambda: self._find_best(_read_intact(self._saved())))
        return self.newest() if path is None else (path, self.read(path))

    def last_step(self) -> int | None:
        """Returns the step of the newest checkpoint, damaged or not."""
        names: list[str] = self._ranks.on_main_rank(lambda: [path.name for path in self._saved()])
        return max((int(name.removeprefix("step-")) for name in names), default=None)

    def read(self, path: Path) -> CheckpointInfo:
        """Reads ``checkpoint.json`` and verifies every file it lists; the ranks share the files.

        Raises:
            UserError: the checkpoint is damaged; all ranks raise the same error.
        """
        info: CheckpointInfo = self._ranks.on_main_rank(lambda: read_info(path))
        problem = None
        for number, (name, expected) in enumerate(sorted(info.files.items())):
            if number % self._ranks.world_size == self._ranks.rank and problem is None:
                problem = compare_file(path / name, expected)
        problems = [text for text in self._ranks.gather(problem) if text]
        if problems:
            raise UserError(f"{path}: the checkpoint is damaged: {problems[0]}")
        return info

    def _write(self, ranks: Ranks, info: CheckpointInfo, slices: Sequence[ParameterSlice]) -> None:
        target = self.path(info.step)
        partial = self.folder / f"{_PARTIAL}{target.name}"
        ranks.on_main_rank(lambda: self._prepare(partial))
        try:
            files = write_part(partial, ranks.rank, slices)
        except OSError as error:
            raise RankError(
                f"{target}: could not write the checkpoint ({error.strerror}); earlier checkpoints are intact: fix "
                f"this (if the disk is full, free some space) and run again"
            ) from error
        parts: list[tuple[Part, dict[str, FileDescription]]] = ranks.gather(
            ({piece.name: (piece.start, piece.stop) for piece in slices}, files)
        )
        info = replace(
            info,
            parts=[part for part, _ in parts],
            files={name: description for _, files in parts for name, description in files.items()},
        )
        ranks.on_main_rank(lambda: self._publish(partial, info))

    def _prepare(self, partial: Path) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)

    def _publish(self, partial: Path, info: CheckpointInfo) -> None:
        target = self.path(info.step)
        if target.exists():
            # The run resumed from an earlier step and has reached this one again.
            shutil.rmtree(target)
        _describe_and_rename(partial, target, info)
        self._prune(target)

    def _prune(self, newest: Path) -> None:
        # Newer ones are damaged, and were skipped by newest(): they must not displace the intact ones before them.
        infos = _read_intact(path for path in self._saved() if path.name <= newest.name)
        keep = set(list(infos)[-self._keep_last :])
        best = self._find_best(infos)
        if best is not None:
            keep.add(best)
        for path in infos.keys() - keep:
            # Renamed first: a half-removed checkpoint must not look like a damaged one.
            doomed = self.folder / f"{_PARTIAL}{path.name}"
            path.rename(doomed)
            shutil.rmtree(doomed)

    def _find_best(self, infos: Mapping[Path, CheckpointInfo]) -> Path | None:
        scored = [(info.score, path) for path, info in infos.items() if info.score is not None and math.isfinite(info.score)]
        if self._keep_best is None or not scored:
            return None
        choose = min if self._keep_best == "min" else max
        return choose(scored, key=lambda item: item[0])[1]  # the first of equal scores, as for early stopping

    def _saved(self) -> list[Path]:
        """Returns the folders of all checkpoints in the order of their steps; warns of anything else."""
        found = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        saved = [path for path in found if FOLDER_NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]
        for path in found:
            if path not in saved and not path.name.startswith(_PARTIAL):
                warnings.warn(f"ignoring {path}: not a checkpoint folder", stacklevel=2)
        return saved

    def _remove_partial(self) -> None:
        for path in self.folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path)


def _read_intact(paths: Iterable[Path]) -> dict[Path, CheckpointInfo]:
    """Reads the descriptions of checkpoints; leaves out those whose description is damaged."""
    infos = {}
    for path in paths:
        with suppress(UserError):
            infos[path] = read_info(path)
    return infos


def read_checkpoint(path: Path) -> CheckpointInfo:
    """Reads ``checkpoint.json`` and verifies every file, without other ranks.

    Raises:
        UserError: the checkpoint is damaged.
    """
    info = read_info(path)
    for name, expected in sorted(info.files.items()):
        problem = compare_file(path / name, expected)
        if problem is not None:
            raise UserError(f"{path}: the checkpoint is damaged: {problem}")
    return info


def read_weights(path: Path, info: CheckpointInfo) -> dict[str, Tensor]:
    """Returns the weights of a verified checkpoint by name, without other ranks."""
    weights = {name: torch.empty(shape) for name, shape in info.shapes.items()}
    read_slices(path, info.parts, [ParameterSlice(name, 0, weight.view(-1), {}) for name, weight in weights.items()])
    return weights


def write_checkpoint(target: Path, info: CheckpointInfo, slices: Sequence[ParameterSlice]) -> None:
    """Writes a checkpoint in one part, without other ranks.

    Args:
        target: the checkpoint's folder, which must not exist.
        info: its description without parts and files.
        slices: every parameter.
    """
    partial = target.with_name(f"{_PARTIAL}{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        files = write_part(partial, 0, slices)
        part = {piece.name: (piece.start, piece.stop) for piece in slices}
        _describe_and_rename(partial, target, replace(info, world_size=1, parts=[part], files=files))
    except BaseException:
        shutil.rmtree(partial)
        raise


def _describe_and_rename(partial: Path, target: Path, info: CheckpointInfo) -> None:
    write_text(partial / "checkpoint.json", json.dumps(asdict(info)))
    sync(partial)
    partial.rename(target)
    sync(target.parent)
