"""Builds a pre-training run from its configuration: data, model, DeepSpeed engine, checkpoints, trainer."""

import importlib.util
import json
import math
import os
import warnings
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from data_tools.files import write_text
from data_tools.recording import SEGMENT_SAMPLES
from data_tools.shards.dataset import Dataset
from engine.allocator import keep_freed_memory
from engine.config import RunConfig
from engine.data import CropStore, Loader, SampleOrder, make_loader
from engine.models import Encoder
from engine.models.feature_encoder import samples_per_token
from engine.models.functional import SDPA_BACKENDS, attention
from engine.objectives import OBJECTIVES, PretrainingModel
from engine.options import UserError
from engine.training.checkpoint import FORMAT_VERSION, CheckpointInfo, Checkpoints, check_fits, parameter_shapes
from engine.training.distributed import Ranks
from engine.training.micro_batch import resolve_micro_batch_size
from engine.training.optimizer import make_optimizer
from engine.training.throughput import measure_peak_flops
from engine.training.trainer import DTYPES, Trainer


def prepare(config: RunConfig, ranks: Ranks) -> Trainer:
    """Makes everything ready for the first step, the newest checkpoint loaded if the run goes on from one.

    The trainer's configuration is the given one with ``train.micro_batch_size=auto`` resolved.

    Raises:
        UserError, DatasetError: one line for the user; the same on every rank.
    """
    if config.train.micro_batch_size != "auto":
        config.train.micro_batches(ranks.world_size)  # a mistake in them is told at once
    _check_kernels(config, ranks.device)  # before the micro-batch is looked for, which runs them
    dataset = open_dataset(config, ranks)
    stores = {"train": CropStore(dataset, config.data.train_split)}
    if config.data.valid_split in dataset.manifest.counts:
        stores["valid"] = CropStore(dataset, config.data.valid_split)
    checkpoints = Checkpoints(
        config.output_dir / "checkpoints", ranks, keep_last=config.checkpoint.keep_last, keep_best=config.checkpoint.keep_best
    )
    start = _find_start(config, checkpoints)
    config = resolve_micro_batch_size(config, lambda: make_model(config), ranks, start[1] if start else None)
    micro_size, _ = config.train.micro_batches(ranks.world_size)
    loaders = {name: _make_loader(config, store, ranks, micro_size) for name, store in stores.items()}

    model = make_model(config)
    shapes = parameter_shapes(model)
    if start is not None:
        check_fits(start[0], start[1], model, ranks.world_size, config.zero.stage)
        loaders["train"].load_state_dict(start[1].loader)
    flops = 2 * config.train.batch_size * model.flops_per_segment(SEGMENT_SAMPLES)
    engine = make_engine(config, model, ranks)
    info = CheckpointInfo(
        format_version=FORMAT_VERSION,
        step=0,
        loader=loaders["train"].state_dict(),
        config=config.to_mapping(),
        world_size=ranks.world_size,
        zero_stage=config.zero.stage,
        shapes=shapes,
        versions={name: version(name) for name in ("ecg-engine", "torch", "deepspeed")},
    )
    if start is not None:
        checkpoints.load(engine, start[0])
        _set_optimizer_options(engine.optimizer, config)
        info = replace(info, step=start[1].step, best_valid_loss=start[1].best_valid_loss)
    num_steps = config.train.steps or info.step + _steps_of_epochs(config, stores["train"].num_crops, info.loader["cursor"])
    peak = sum(ranks.gather(measure_peak_flops(ranks.device, DTYPES[config.train.precision])))
    return Trainer(
        config, ranks, engine, loaders["train"], loaders.get("valid"), stores, checkpoints, info,
        flops_per_step=flops, peak_flops=peak, num_steps=num_steps,
    )  # fmt: skip


def make_model(config: RunConfig) -> PretrainingModel:
    """The encoder with its objective, the same initial weights for the same seed."""
    torch.manual_seed(config.seed)
    objective = OBJECTIVES[config.objective.name](config.objective.options, config.model)
    return PretrainingModel(Encoder(config.model, config.train), objective, seed=config.seed)


def make_engine(config: RunConfig, model: PretrainingModel, ranks: Ranks) -> Any:
    """DeepSpeed's engine around the model, with the optimizer, compiled if ``train.compile`` says so.

    Raises:
        UserError: if ``train.attention`` names a kernel that does not exist for this device, dtype and width, or
            ``train.positional`` one that does not exist here.
    """
    import deepspeed

    if ranks.device.type == "cpu":
        keep_freed_memory()
    _check_kernels(config, ranks.device)
    optimizer = make_optimizer(model, config.optimizer)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config.deepspeed(ranks.world_size))
    if ranks.world_size == 1 and config.zero.stage == 0:
        # It would copy all gradients into one buffer, average that over this rank alone, and copy them back.
        engine.enable_backward_allreduce = False
        optimizer.register_step_pre_hook(_fill_missing_gradients)
    # Every batch of a run has the same shape. For another one, as after a change of size in one process, the compiler would
    # otherwise take shapes for variables, and make slower kernels.
    if config.train.compile == "model":
        engine.module.compile(dynamic=False)
    elif config.train.compile == "blocks":
        for block in engine.module.encoder.blocks:
            block.compile(dynamic=False)
    return engine


def _fill_missing_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Zeros for what the objective has no use for, as DeepSpeed makes them elsewhere: weight decay is then the same."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _check_kernels(config: RunConfig, device: torch.device) -> None:
    """Refuses formulations that do not exist for this device, dtype and width."""
    _check_attention(config, device)
    _check_positional(config, device)


def _check_attention(config: RunConfig, device: torch.device) -> None:
    """Tries the attention kernel on one segment: torch knows only then whether it has it."""
    backend, o = config.train.attention, config.model
    if backend not in SDPA_BACKENDS:
        return
    # In the model's own layout, [B, T, 3, H, d], which a kernel may refuse as well.
    shape = (1, SEGMENT_SAMPLES // samples_per_token(o.feature_blocks), 3, o.num_heads, o.width // o.num_heads)
    qkv = torch.zeros(shape, device=device, dtype=DTYPES[config.train.precision], requires_grad=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # torch's reasons, for each kernel that it was not to take
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
            attention(q, k, v, o.attention_dropout, backend).sum().backward()
    except RuntimeError:
        raise UserError(
            f"train.attention={backend}: torch has no such kernel on {device.type} for {config.train.precision}, {o.num_heads} "
            f"heads of width {shape[-1]} and model.attention_dropout={o.attention_dropout}: take train.attention=auto"
        ) from None


def _check_positional(config: RunConfig, device: torch.device) -> None:
    if config.train.positional == "triton" and (device.type == "cpu" or importlib.util.find_spec("triton") is None):
        raise UserError(
            "train.positional=triton needs a GPU, and Triton, which comes with PyTorch for CUDA: take train.positional=auto"
        )


def _set_optimizer_options(optimizer: Any, config: RunConfig) -> None:
    """Gives DeepSpeed's optimizer this run's options instead of those that the checkpoint brought along."""
    options = config.optimizer
    for group in optimizer.param_groups:
        group |= {"betas": options.betas, "eps": options.eps, "weight_decay": options.weight_decay}
    if config.zero.stage:
        optimizer.clip_grad = config.train.gradient_clipping


def open_dataset(config: RunConfig, ranks: Ranks) -> Dataset:
    """Opens the dataset and checks its shards, each rank its share, before anything is trained on them.

    ``data.verify=hash`` computes every shard's SHA-256 once: what was found whole is remembered by size and time of change in
    the user's cache folder, and not read again until it changes.
    """
    if config.data.path is None:
        raise UserError("data.path is missing: give the folder of a dataset, data.path=DATASET (ecg-data build makes one)")
    dataset: Dataset = ranks.on_main_rank(lambda: Dataset.open(Path(str(config.data.path))))
    if config.data.verify == "hash":
        shards = [shard for split in dataset.manifest.counts for shard in dataset.shards(split)]
        cache = _cache_folder() / f"verified-{dataset.fingerprint}.json"
        known: dict[str, list[int]] = ranks.on_main_rank(lambda: _read_cache(cache))
        stamps = {shard.file: _stamp(dataset.path / shard.file) for shard in shards}
        unknown = [shard for shard in shards if known.get(str(dataset.path / shard.file)) != stamps[shard.file]]
        problems = dataset.verify_shards(unknown[ranks.rank :: ranks.world_size])
        problems = [problem for part in ranks.gather(problems) for problem in part]
        if problems:
            raise UserError(
                f"{problems[0]}{f' (and {len(problems) - 1} more)' if len(problems) > 1 else ''}: "
                f"see `ecg-data verify {dataset.path}`, and build the dataset again"
            )
        if unknown and ranks.is_main:
            known |= {str(dataset.path / file): stamp for file, stamp in stamps.items()}
            _write_cache(cache, known)
    return dataset


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ecg-engine"


def _read_cache(path: Path) -> dict[str, list[int]]:
    """What is remembered; nothing if that cannot be read, as it only saves time."""
    try:
        content: dict[str, list[int]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content


def _write_cache(path: Path, content: dict[str, list[int]]) -> None:
    """Remembers for the next run; without a cache folder to write to, that one reads the shards again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(content))


def _make_loader(config: RunConfig, store: CropStore, ranks: Ranks, micro_size: int) -> Loader:
    order = SampleOrder(
        store.num_crops, config.seed, block_size=config.data.block_size, window_blocks=config.data.window_blocks
    )
    return make_loader(
        config.data,
        store,
        order,
        seed=config.seed,
        batch_size=micro_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=ranks.device,
        pair=OBJECTIVES[config.objective.name].pair,
    )


def _steps_of_epochs(config: RunConfig, num_crops: int, cursor: int) -> int:
    """The steps that are left from a place in the stream of crops; batches before it may have been of another size."""
    assert config.train.epochs is not None
    steps = math.floor((config.train.epochs * num_crops - cursor) / config.train.batch_size + 0.5)
    return max(0 if cursor else 1, steps)


def _find_start(config: RunConfig, checkpoints: Checkpoints) -> tuple[Path, CheckpointInfo] | None:
    """The checkpoint that ``resume`` means, checked, or ``None`` to start from the beginning."""
    if config.resume == "auto":
        return checkpoints.newest()
    if config.resume != "none":
        path = Path(config.resume)
        info = checkpoints.read(path)
        last = checkpoints.last_step()
        if last is not None and last > info.step:
            # They would count as the newest ones, which are kept and gone on from.
            raise UserError(
                f"{config.output_dir}: holds checkpoints of later steps, up to {last}, than {path}: give another "
                f"output_dir, or resume=auto to go on with the run in it"
            )
        return path, info
    if checkpoints.newest() is not None:
        raise UserError(f"{config.output_dir}: holds a run already: give another output_dir, or resume=auto to go on with it")
    return None
