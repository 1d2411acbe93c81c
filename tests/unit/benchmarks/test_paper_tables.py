import csv
import json
import math
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from _paper_cells import METHODS, RANDOM, Cell, Encoder, PaperValue, Row, all_cells, read_paper_values, table_rows
from _paper_estimate import recorded_speed, remaining
from _paper_jobs import Job, train
from _paper_pool import Devices, run_all
from _paper_protocol import Benchmark, ProtocolJob, parse_benchmark
from _paper_protocol import to_markdown as protocol_markdown
from _paper_report import (
    Score,
    best_rows,
    claims_json,
    collect,
    compare,
    difference,
    half_interval,
    to_html,
    to_json,
    to_markdown,
)
from _paper_runs import CONFIGS, CellJob, EncoderJob, Settings
from _paper_scales import QUICK, simulate, tiny_settings
from distributed_helpers import run_ranks
from paper_tables import main
from scipy import stats

from engine.device import select_device
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.distributed import Ranks, init_distributed

TINY_MODEL = (
    "model.feature_channels=16", "model.width=32", "model.depth=1", "model.num_heads=2", "model.mlp_width=32",
    "model.pos_kernel=8", "model.pos_groups=4",
)  # fmt: skip
RUN = ("train.precision=fp32", "train.batch_size=4", "logging.tensorboard=false", "data.loader=torch", "train.steps=4")
LOCAL = ("num_codes=8", "code_width=16", "final_width=16")


@dataclass(frozen=True)
class Wait(Job):
    """A job of no use."""

    path: Path
    content: str = "done"

    @property
    def folder(self) -> Path:
        return self.path

    def make(self, ranks: Ranks) -> dict[str, Any]:
        with (self.path / "calls").open("a") as file:
            file.write("x")
        if self.content == "broken":
            raise RuntimeError("broken")
        return {"content": self.content}


ONE_RANK = Ranks(0, 1, select_device("cpu"))


def test_values_are_those_of_the_paper() -> None:
    values = read_paper_values()
    assert [sum(row.table == table for row in values) for table in (1, 2, 3, 4)] == [14, 10, 8, 10]
    assert values[Row(1, "W2V+CMSC+RLM", "Dx")][1] == PaperValue(0.554, 0.016)
    assert values[Row(2, "W2V+CMSC", "Id")][12] == PaperValue(0.550, 0.008)  # 0.009 in Table 1
    assert list(values[Row(2, "W2V+CMSC+RLM", "Dx")]) == [12, 6, 3, 2]
    assert sum(len(own) for own in values.values()) == 42 * 5 - 2


def test_every_method_is_a_preset() -> None:
    assert {row.method for row in read_paper_values()} == set(METHODS)
    for preset in set(METHODS.values()) - {RANDOM}:
        assert (CONFIGS / "pretrain" / f"{preset}.yaml").is_file(), preset


def test_cells_of_a_row_share_an_encoder_except_in_table_2() -> None:
    cells = all_cells(table_rows([1]), [1, 2, 3])
    assert len(cells) == 7 * 2 * 5 * 3
    assert len({cell.encoder for cell in cells}) == 7 * 3
    assert all(cell.is_padded == (cell.num_leads < 12) for cell in cells)
    lone = all_cells(table_rows([2]), [1])
    assert len({cell.encoder for cell in lone}) == 5 * 5 - 1
    assert not any(cell.is_padded for cell in lone)


def test_tables_share_cells() -> None:
    first, others = set(all_cells(table_rows([1]), [1])), all_cells(table_rows([2, 3, 4]), [1])
    # Five methods at 12 leads, of which three with padded leads too: W2V and CMSC in Table 3, W2V+CMSC+RLM in Table 4.
    assert len(first & set(others)) == 5 * 2 + 3 * 8
    names = [cell.name for cell in {*first, *others}]
    assert len(set(names)) == len(names)


def test_methods_are_chosen_by_name_or_preset() -> None:
    assert {row.method for row in table_rows([1, 4], ["w2v_cmsc_rlm", "Random Init."])} == {
        "Random Init.",
        "W2V+CMSC+RLM",
        "RLM",
    }


def test_interval_is_that_of_students_t() -> None:
    values = (0.61, 0.62, 0.66)
    low, high = stats.t.interval(0.95, 2, sum(values) / 3, stats.sem(values))
    assert half_interval(values) == pytest.approx((high - low) / 2, rel=1e-12)
    assert math.isnan(half_interval((0.5,)))


def test_difference_has_the_interval_of_welchs_test() -> None:
    first, second = (0.61, 0.62, 0.66), (0.5, 0.52, 0.51)
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    mean, half = difference(first, second)
    assert (mean - half, mean + half) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert difference((0.75, 0.75), (0.5, 0.5)) == (0.25, 0.0)


@pytest.fixture
def table() -> dict[Row, dict[int, Score]]:
    paper = PaperValue(0.618, 0.002)
    return {
        Row(1, "Random Init.", "Dx"): {12: Score((0.5, 0.6, 0.7), 3, paper), 1: Score((), 3, None)},
        Row(1, "<W2V>", "Dx"): {12: Score((0.8, 0.9), 3, paper), 1: Score((0.4,), 3, paper)},
    }


def test_markdown_shows_means_intervals_the_paper_and_the_best(table: Any) -> None:
    text = to_markdown(table, {"scale": "tiny"})
    assert "| Random Init. | Dx | 0.600 ± 0.248 (0.618 ± 0.002) |" in text
    assert "**0.850 ± 0.635 [2/3]** (0.618 ± 0.002)" in text
    assert best_rows(table) == {(Row(1, "<W2V>", "Dx"), 12)}  # at one lead there is nothing to compare with


def test_claims_hold_if_the_interval_of_the_difference_excludes_zero() -> None:
    high, low, wide = (Score(values, 3, None) for values in ((0.5, 0.51, 0.52), (0.3, 0.31, 0.32), (0.1, 0.4, 0.9)))
    table = {
        Row(1, "Random Init.", "Id"): {12: low, 1: wide},
        Row(1, "W2V+CMSC", "Id"): {12: high, 1: Score((0.5,), 3, None)},
        Row(1, "W2V+CMSC+RLM", "Id"): {12: high, 1: high},
    }
    claims = {(claim.other, claim.num_leads): claim for claim in compare(table)}
    assert {place: claim.holds for place, claim in claims.items()} == {
        ("Random Init.", 12): True,
        ("Random Init.", 1): False,
        ("W2V+CMSC", 12): False,
    }
    assert f"| W2V+CMSC+RLM − Random Init. | Id | +0.200 ± {claims['Random Init.', 12].interval:.3f} ✓ |" in to_markdown(
        table, {}
    )
    assert to_html(table, {}, "").count("✓</td>") == 1
    assert [row["holds"] for row in claims_json(table)].count(True) == 1


def test_html_page_stands_alone(table: Any) -> None:
    page = to_html(table, {"scale": "tiny & quick"}, "Tables")
    assert "tiny &amp; quick" in page
    assert "&lt;W2V&gt;" in page
    assert not any(word in page for word in ("http", "src=", "<W2V>", "@import"))
    assert page.count('class="best"') == 1


def test_json_holds_the_scores_of_each_seed() -> None:
    table = {Row(2, "W2V", "Dx"): {12: Score((0.5, 0.6, 0.7), 3, PaperValue(0.618, 0.002)), 1: Score((), 3, None)}}
    rows = to_json(table)
    assert (rows[0]["scores"], rows[0]["paper"], rows[0]["padded"]) == ([0.5, 0.6, 0.7], [0.618, 0.002], False)
    assert (rows[1]["mean"], rows[1]["paper"]) == (None, None)
    assert json.loads(json.dumps(rows)) == rows


def test_finished_job_is_skipped_and_a_failed_one_runs_again(tmp_path: Path) -> None:
    job, broken = Wait(tmp_path / "a"), Wait(tmp_path / "b", "broken")
    for _ in range(2):
        job.run(ONE_RANK)
        with pytest.raises(RuntimeError):
            broken.run(ONE_RANK)
    assert ((tmp_path / "a" / "calls").read_text(), (tmp_path / "b" / "calls").read_text()) == ("x", "xx")
    result = job.result()
    assert result is not None
    assert result["content"] == "done"
    assert broken.result() is None


def test_damaged_result_is_reported(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"score"')
    with pytest.raises(UserError, match=r"not valid JSON; remove .* to run this job again"):
        Wait(tmp_path).result()


def test_unfinished_cells_are_shown_as_missing(tmp_path: Path) -> None:
    settings, row = Settings(tmp_path, tmp_path), Row(1, "W2V", "Id")
    job = CellJob(settings, Cell(Encoder("w2v", 12, 2), "Id", 3))
    job.folder.mkdir(parents=True)
    (job.folder / "result.json").write_text('{"score": 0.25}')
    scores = collect(settings, [row], [1, 2, 3])[row]
    assert scores[3].values == (0.25,)
    assert scores[3].text() == "0.250 [1/3]"
    assert scores[12].text() == "–"
    encoders, cells = remaining([CellJob(settings, cell) for cell in all_cells([row], [1, 2])])
    assert (len(encoders), len(cells)) == (2, 9)


def test_speed_is_that_of_a_gpu_if_one_is_recorded(tmp_path: Path) -> None:
    for device, speed in (("cpu", 9.0), ("cuda", 3.0)):
        steps = [{"crops_per_second": {"median": speed}, "precision": "bf16"}]
        content = {"config": {"device": device, "ranks": 1}, "metrics": {"steps": steps}}
        (tmp_path / f"train-step-{device}.json").write_text(json.dumps(content))
    assert recorded_speed(tmp_path) == (3.0, "train-step-cuda.json, bf16, cuda")
    with pytest.raises(UserError, match="--crops-per-second"):
        recorded_speed(tmp_path / "empty")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scale", "paper"], "needs --data"),
        (["--data", "d"], "needs --scale paper"),
        (["--seeds", "0"], "at least 1"),
        (["--methods", "w2v", "w3v"], "unknown method 'w3v'; known: Random Init., W2V"),
        (["--methods", "Physio(4)"], "do not contain Physio(4)"),
        (["--protocol", "m"], "needs --benchmark"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A tiny model on a cohort of 24 patients."""
    folder = tmp_path_factory.mktemp("paper")
    return Settings(simulate(folder, 24), folder / "out", TINY_MODEL + RUN, LOCAL, RUN)


def test_cohort_has_the_plans_of_the_paper(settings: Settings) -> None:
    manifest = json.loads((settings.dataset / "manifest.json").read_text())
    plans = manifest["splits"]["plans"]
    assert set(plans) == {"pretrain", "diagnosis", "identification"}
    assert plans["identification"]["counts"]["probe"]["patients"] == 6
    patients = [plans["diagnosis"]["counts"][split]["patients"] for split in ("train", "valid", "test")]
    assert sum(patients) == 9
    again = tiny_settings(QUICK._replace(num_patients=24), settings.output, settings.dataset.parents[1])
    assert again.dataset == settings.dataset


def _interrupt_and_resume(rank: int, cell: CellJob) -> int:
    """Pre-trains the encoder of a cell for three steps only, then runs both jobs."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}
    warnings.simplefilter("ignore")
    ranks = init_distributed(select_device("cpu"))
    config = cell.needs.config()
    short = config.model_copy(update={"train": config.train.model_copy(update={"steps": 3})})
    # Measuring the peak FLOP/s would take half of the time.
    with mock.patch("engine.training.trainer.measure_peak_flops", return_value=1e12):
        num_steps = train(short, PretrainingTask, ranks)
        for job in (cell.needs, cell):
            job.run(ranks)
    return num_steps


def test_interrupted_pretraining_is_resumed_and_fine_tuned(settings: Settings) -> None:
    cell = CellJob(settings, Cell(Encoder("w2v_cmsc_rlm", 12, 1), "Dx", 2))
    assert run_ranks(_interrupt_and_resume, 1, cell) == [3]
    pretrained, tested = cell.needs.result(), cell.result()
    assert pretrained is not None
    assert tested is not None
    assert pretrained["steps"] == 1
    assert -1 <= tested["score"] <= 1
    assert (cell.needs.model / "model.safetensors").is_file()
    assert not (cell.folder / "run" / "checkpoints").exists()
    assert cell.config().leads == 2


def test_failed_encoder_stops_only_its_own_cells(settings: Settings, tmp_path: Path) -> None:
    absent = replace(settings, output=tmp_path, dataset=tmp_path / "absent")
    good = EncoderJob(absent, Encoder(RANDOM, 12, 1))  # needs no data
    bad = CellJob(absent, Cell(Encoder("w2v", 12, 1), "Id", 12))
    lines: list[str] = []
    tally = run_all([good, bad], Devices((), 1), lines.append)
    assert good.result() is not None
    assert tally.num_done == 1
    assert [line.partition(":")[0] for line in tally.failures] == ["w2v-12-lead-seed1", "w2v-Id-12-lead-seed1"]
    assert "absent" in tally.failures[0]
    assert all("\n" not in line for line in [*lines, *tally.failures])
    assert tally.conclude() == 1


def test_protocol_reads_benchmarks_and_writes_labels(settings: Settings, tmp_path: Path) -> None:
    dataset = str(settings.dataset)
    benchmark = parse_benchmark(["cpsc2018", dataset, "diagnosis"], tmp_path)
    assert benchmark.table is not None
    with benchmark.table.open(newline="") as file:
        labels = {row["key"]: row["LBBB"] == "1" for row in csv.DictReader(file)}
    samples = pq.read_table(settings.dataset / "samples.parquet", columns=["key", "labels"]).to_pylist()
    assert labels == {row["key"]: "164909002" in row["labels"] for row in samples}
    assert 0 < sum(labels.values()) < len(labels)
    super_classes = parse_benchmark(["ptbxl_super", dataset, "fold", "ptbxl_database.csv"], tmp_path)
    assert "task.scheme=ptbxl_superdiagnostic" in super_classes.overrides()
    with pytest.raises(UserError, match="needs DATASET PLAN and ptbxl_database"):
        parse_benchmark(["ptbxl_all", dataset, "fold"], tmp_path)
    with pytest.raises(UserError, match="unknown name 'chapman'; known: ptbxl_super"):
        parse_benchmark(["chapman", dataset, "fold"], tmp_path)


def test_protocol_table_has_the_published_values(tmp_path: Path) -> None:
    benchmark = Benchmark("georgia", tmp_path, "diagnosis")
    jobs = [ProtocolJob(tmp_path, tmp_path, "mine", benchmark, mode, seed) for mode in ("full", "linear") for seed in (1, 2)]
    for job, score in zip(jobs[:2], (0.5, 0.75), strict=True):
        job.folder.mkdir(parents=True)
        (job.folder / "result.json").write_text(json.dumps({"score": score}))
    lines = protocol_markdown(jobs).splitlines()
    assert "| ECG-FM, published | full | 0.912 |" in lines
    assert "| ECG-FM, published | linear | 0.847 |" in lines
    assert f"| mine | full | 0.625 ± {half_interval((0.5, 0.75)):.3f} |" in lines
    assert "| mine | linear | – |" in lines
