"""Pre-trains an ECG encoder.

    deepspeed engine/pretrain.py --config configs/pretrain/w2v_cmsc_rlm.yaml data.path=DATASET [key.path=value ...]

init_from=MODEL starts from the weights of a model. Run it again with the same output_dir to resume.
"""

from typing import NoReturn

from engine.config import PretrainConfig
from engine.interop.initial_model import find_initial_model
from engine.tasks import PretrainingTask
from engine.training.distributed import Ranks, exit_process
from engine.training.script import run_script

_EXAMPLE = """deepspeed --num_gpus 4 engine/pretrain.py --config configs/pretrain/w2v_cmsc_rlm.yaml \\
      data.path=datasets/physionet2021 output_dir=runs/first train.batch_size=512 zero.stage=2"""


def main() -> int:
    """Runs the script; returns the exit status."""
    return run_script(
        PretrainingTask, prog="pretrain.py", description="Pre-trains an ECG encoder.", example=_EXAMPLE, prepare=_prepare
    )


def _prepare(config: PretrainConfig, ranks: Ranks) -> tuple[type[PretrainingTask], PretrainConfig]:
    """Finds or makes the folder of the model to start from."""
    return PretrainingTask, find_initial_model(config, ranks, "pretrain")


def command() -> NoReturn:
    """Runs ``ecg-pretrain``."""
    exit_process(main())


if __name__ == "__main__":
    command()
