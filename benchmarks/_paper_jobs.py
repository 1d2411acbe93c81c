"""A job produces a result in its own folder: an interrupted job resumes, a finished one is skipped."""

import json
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final, Optional

from data_tools.files import write_text
from engine.config import RunConfig
from engine.options import UserError
from engine.tasks import Task
from engine.training.builders import build_trainer
from engine.training.distributed import Ranks
from engine.training.export import export_model

RESULT_FILE: Final = "result.json"


class Job(ABC):
    """A unit of work with a result. Its subclasses are frozen dataclasses, which are sent to worker processes and compared."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The job's folder."""

    @property
    def name(self) -> str:
        """The job's name in messages."""
        return self.folder.name

    @property
    def needs(self) -> Optional["Job"]:
        """The job that must finish before this one starts; None if there is none."""
        return None

    @abstractmethod
    def make(self, ranks: Ranks) -> dict[str, Any]:
        """Does the work, or what an interruption left of it; returns the result as JSON values."""

    def result(self) -> dict[str, Any] | None:
        """Returns the result; None if the job has not finished.

        Raises:
            UserError: the file is damaged.
        """
        path = self.folder / RESULT_FILE
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            raise UserError(f"{path}: not valid JSON; remove {self.folder} to run this job again") from None
        return found

    def run(self, ranks: Ranks) -> None:
        """Does the work unless it is done. The result, with the seconds that this call took, is written last, atomically.

        Raises:
            UserError, DatasetError: the user's mistake, in one line.
            TrainingStoppedError: a signal stopped the run; a checkpoint is saved.
        """
        if self.result() is not None:
            return
        start = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        content = self.make(ranks)
        content["seconds"] = time.monotonic() - start
        write_text(self.folder / RESULT_FILE, json.dumps(content, indent=1) + "\n")


def train(config: RunConfig, task: type[Task], ranks: Ranks) -> int:
    """Trains, and exports the model if the task does; returns the number of steps that this call has trained."""
    config.output_dir.mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(config, ranks, task)
    try:
        trainer.run()
        if task.exports_model:
            export_model(trainer)
    finally:
        trainer.close()
        trainer.backend.destroy()
    return trainer.state.step - trainer.state.first_step
