"""The two scales of the paper's tables: a tiny model on a simulated cohort, and the presets on a user's dataset.

At the tiny scale one cohort stands for the paper's databases: its first patients for Georgia (diagnosis), the next ones for
PTB-XL (the test of identification), the others for Ningbo, so that `ecg-data split --plan paper` divides it as it divides
PhysioNet 2021.
"""

from pathlib import Path
from typing import Final, NamedTuple

from _paper_runs import Settings

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.shards.dataset import Dataset
from data_tools.shards.plans import plans_info
from data_tools.splits.plans import PaperPlan
from data_tools.splits.writing import split_dataset
from data_tools.synthetic.cohort import write_cohort
from engine.options import UserError

COHORT_SEED: Final = 0
# Eighths of the patients.
_CORPORA: Final = {"georgia": 3, "ptb-xl": 2, "ningbo": 3}

_MODEL: Final = (
    "model.feature_channels=32", "model.feature_blocks=5", "model.width=64", "model.depth=2", "model.num_heads=4",
    "model.mlp_width=128", "model.pos_kernel=16", "model.dropout=0", "model.attention_dropout=0", "model.input_dropout=0",
    "model.feature_dropout=0",
)  # fmt: skip
_LOCAL: Final = ("num_codes=40", "code_width=64", "final_width=64")
_RUN: Final = (
    "train.precision=fp32", "logging.tensorboard=false", "logging.every_steps=20", "data.loader=torch", "data.num_threads=1",
    "validation.every_steps=null", "checkpoint.every_steps=100", "checkpoint.keep_last=1", "checkpoint.keep_best=false",
)  # fmt: skip
# Runs this short need a higher learning rate for what has random weights, and ArcFace a smaller scale and margin.
_DIAGNOSIS: Final = ("optimizer.learning_rate=5.0e-4", "optimizer.groups=[{match: head.*, learning_rate_scale: 40}]")
_IDENTIFICATION: Final = (
    "optimizer.learning_rate=1.0e-3", "optimizer.groups=[{match: loss.*, learning_rate_scale: 20}]", "task.scale=20",
    "task.margin=0.1", "validation.max_batches=1",
)  # fmt: skip


class TinyScale(NamedTuple):
    """The sizes of a tiny scale.

    Attributes:
        num_patients: of the cohort, a multiple of eight.
        pretrain: overrides of pre-training besides the model.
        finetune: overrides of fine-tuning.
        diagnosis: further overrides of Dx.
        identification: further overrides of Id.
    """

    num_patients: int
    pretrain: tuple[str, ...]
    finetune: tuple[str, ...]
    diagnosis: tuple[str, ...]
    identification: tuple[str, ...]


TINY: Final = TinyScale(
    num_patients=2000,
    pretrain=(
        "train.steps=2000", "train.batch_size=16", "optimizer.learning_rate=2.0e-3",
        "optimizer.schedule={name: cosine, warmup_steps: 50}",
    ),
    finetune=("optimizer.schedule={name: cosine, warmup_steps: 15}",),
    diagnosis=("train.steps=100", "train.batch_size=32", *_DIAGNOSIS),
    identification=("train.steps=100", "train.batch_size=64", *_IDENTIFICATION),
)  # fmt: skip
QUICK: Final = TinyScale(
    num_patients=160,
    pretrain=("train.steps=60", "train.batch_size=8", "optimizer.learning_rate=1.0e-3"),
    finetune=("train.steps=20", "train.batch_size=16", "optimizer.schedule={name: constant}"),
    diagnosis=_DIAGNOSIS,
    identification=_IDENTIFICATION,
)
QUICK_METHODS: Final = ("random", "w2v_cmsc_rlm")


def tiny_settings(scale: TinyScale, output: Path, cache: Path) -> Settings:
    """Returns the settings of a tiny scale; simulates and builds its dataset in the cache if it does not exist.

    Raises:
        ValueError: one line for the user.
    """
    return Settings(
        dataset=simulate(cache, scale.num_patients),
        output=output,
        pretrain=(*_MODEL, *_RUN, *scale.pretrain),
        local=_LOCAL,
        finetune=(*_RUN, *scale.finetune),
        tasks=(("Dx", scale.diagnosis), ("Id", scale.identification)),
    )


def paper_settings(output: Path, dataset: Path, pretrain: tuple[str, ...], finetune: tuple[str, ...]) -> Settings:
    """Returns the settings of the paper's scale: the presets, and the user's overrides.

    Raises:
        UserError: the dataset lacks a plan.
        DatasetError: the dataset cannot be read.
    """
    missing = [name for name in PaperPlan().names() if name not in plans_info(Dataset.open(dataset)).plans]
    if missing:
        raise UserError(f"{dataset}: no plan {', '.join(missing)}: make it with `ecg-data split {dataset} --plan paper`")
    return Settings(dataset, output, pretrain=pretrain, finetune=finetune, keeps_checkpoints=True)


def simulate(cache: Path, num_patients: int) -> Path:
    """Returns the dataset of a simulated cohort with the paper's plans, as three corpora; creates it if necessary.

    Args:
        cache: a folder that keeps it.
        num_patients: of the cohort.
    """
    folder = cache.resolve() / f"simulated-{num_patients}"
    dataset = folder / "dataset"
    if not (dataset / "manifest.json").is_file():
        cohort = write_cohort(folder / "wfdb", num_patients, COHORT_SEED)
        corpora = _divide(cohort.path, folder / "corpora", num_patients)
        build_dataset(BuildOptions("physionet2021", corpora, accept=frozenset({"links"})), dataset, num_workers=1)
    if "diagnosis" not in plans_info(Dataset.open(dataset)).plans:
        split_dataset(dataset, PaperPlan())
    return dataset


def _divide(cohort: Path, folder: Path, num_patients: int) -> tuple[Path, ...]:
    """Links the recordings of the cohort into a folder for each corpus; recordings are named P00001R1 and so on."""
    limits, total = [], 0
    for name, eighths in _CORPORA.items():
        total += eighths
        limits.append((total * num_patients // 8, name))
        (folder / name).mkdir(parents=True, exist_ok=True)
    for path in (cohort / "training").glob("*/*/P*R*"):
        number = int(path.name[1:].partition("R")[0])
        name = next(name for limit, name in limits if number <= limit)
        link = folder / name / path.name
        if not link.is_symlink():
            link.symlink_to(path)
    return tuple(folder / name for name in _CORPORA)
