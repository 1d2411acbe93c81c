"""What fine-tuning starts from."""

from pathlib import Path

import pytest
import torch
from fairseq_checkpoints import golden_cfg, random_weights, save_checkpoint
from saved_model import save_tiny_encoder
from tiny_model import tiny_model

from engine.interop.initial_model import resolve_initial_model
from engine.interop.native import objective_section
from engine.models import load
from engine.options import UserError
from engine.training.checkpoint import write_checkpoint
from engine.training.checkpoint_files import MOMENTS, ParameterSlice
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo


def write_run(folder: Path, scores: dict[int, float | None]) -> Path:
    """Writes a run's checkpoints: step -> validation loss; the mask embedding holds the step."""
    model = tiny_model("cmsc", num_leads=2)
    config = {"leads": 2, "model": model.encoder.options.model_dump(), "objective": objective_section("cmsc", {})}
    for step, score in scores.items():
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        weights["encoder.mask_embedding.embedding"][:] = step
        info = CheckpointInfo(
            format_version=FORMAT_VERSION, step=step, loader={"cursor": 0}, config=config, world_size=1, zero_stage=0,
            shapes={name: list(tensor.shape) for name, tensor in weights.items()}, score=score,
        )  # fmt: skip
        slices = [
            ParameterSlice(name, 0, tensor.view(-1), {key: torch.zeros(tensor.numel()) for key in MOMENTS})
            for name, tensor in weights.items()
        ]
        write_checkpoint(folder / "checkpoints" / f"step-{step:08d}", info, slices)
    return folder


def step_of(folder: Path) -> float:
    return load(folder).encoder.mask_embedding.embedding[0].item()


def test_a_models_folder_is_used_as_it_is(tmp_path: Path) -> None:
    model = save_tiny_encoder(tmp_path / "model")
    assert resolve_initial_model(model, tmp_path / "out") == (model, [])
    folder, notes = resolve_initial_model(tmp_path, tmp_path / "out")  # as of a run that has exported it
    assert folder == model
    assert notes == [f"init_from: using {model}"]


def test_the_runs_own_folder_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {5: 1.0})
    with pytest.raises(UserError, match=r"^init_from: .*/run is the output_dir of this run: set another output_dir$"):
        resolve_initial_model(run, tmp_path / "other" / ".." / "run")
    assert not (run / "init_model").exists()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [({5: 1.5, 10: 0.5, 15: 0.7}, 10), ({5: None, 10: None}, 10), ({5: 3.0, 10: None}, 5), ({5: float("nan")}, 5)],
)
def test_a_run_is_its_best_or_newest_checkpoint(tmp_path: Path, scores: dict[int, float | None], expected: int) -> None:
    run = write_run(tmp_path / "run", scores)
    folder, notes = resolve_initial_model(run, tmp_path / "out")
    assert folder == tmp_path / "out" / "init_model"
    assert step_of(folder) == expected
    assert notes[-1] == f"init_from: converted {run / 'checkpoints' / f'step-{expected:08d}'} to {folder}"


def test_a_resumed_run_keeps_what_was_converted(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", {5: 1.0}), tmp_path / "out"
    checkpoint = run / "checkpoints" / "step-00000005"
    folder, _ = resolve_initial_model(checkpoint, out)
    write_run(tmp_path / "run", {7: 0.5})
    assert step_of(resolve_initial_model(run, out)[0]) == 7  # nothing is trained yet
    write_run(out, {1: None})
    write_run(tmp_path / "run", {9: 0.2})
    assert step_of(resolve_initial_model(run, out)[0]) == 7
    assert folder == out / "init_model"


def test_an_official_checkpoint_is_converted(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), random_weights("group_norm"))
    folder, notes = resolve_initial_model(checkpoint, tmp_path / "out")
    assert load(folder).config.encoder.norm == "group_norm"
    assert any(note.startswith("assumed: --normalization none") for note in notes)


def test_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"init_from: .*absent is not the folder of a model, run or checkpoint"):
        resolve_initial_model(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "file.pt").write_text("text")
    with pytest.raises(UserError, match=r"not a torch\.save file"):
        resolve_initial_model(tmp_path / "file.pt", tmp_path / "out")
