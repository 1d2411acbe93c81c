"""The command line of a training script: reads the configuration, trains, and reports errors and exit status."""

import argparse
import logging
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import torch

from data_tools.command_line import Parser
from data_tools.files import lock_file
from data_tools.shards.manifest import DatasetError
from data_tools.validation import first_line
from engine.config import RANDOM, RunConfig, load_config, to_yaml
from engine.device import select_device
from engine.models.model_folder import INITIAL_MODEL_FOLDER
from engine.options import RankError, UserError
from engine.tasks import Task
from engine.training.builders import build_trainer
from engine.training.distributed import Ranks, destroy_process_group, exit_process, init_distributed, is_peer_failure
from engine.training.export import export_model
from engine.training.summary import conclude_run
from engine.training.trainer import TrainingStoppedError

_LOCK_FILE = ".lock"
_SECONDS_TO_REPORT = 5

Prepare = Callable[[Any, Ranks], tuple[type[Task], Any]]


def run_script(task_class: type[Task], *, prog: str, description: str, example: str, prepare: Prepare | None = None) -> int:
    """Trains a task as specified on the command line.

    Args:
        task_class: the task; ``task_class.config_class`` is the class of its configuration.
        prog: name of the script.
        description: one line for ``--help``.
        example: an example command for ``--help``.
        prepare: chooses the task from the configuration, and may change the configuration; all ranks call it together, after
            the run's folder has been locked. ``None``: the task is ``task_class``, which does not support ``init_from``.

    Returns:
        The exit status: 0 after success, 2 after a user's mistake, 143 after a signal and a saved checkpoint. After errors
        that other ranks may not have, the process exits instead.
    """
    arguments = _parse_arguments(prog, description, example)
    program = prog.removesuffix(".py")

    def notify(text: str) -> None:
        if _is_main_rank():
            sys.stderr.write(f"{program}: warning: {text}\n")

    try:
        config = load_config(task_class.config_class, arguments.config, arguments.overrides, notify)
        if arguments.print_config:
            sys.stdout.write(to_yaml(config))
            return 0
        ranks = init_distributed(select_device(config.train.device), config.train.timeout_minutes)
    except UserError as error:
        _wait_for_rank_0()
        return _fail(program, error)
    try:
        _train(config, ranks, prepare or _prepare_random(task_class))
        status = 0
    except TrainingStoppedError as stopped:
        _fail(program, stopped, report=ranks.is_main)
        status = 143
    except RankError as error:
        exit_process(_fail(program, error))
    except (UserError, DatasetError) as error:
        _wait_for_rank_0()
        status = _fail(program, error, report=ranks.is_main)
    except torch.OutOfMemoryError as error:
        remedy = "set train.micro_batch_size=auto or a smaller number, or compute.activation_checkpointing=true"
        exit_process(_fail(program, f"rank {ranks.rank}: {first_line(error)}: {remedy}"))
    except KeyboardInterrupt:
        exit_process(130)
    except Exception as error:  # noqa: BLE001 -- reported here, because the process ends before Python would report it
        if is_peer_failure(error):
            sys.stderr.write(
                f"rank {ranks.rank} is stopping because another rank exited: see that rank's message for the cause\n"
            )
        else:
            traceback.print_exc()
        exit_process(1)
    destroy_process_group()
    return status


def _prepare_random(task_class: type[Task]) -> Prepare:
    """Returns the ``prepare`` of a script whose task always starts from random weights."""

    def prepare(config: RunConfig, _: Ranks) -> tuple[type[Task], RunConfig]:
        if config.init_from != RANDOM:
            raise UserError("init_from: this script always starts from random weights: remove it")
        return task_class, config

    return prepare


def _is_main_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"  # set by every launcher


def _fail(program: str, error: Exception | str, *, report: bool = True) -> int:
    """Prints an error, unless another rank does; returns the exit status."""
    if report:
        sys.stderr.write(f"{program}: {error}\n")
    return 2


def _wait_for_rank_0() -> None:
    """Gives rank 0 time to report an error of all ranks: when this rank exits, the launcher stops the others."""
    if not _is_main_rank():
        time.sleep(_SECONDS_TO_REPORT)


def _parse_arguments(prog: str, description: str, example: str) -> argparse.Namespace:
    parser = Parser(
        prog=prog,
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="YAML file; if given several times, later files override earlier ones",
    )
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)  # from the launcher
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that override the files")
    return parser.parse_intermixed_args()


def _train(config: RunConfig, ranks: Ranks, prepare: Prepare) -> None:
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed 0.19 calls collectives by names that PyTorch 2.13 has renamed.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    # PyTorch's compiler calls functions that PyTorch itself has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\._inductor")
    if config.logging.wandb_project is not None and find_spec("wandb") is None:
        raise UserError("logging.wandb_project is set, but wandb is not installed: pip install wandb")
    lock: list[TextIO] = []
    ranks.on_main_rank(lambda: lock.append(lock_run_folder(config.output_dir)))
    try:
        task_class, config = prepare(config, ranks)
        trainer = build_trainer(config, ranks, task_class)
    except BaseException:
        if lock:
            _remove_if_unused(config.output_dir)
        raise
    try:
        trainer.run()
        exported = export_model(trainer) if task_class.exports_model else None
    finally:
        trainer.close()
    ranks.on_main_rank(lambda: conclude_run(trainer, exported))


def _remove_if_unused(folder: Path) -> None:
    """Removes the folder of a run that has not begun, which contains only the lock and perhaps a converted model."""
    if {file.name for file in folder.iterdir()} <= {_LOCK_FILE, INITIAL_MODEL_FOLDER}:
        shutil.rmtree(folder)


def lock_run_folder(folder: Path) -> TextIO:
    """Creates the folder and locks it while the returned file is open; the process's exit releases the lock.

    Two runs in one folder would remove each other's checkpoints and lines of ``metrics.jsonl``. It happens if a scheduler
    starts a run twice, or if ranks survive their launcher.

    Raises:
        UserError: the folder cannot be created or written to, or another run holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock_file(folder / _LOCK_FILE)
    except BlockingIOError:
        raise UserError(f"{folder}: another run is writing to it: stop that run first, or set another output_dir") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be written to ({error.strerror}): set another output_dir") from None
