"""Fine-tunes an ECG encoder.

    deepspeed engine/finetune.py --config configs/finetune/diagnosis.yaml data.path=DATASET init_from=MODEL [key.path=value ...]

The model of the best checkpoint is exported to OUTPUT_DIR/model. Run the command again with the same output_dir to resume.
"""

from typing import NoReturn

from engine.config import FinetuneConfig
from engine.interop.initial_model import find_initial_model
from engine.tasks import FinetuningTask, IdentificationTask, LabelTask
from engine.training.distributed import Ranks, exit_process
from engine.training.script import run_script

_EXAMPLE = """deepspeed --num_gpus 1 engine/finetune.py --config configs/finetune/diagnosis.yaml \\
      data.path=datasets/physionet2021 init_from=models/first output_dir=runs/diagnosis leads=2"""

TASKS: dict[str, type[FinetuningTask]] = {"labels": LabelTask, "identification": IdentificationTask}
"""``task.name`` in a configuration -> task."""


def main() -> int:
    """Runs the script; returns the exit status."""
    return run_script(
        FinetuningTask,  # type: ignore[type-abstract] # _prepare chooses the task
        prog="finetune.py",
        description="Fine-tunes an ECG encoder.",
        example=_EXAMPLE,
        prepare=_prepare,
    )


def _prepare(config: FinetuneConfig, ranks: Ranks) -> tuple[type[FinetuningTask], FinetuneConfig]:
    """Chooses the task, and finds or makes the folder of the model to start from."""
    return TASKS[config.task.name], find_initial_model(config, ranks, "finetune")


def command() -> NoReturn:
    """Runs ``ecg-finetune``."""
    exit_process(main())


if __name__ == "__main__":
    command()
