"""Builds a trainer from a configuration: data, task, backend, checkpoints, state."""

import math
import sys
from pathlib import Path

from data_tools.files import write_text
from engine.config import RANDOM, RunConfig, to_yaml
from engine.models.model_folder import INITIAL_MODEL_FOLDER, RUN_CONFIG_FILE
from engine.options import UserError
from engine.tasks import Task
from engine.training.checkpoint import Checkpoints
from engine.training.checkpoint_info import CheckpointInfo, check_matches
from engine.training.data import check_leads, make_loaders, open_sources, open_splits
from engine.training.deepspeed_backend import DeepSpeedBackend
from engine.training.distributed import Ranks
from engine.training.kernel_checks import check_kernels
from engine.training.metric_writers import MetricWriter, make_metric_writers
from engine.training.micro_batch import resolve_micro_batch_size
from engine.training.summary import describe_run
from engine.training.trainer import RunState, Trainer


def build_trainer(config: RunConfig, ranks: Ranks, task_class: type[Task]) -> Trainer:
    """Prepares everything for the first step; if the run resumes, from its checkpoint.

    The trainer's configuration is the given one with ``train.micro_batch_size=auto`` resolved.

    Args:
        config: the run's configuration, of the task's class.
        ranks: all ranks call this together.
        task_class: the task to train.

    Raises:
        UserError, DatasetError: one line for the user; the same on every rank.
    """
    if config.train.micro_batch_size != "auto":
        config.train.micro_batches(ranks.world_size)  # reports mistakes before anything slow
    config = task_class.resolve_config(config)
    check_kernels(config, ranks.device)  # before the search for the micro-batch size, which runs them
    sources = open_sources(config, ranks)
    notices: list[str] = ranks.on_main_rank(lambda: check_leads(sources))
    splits = open_splits(config, sources, task_class)
    notices += [text for source in sources for text in task_class.notices(source.config, source.dataset)]
    ranks.on_main_rank(lambda: sys.stderr.writelines(f"warning: {text}\n" for text in notices))
    if config.validation.patience is not None and "valid" not in splits:
        raise UserError(
            f"validation.patience needs a validation split, and {sources[0].dataset.path} has no '{config.data.valid_split}': "
            f"set data.valid_split, or validation.patience=null"
        )
    keep_best = task_class.score(config).mode if config.checkpoint.keep_best else None
    checkpoints = Checkpoints(
        config.output_dir / "checkpoints",
        ranks,
        keep_last=config.checkpoint.keep_last,
        keep_best=keep_best,
        background=config.checkpoint.background,
    )
    resumed = _find_checkpoint(config, checkpoints)
    ranks.on_main_rank(lambda: _check_start(config, resumed))
    config, memory = resolve_micro_batch_size(
        config, lambda: task_class(config, splits), ranks, resumed[1] if resumed else None
    )

    task = task_class(config, splits)
    if resumed:
        check_matches(*resumed, task.model)
        task.provenance = resumed[1].provenance  # that of the weights, wherever the model is now
    else:
        notes = task.initialize()
        ranks.on_main_rank(lambda: sys.stderr.writelines(f"{note}\n" for note in notes))
    data = make_loaders(config, sources, splits, ranks, task)
    if resumed:
        data.train.load_state_dict(resumed[1].loader)
    backend = DeepSpeedBackend(task.model, config, ranks)
    if resumed:
        checkpoints.load(*resumed, backend)
    state = _make_state(config, data.train.order.num_samples, resumed[1] if resumed else None)
    metric_writers: list[MetricWriter] = []
    trainer = Trainer(config, ranks, task, backend, data, checkpoints, state, metric_writers)
    ranks.on_main_rank(lambda: _open_outputs(trainer, memory))
    return trainer


def _check_start(config: RunConfig, resumed: tuple[Path, CheckpointInfo] | None) -> None:
    """Checks that ``init_from`` is what the resumed run started from; a model that is no longer there may have been moved.

    Raises:
        UserError: it is another model, whose leads, normalization and provenance may differ.
    """
    if resumed is None:
        return
    path, info = resumed
    started, chosen = str(info.config.get("init_from", RANDOM)), config.init_from
    if chosen == started:
        return
    if RANDOM not in (chosen, started):
        were_converted = Path(chosen).name == Path(started).name == INITIAL_MODEL_FOLDER
        if were_converted or not Path(started).exists() or Path(started).samefile(chosen):
            return
    raise UserError(
        f"{path}: the run started with init_from={started}, so it cannot resume with init_from={chosen}: set "
        f"init_from={started} to resume, or another output_dir to start a new run"
    )


def _open_outputs(trainer: Trainer, memory: str) -> None:
    config = trainer.config
    write_text(config.output_dir / RUN_CONFIG_FILE, to_yaml(config))
    sys.stderr.write(describe_run(trainer, memory) + "\n")
    trainer.metric_writers += make_metric_writers(config, trainer.state.first_step, trainer.state.num_steps, trainer.task.unit)


def _make_state(config: RunConfig, num_crops: int, resumed: CheckpointInfo | None) -> RunState:
    step = resumed.step if resumed else 0
    cursor = resumed.loader["cursor"] if resumed else 0
    num_steps = config.train.steps or step + _remaining_steps(config, num_crops, cursor)
    best_score, num_worse = (resumed.best_score, resumed.num_worse) if resumed else (None, 0)
    if config.validation.patience is not None and num_worse >= config.validation.patience:
        num_steps = step  # the run has stopped early
    return RunState(step, num_steps, best_score, num_worse, saved_step=step, first_step=step)


def _remaining_steps(config: RunConfig, num_crops: int, cursor: int) -> int:
    """Returns the steps left after the loader's cursor; earlier batches may have had another size."""
    assert config.train.epochs is not None
    steps = math.floor((config.train.epochs * num_crops - cursor) / config.train.batch_size + 0.5)
    return max(0 if cursor else 1, steps)


def _find_checkpoint(config: RunConfig, checkpoints: Checkpoints) -> tuple[Path, CheckpointInfo] | None:
    """Returns the verified checkpoint that ``resume`` refers to, or ``None`` to start from the beginning."""
    if config.resume == "auto":
        return checkpoints.newest()
    if config.resume != "none":
        path = Path(config.resume)
        info = checkpoints.read(path)
        last = checkpoints.last_step()
        if last is not None and last > info.step:
            # They would count as the newest checkpoints, which are kept and resumed from.
            raise UserError(
                f"{config.output_dir}: already contains checkpoints newer than {path} (up to step {last}): set another "
                "output_dir, or resume=auto to continue from the newest one"
            )
        return path, info
    if checkpoints.newest() is not None:
        raise UserError(f"{config.output_dir}: already contains a run: set another output_dir, or resume=auto to continue it")
    return None
