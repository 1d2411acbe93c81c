import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.options import UserError
from engine.training.metric_writers import JsonLines, ProgressLines, read_rows
from engine.training.summary import plot_metrics, summarize, write_summary
from engine.training.throughput import StepClock, measure_peak_flops, peak_memory_bytes


def row(step: int, loss: float = 5.0) -> dict[str, float | int]:
    metrics = {"mfu": 0.5, "data_wait_share": 0.02, "peak_memory_gb": 1.0, "step_seconds": 0.1, "crops_per_second": 160.0}
    return {"step": step, "loss": loss, "accuracy_local": 0.5, "chance_local": 0.02, **metrics}


def test_a_resumed_run_continues_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = JsonLines(path, 0)
    for step in range(1, 6):
        writer.write("train", row(step))
    writer.close()
    with path.open("a") as file:
        file.write('{"kind": "train", "st')  # the run was killed in the middle of a line
    resumed = JsonLines(path, 3)
    resumed.write("train", row(4, 1.0))
    resumed.close()
    assert [(line["step"], line["loss"]) for line in read_rows(path, "train")] == [(1, 5.0), (2, 5.0), (3, 5.0), (4, 1.0)]


def test_a_nan_metric_is_null(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path / "metrics.jsonl", 0)
    writer.write("train", row(1, float("nan")))
    writer.close()
    assert read_rows(tmp_path / "metrics.jsonl", "train")[0]["loss"] is None


@pytest.mark.parametrize("line", ["[" * 100_000, "1" * 5000, "[1]", "nonsense"])
def test_damaged_lines_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 (is not valid JSON|lacks)"):
        JsonLines(path, 0)


def test_the_summary_counts_gpu_hours_for_200_epochs(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path / "metrics.jsonl", 0)
    for step in range(1, 41):
        writer.write("train", row(step, 10.0 - step / 10))
    writer.write("valid", {"step": 40, "loss": 7.0})
    writer.close()
    summary = summarize(
        tmp_path / "metrics.jsonl", score="loss", exported_step=None, unit="crops", num_samples=1600, num_parameters=2_500_000,
        world_size=4, device=torch.device("cpu"), precision="bf16", zero_stage=1, peak_flops=1e12,
    )  # fmt: skip
    assert summary.crops_per_second == 160.0
    assert summary.device_hours_200_epochs == pytest.approx(200 * 1600 / 160 / 3600 * 4)
    assert summary.loss_last < summary.loss_first
    text = write_summary(replace(summary, device="cuda", device_name="H100"), tmp_path)
    assert "200 epochs   of this model (2.5M parameters) on these crops would take 2.22 GPU-hours on H100" in text
    assert "loss         9.750 -> 6.150 (medians of the first and last 4 logged steps)" in text
    assert "accuracy     local 50% (chance 2%)" in text
    assert "validation   loss 7.000, augmentations and masks as in training, without dropout" in text
    assert (tmp_path / "loss.png").stat().st_size > 10_000


def test_the_summary_of_fine_tuning_gives_the_scores_of_the_exported_model(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path / "metrics.jsonl", 0)
    for step in (1, 2):
        writer.write("train", row(step))
        writer.write("valid", {"step": step, "loss": 7.0 - step, "auroc_macro": 1 / step, "challenge_score": 0.25})
    writer.close()
    summary = summarize(
        tmp_path / "metrics.jsonl", score="auroc_macro", exported_step=1, unit="segments", num_samples=None, num_parameters=1,
        world_size=1, device=torch.device("cpu"), precision="fp32", zero_stage=1, peak_flops=1e12,
    )  # fmt: skip
    assert summary.valid_exported == {"loss": 6.0, "auroc_macro": 1.0, "challenge_score": 0.25}
    text = write_summary(summary, tmp_path)
    assert "validation   loss 6.0000, AUROC 1.0000, CinC score 0.2500 (of the exported model, step 1)" in text
    assert "speed        160.0 segments/s" in text
    assert "epochs" not in text
    assert "masks" not in text


def test_the_plot_has_the_score_that_selects_the_exported_model(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path / "metrics.jsonl", 0)
    for step in (1, 2, 3):
        writer.write("train", row(step))
        writer.write("valid", {"step": step, "loss": 7.0 - step, "auroc_macro": (float("nan"), 0.75, 0.5)[step - 1]})
    writer.close()
    panels = plot_metrics(tmp_path / "metrics.jsonl", "auroc_macro", 2).axes
    assert [axes.get_title() for axes in panels] == ["AUROC", "loss", "accuracy local"]
    lines = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in panels[0].lines}
    assert lines == {"validation": [[2, 0.75], [3, 0.5]], "exported model": [[2, 0.75]]}
    legend = panels[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["validation", "exported model"]
    assert [line.get_label() for line in panels[1].lines][1:] == ["training", "validation"]


def test_a_score_that_is_never_defined_has_no_panel(tmp_path: Path) -> None:
    writer = JsonLines(tmp_path / "metrics.jsonl", 0)
    writer.write("train", row(1))
    writer.write("valid", {"step": 1, "loss": 7.0, "auroc_macro": float("nan")})
    writer.close()
    assert plot_metrics(tmp_path / "metrics.jsonl", "auroc_macro", 1).axes[0].get_title() == "loss"


def test_a_step_is_timed_up_to_stop() -> None:
    clock = StepClock(torch.device("cpu"))
    time.sleep(0.02)
    clock.stop()
    seconds = clock.seconds
    time.sleep(0.02)
    assert clock.seconds == seconds >= 0.02


def test_peak_flops_are_positive_and_memory_is_counted() -> None:
    assert measure_peak_flops(torch.device("cpu"), torch.float32, repeats=1) > 1e8
    assert peak_memory_bytes(torch.device("cpu")) > 50e6


def test_a_log_has_elapsed_and_remaining_time_speed_accuracies_and_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter([100.0, 110.0, 115.0, 130.0, 140.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    lines = ProgressLines(first_step=10, last_step=16, every_seconds=20, unit="crops")
    for step in (11, 12, 13):
        lines.write("train", row(step))
    lines.write("valid", row(13, 4.0))
    assert capsys.readouterr().err.splitlines() == [
        "step 11/16: 00:10 elapsed, 00:50 left, loss 5.000, local 50% (chance 2%), 160.0 crops/s, 1.0 GB",
        "step 13/16: 00:30 elapsed, 00:30 left, loss 5.000, local 50% (chance 2%), 160.0 crops/s, 1.0 GB",
        "step 13/16: validation loss 4.0000, local 50% (chance 2%)",
    ]
