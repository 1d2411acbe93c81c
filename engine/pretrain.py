"""Pre-trains an ECG encoder.

    deepspeed engine/pretrain.py --config configs/pretrain/w2v_cmsc_rlm.yaml data.path=DATASET [key.path=value ...]

Run it again with the same output_dir to go on where it stopped.
"""

import argparse
import logging
import math
import sys
import traceback
import warnings
from pathlib import Path
from typing import TextIO

import torch

from data_tools.files import write_text
from data_tools.shards.manifest import DatasetError
from engine.config import RunConfig
from engine.config_files import load_config
from engine.options import RankError, UserError
from engine.training.distributed import Ranks, choose_device, has_lost_a_rank, leave, start, stop
from engine.training.metric_writers import make_metric_writers, read_rows
from engine.training.run_folder import claim
from engine.training.setup import prepare
from engine.training.summary import align, summarize, write_summary
from engine.training.trainer import Trainer, TrainingStoppedError

_EXAMPLE = """example:
  deepspeed --num_gpus 4 engine/pretrain.py --config configs/pretrain/w2v_cmsc_rlm.yaml \\
      data.path=datasets/physionet2021 output_dir=runs/first train.batch_size=512 zero.stage=2"""


def main() -> int:
    """Runs the script; returns the exit status."""
    arguments = _parse_arguments()
    try:
        config = load_config(arguments.config, arguments.overrides)
        if arguments.print_config:
            sys.stdout.write(config.to_yaml())
            return 0
        ranks = start(choose_device(config.train.device))
    except UserError as error:
        return _fail(error, speak=arguments.local_rank in {-1, 0})
    try:
        _run(config, ranks)
        status = 0
    except TrainingStoppedError as stopped:
        if ranks.is_main:
            sys.stderr.write(f"pretrain: {stopped}\n")
        status = 143
    except RankError as error:
        leave(_fail(error, speak=True))
    except (UserError, DatasetError) as error:
        status = _fail(error, speak=ranks.is_main)
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        remedy = "take train.micro_batch_size=auto or a smaller one, or train.activation_checkpointing=true"
        leave(_fail(f"rank {ranks.rank}: {reason}: {remedy}", speak=True))
    except KeyboardInterrupt:
        leave(130)
    except Exception as error:  # noqa: BLE001 -- told here, as the process ends before Python would tell
        if has_lost_a_rank(error):
            sys.stderr.write(
                f"rank {ranks.rank} ends, as another rank has: its message, or the log of its machine, tells why\n"
            )
        else:
            traceback.print_exc()
        leave(1)
    stop()
    return status


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pretrain.py",
        description="Pre-trains an ECG encoder.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="a YAML file; several are laid over each other",
    )
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and exit")
    parser.add_argument("--local_rank", type=int, default=-1, help=argparse.SUPPRESS)  # the launcher's
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="single settings, over the files")
    return parser.parse_intermixed_args()


def _run(config: RunConfig, ranks: Ranks) -> None:
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed 0.19 calls collectives by names that PyTorch 2.13 has renamed.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
    # PyTorch's compiler calls functions that PyTorch itself has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\._inductor")
    held: list[TextIO] = []
    ranks.on_main_rank(lambda: held.append(claim(config.output_dir)))
    trainer = prepare(config, ranks)
    config = trainer.config
    ranks.on_main_rank(lambda: _open_outputs(config, ranks, trainer))
    try:
        trainer.run()
    finally:
        for writer in trainer.metric_writers:
            writer.close()
        trainer.close()
    ranks.on_main_rank(lambda: _conclude(config, ranks, trainer))


def _open_outputs(config: RunConfig, ranks: Ranks, trainer: Trainer) -> None:
    write_text(config.output_dir / "config.yaml", config.to_yaml())
    sys.stderr.write(_describe(config, ranks, trainer) + "\n")
    trainer.metric_writers = make_metric_writers(config, trainer.info.step, trainer.num_steps)


def _describe(config: RunConfig, ranks: Ranks, trainer: Trainer) -> str:
    num_parameters = sum(math.prod(shape) for shape in trainer.info.shapes.values())
    start_from = f"step {trainer.info.step}, from a checkpoint" if trainer.info.step else "the beginning"
    micro_size, _ = config.train.micro_batches(ranks.world_size)
    counts = ", ".join(f"{name} {store.num_crops:,}" for name, store in trainer.stores.items())
    return align(
        {
            "objective": config.objective.name,
            "model": f"{num_parameters / 1e6:.1f}M parameters, {config.train.precision}",
            "crops": f"{counts}, read with {trainer.loader.name} from {config.data.path}",
            "ranks": f"{ranks.world_size} x {ranks.device.type}, ZeRO-{config.zero.stage}",
            "batch": f"{config.train.batch_size} pairs of segments, {micro_size} at a time on each rank",
            "steps": f"{trainer.num_steps:,}, from {start_from}",
            "output": str(config.output_dir),
        }
    )


def _conclude(config: RunConfig, ranks: Ranks, trainer: Trainer) -> None:
    metrics = config.output_dir / "metrics.jsonl"
    if not read_rows(metrics, "train"):
        # Another run's checkpoint that is as far as this one was to go.
        sys.stdout.write(f"done: step {trainer.progress.step} of {trainer.num_steps}, nothing was left to train\n")
        return
    summary = summarize(
        metrics,
        num_crops=trainer.stores["train"].num_crops,
        world_size=ranks.world_size,
        device=ranks.device.type,
        precision=config.train.precision,
        zero_stage=config.zero.stage,
        peak_flops=trainer.peak_flops,
    )
    sys.stdout.write(f"done: {config.objective.name}\n{write_summary(summary, config.output_dir)}\n")
    sys.stdout.write(f"  checkpoint   {trainer.checkpoints.folder / f'step-{trainer.progress.saved_step:08d}'}\n")


def _fail(error: Exception | str, *, speak: bool) -> int:
    if speak:
        sys.stderr.write(f"pretrain: {error}\n")
    return 2


if __name__ == "__main__":
    leave(main())
