"""Every preset pre-trains, with one rank and with two: all of them in one process a rank, which starts once."""

import os
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dataset_fixtures import write_dataset
from distributed_helpers import run_ranks

from engine.config_files import load_config
from engine.training.distributed import Ranks, choose_device, start
from engine.training.setup import prepare

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs" / "pretrain"
PRESETS = sorted(file.stem for file in CONFIGS.glob("*.yaml") if file.stem != "base")
# Preset and leads: each preset as it is, and the models of Table 2.
CASES = [(preset, 12) for preset in PRESETS] + [("w2v_cmsc_rlm", 6), ("cmsc", 3), ("w2v_cmsc_rlm", 2), ("w2v", 1)]
# By design, its global loss depends on the number of ranks.
OWN_RANK = "official_w2v_cmsc_rlm"

NUM_STEPS = 3
PAIRS_AT_A_TIME = 4  # over all ranks, two of them a step
TINY_MODEL = [
    "model.feature_channels=16",
    "model.width=32",
    "model.depth=1",
    "model.num_heads=2",
    "model.mlp_width=64",
    "model.pos_kernel=16",
    "model.pos_groups=4",
    # Dropout draws from each rank's own generator; all else is drawn by position in the batch.
    "model.dropout=0",
    "model.attention_dropout=0",
    "model.input_dropout=0",
    "model.feature_dropout=0",
]
TINY_RUN = [
    "optimizer.learning_rate=1e-3",
    "train.device=cpu",
    "train.precision=fp32",
    "train.epochs=null",
    f"train.steps={NUM_STEPS}",
    f"train.batch_size={2 * PAIRS_AT_A_TIME}",
    "checkpoint.every_steps=null",
    "data.loader=torch",
    "data.block_size=4",
    "data.num_threads=1",
    "resume=none",
]
TINY_LOCAL = ["num_codes=20", "code_width=32", "num_negatives=20", "final_width=32"]
LOCAL_OPTIONS = {"w2v": "objective", "w2v_cmsc": "objective.w2v"}  # where an objective keeps those of its local part

# Rows of the figures of each case, under its name.
Figures = dict[str, list[dict[str, float]]]


def name_of(case: tuple[str, int]) -> str:
    return f"{case[0]}-{case[1]}-leads"


class Rows:
    """A writer that keeps the losses."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def write(self, kind: str, row: Any) -> None:
        kept = {key: value for key, value in row.items() if key.startswith("loss") or key == "gradient_norm"}
        self.rows.append({"is_valid": float(kind == "valid"), **kept})

    def close(self) -> None:
        """Nothing is open."""


def train_every_case(rank: int, num_ranks: int, dataset: Path, out: Path) -> Figures:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_SIZE": str(num_ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "XDG_CACHE_HOME": str(out / "cache")}
    warnings.simplefilter("ignore")
    ranks = start(choose_device("cpu"))
    # Half of the time would go into the yardstick of the MFU, once for each run.
    with mock.patch("engine.training.setup.measure_peak_flops", return_value=1e12):
        return {name_of(case): train(case, ranks, dataset, out) for case in CASES}


def train(case: tuple[str, int], ranks: Ranks, dataset: Path, out: Path) -> list[dict[str, float]]:
    """Trains one case; its rows."""
    file = CONFIGS / f"{case[0]}.yaml"
    place = LOCAL_OPTIONS.get(load_config([file]).objective.name)
    words = [*TINY_MODEL, *TINY_RUN, *(f"{place}.{option}" for option in TINY_LOCAL if place)]
    words += [f"train.micro_batch_size={PAIRS_AT_A_TIME // ranks.world_size}", f"leads={case[1]}"]
    words += [f"data.path={dataset}", f"output_dir={out / name_of(case)}"]
    trainer = prepare(load_config([file], words), ranks)
    writer = Rows()
    trainer.metric_writers = [writer]
    trainer.run()
    trainer.close()
    trainer.engine.destroy()
    return writer.rows


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Figures]:
    """Of rank 0, by the number of ranks."""
    folder = tmp_path_factory.mktemp("presets")
    dataset = write_dataset(folder / "dataset", {"pretrain": 24, "valid": 8})
    return {ranks: run_ranks(train_every_case, ranks, ranks, dataset, folder / f"{ranks}-ranks")[0] for ranks in (1, 2)}


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_preset_trains_with_one_rank_and_with_two(figures: dict[int, Figures], case: tuple[str, int]) -> None:
    one, two = (figures[ranks][name_of(case)] for ranks in (1, 2))
    for rows in (one, two):
        assert [row["is_valid"] for row in rows] == [0] * NUM_STEPS + [1]
        assert all(0 < row["loss"] < 1e3 for row in rows)
        assert all(row["gradient_norm"] > 0 for row in rows[:-1])
        assert len({row["loss"] for row in rows}) == NUM_STEPS + 1
    for mine, other in zip(one, two, strict=True):
        assert mine.keys() == other.keys()
        for name in mine:
            if case[0] == OWN_RANK:
                continue
            assert other[name] == pytest.approx(mine[name], rel=1e-3 if name == "gradient_norm" else 2e-5), name


def test_only_the_official_preset_depends_on_the_number_of_ranks(figures: dict[int, Figures]) -> None:
    one, two = (figures[ranks][name_of((OWN_RANK, 12))][0] for ranks in (1, 2))
    assert abs(one["loss_global"] - two["loss_global"]) > 1e-3
    assert two["loss_features_penalty"] == pytest.approx(one["loss_features_penalty"], rel=1e-5)
