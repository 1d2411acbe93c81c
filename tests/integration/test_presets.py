"""Presets train with one rank and with two: all of the paper's form, and of the official ones those that others combine.

Each rank trains all presets in one process, which saves startup time.
"""

import os
import warnings
from pathlib import Path
from unittest import mock

import pytest
from dataset_fixtures import write_dataset
from distributed_helpers import run_ranks

from engine.config import PretrainConfig, load_config
from engine.device import select_device
from engine.tasks import PretrainingTask
from engine.training.builders import build_trainer
from engine.training.distributed import Ranks, init_distributed
from engine.training.metric_writers import read_rows

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs" / "pretrain"
# Their global losses use each rank's own segments, so they depend on the number of ranks.
OWN_RANK = ["official_cmsc", "official_3kg", "official_simclr_rlm", "official_w2v_cmsc_rlm_physio4"]
PAPER = sorted(file.stem for file in CONFIGS.glob("*.yaml") if file.stem != "base" and not file.stem.startswith("official_"))
PRESETS = [*PAPER, "official_w2v", *OWN_RANK]
# Preset and leads: each preset unchanged, and the lead combinations of Table 2.
CASES = [(preset, 12) for preset in PRESETS] + [("w2v_cmsc_rlm", 6), ("cmsc", 3), ("w2v_cmsc_rlm", 2), ("w2v", 1)]

NUM_STEPS = 3
GLOBAL_MICRO_BATCH_SIZE = 4  # crops over all ranks; two micro-batches per step
TINY_MODEL = [
    "model.feature_channels=16",
    "model.width=32",
    "model.depth=1",
    "model.num_heads=2",
    "model.mlp_width=64",
    "model.pos_kernel=16",
    "model.pos_groups=4",
    # Dropout uses each rank's own generator; all other random numbers depend on the position in the batch.
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.input_dropout=0",
    "model.feature_dropout=0",
]
TINY_RUN = [
    "optimizer.learning_rate=1e-3",
    "train.device=cpu",
    "train.precision=fp32",
    f"train.steps={NUM_STEPS}",
    f"train.batch_size={2 * GLOBAL_MICRO_BATCH_SIZE}",
    "checkpoint.every_steps=null",
    "validation.every_steps=null",
    "logging.tensorboard=false",
    "data.loader=torch",
    "data.block_size=4",
    "data.num_threads=1",
    "resume=none",
]
TINY_LOCAL = ["num_codes=20", "code_width=32", "num_negatives=20", "final_width=32"]
LOCAL_OPTIONS = {"w2v": "objective", "w2v_cmsc": "objective.w2v"}  # section with the options of the local objective

# Case -> losses of each step.
Losses = dict[str, list[dict[str, float]]]


def case_id(case: tuple[str, int]) -> str:
    return f"{case[0]}-{case[1]}-leads"


def train_every_case(rank: int, num_ranks: int, dataset: Path, out: Path) -> Losses:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "XDG_CACHE_HOME": str(out / "cache")}
    warnings.simplefilter("ignore")
    ranks = init_distributed(select_device("cpu"))
    # Measuring the peak FLOP/s of each run would take half of the time.
    with mock.patch("engine.training.trainer.measure_peak_flops", return_value=1e12):
        return {case_id(case): train(case, ranks, dataset, out) for case in CASES}


def train(case: tuple[str, int], ranks: Ranks, dataset: Path, out: Path) -> list[dict[str, float]]:
    """Trains one case; returns its losses on the main rank, first of the training steps, then of the validation."""
    file = CONFIGS / f"{case[0]}.yaml"
    section = LOCAL_OPTIONS.get(load_config(PretrainConfig, [file]).objective.name)
    overrides = [*TINY_MODEL, *TINY_RUN, *(f"{section}.{option}" for option in TINY_LOCAL if section)]
    overrides += [f"train.micro_batch_size={GLOBAL_MICRO_BATCH_SIZE // ranks.world_size}", f"leads={case[1]}"]
    overrides += [f"data.path={dataset}", f"output_dir={out / case_id(case)}"]
    (out / case_id(case)).mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(load_config(PretrainConfig, [file], overrides), ranks, PretrainingTask)
    trainer.run()
    trainer.close()
    trainer.backend.destroy()
    metrics = out / case_id(case) / "metrics.jsonl"
    rows = [read_rows(metrics, kind) for kind in ("train", "valid")] if ranks.is_main else []
    return [
        {name: value for name, value in row.items() if name.startswith("loss") or name == "gradient_norm"}
        for kind in rows
        for row in kind
    ]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Losses]:
    """Returns number of ranks -> losses on the main rank."""
    folder = tmp_path_factory.mktemp("presets")
    dataset = write_dataset(folder / "dataset", {"pretrain": 24, "valid": 8})
    return {ranks: run_ranks(train_every_case, ranks, ranks, dataset, folder / f"{ranks}-ranks")[0] for ranks in (1, 2)}


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_preset_has_the_same_losses_with_one_rank_and_with_two(losses: dict[int, Losses], case: tuple[str, int]) -> None:
    one, two = (losses[ranks][case_id(case)] for ranks in (1, 2))
    for rows in (one, two):
        assert ["gradient_norm" in row for row in rows] == [True] * NUM_STEPS + [False]
        assert all(0 < row["loss"] < 1e3 for row in rows)
        assert all(row["gradient_norm"] > 0 for row in rows[:-1])
        assert len({row["loss"] for row in rows}) == NUM_STEPS + 1
    for mine, other in zip(one, two, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            if case[0] in OWN_RANK:
                continue
            assert other[name] == pytest.approx(mine[name], rel=1e-3 if name == "gradient_norm" else 2e-5), name


@pytest.mark.parametrize("preset", OWN_RANK)
def test_losses_of_own_ranks_depend_on_the_number_of_ranks(losses: dict[int, Losses], preset: str) -> None:
    one, two = (losses[ranks][case_id((preset, 12))][0] for ranks in (1, 2))
    assert abs(one["loss_global"] - two["loss_global"]) > 1e-3
    for name in one.keys() & {"loss_features_penalty"}:
        assert two[name] == pytest.approx(one[name], rel=1e-5)
