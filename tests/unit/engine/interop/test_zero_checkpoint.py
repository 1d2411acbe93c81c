"""A run's checkpoint, of every format version and ZeRO stage, to the native folder."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from old_checkpoints import NUM_UPDATES, moments_of, partition, replace_file, write_old_checkpoint
from tiny_model import tiny_model
from torch import Tensor

import engine.models
from engine.data.training_sets import TrainingSet, read_training_sets
from engine.interop.deepspeed_files import convert_checkpoint, join_pieces
from engine.interop.native import load_tensors, objective_section
from engine.interop.zero_checkpoint import import_checkpoint
from engine.options import UserError
from engine.training.checkpoint import read_checkpoint, read_weights, write_checkpoint
from engine.training.checkpoint_files import MOMENTS, ParameterSlice, read_slices
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo

MODEL_FILE = "deepspeed/mp_rank_00_model_states.pt"
SHAPES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=6
)
OLD = pytest.mark.parametrize(("stage", "num_ranks"), [(0, 1), (1, 1), (1, 3), (2, 2), (3, 1), (3, 2), (3, 3)])


@given(SHAPES, st.integers(1, 5))
def test_partitions_are_joined(shapes: dict[str, list[int]], num_ranks: int) -> None:
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    joined = join_pieces(partition(tensors, num_ranks), {name: tensor.shape for name, tensor in tensors.items()})
    assert joined.keys() == tensors.keys()
    assert all(torch.equal(joined[name], tensor) for name, tensor in tensors.items())


def test_partitions_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 5"):
        join_pieces([torch.zeros(4)], {"w": torch.Size([5])})


def tiny_run() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns weights and configuration of a run."""
    model = tiny_model("w2v_cmsc", num_leads=2)
    objective = objective_section(
        "w2v_cmsc", {"w2v": {"final_width": 16, "code_width": 16, "num_codes": 10, "num_negatives": 20}}
    )
    config = {
        "leads": 2,
        "model": model.encoder.options.model_dump(exclude={"num_leads"}),
        "objective": objective,
        "optimizer": {},
    }
    return model.state_dict(), config


def write_old(folder: Path, stage: int, num_ranks: int, **changes: Any) -> dict[str, Tensor]:
    """Writes a checkpoint as an older release did; returns its weights."""
    weights, config = tiny_run()
    write_old_checkpoint(folder, weights, stage, num_ranks, **{"config": config, **changes})
    return weights


def write_new(folder: Path, **changes: Any) -> dict[str, Tensor]:
    """Writes a checkpoint in the current format; returns its weights."""
    weights, config = tiny_run()
    info = CheckpointInfo(
        format_version=FORMAT_VERSION, step=7, loader={"fingerprint": "abc", "cursor": 28}, config=config, world_size=1,
        zero_stage=1, shapes={name: list(weight.shape) for name, weight in weights.items()}, versions={"torch": "2"},
    )  # fmt: skip
    slices = [ParameterSlice(n, 0, w.flatten(), {k: m.flatten() for k, m in moments_of(w).items()}) for n, w in weights.items()]
    write_checkpoint(folder, info, slices)
    content = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps(content | changes))
    return weights


def test_the_weights_are_those_of_the_run(tmp_path: Path) -> None:
    origin = {"dataset": "abc", "plan": "pretrain", "split": "train", "crops": "def"}
    check_model(tmp_path, write_new(tmp_path / "step-00000007", loader={"fingerprint": "def", "samples": origin, "cursor": 28}))
    provenance = engine.models.load(tmp_path / "model").config.provenance
    assert read_training_sets(provenance["pretraining_set"]) == (TrainingSet.model_validate(origin),)
    assert read_training_sets(None) == ()
    assert read_training_sets({"mixture": [{"dataset": "abc"}]}) == ()
    mixture = {"mixture": [origin, {**origin, "dataset": "xyz"}]}
    assert read_training_sets(mixture) == tuple(TrainingSet.model_validate(each) for each in mixture["mixture"])


def test_a_run_that_started_from_a_model_has_the_sets_of_both(tmp_path: Path) -> None:
    first, second = ({"dataset": name, "plan": None, "split": "pretrain", "crops": name} for name in ("abc", "def"))
    loader = {"fingerprint": "def", "samples": second, "cursor": 28}
    origin = {
        "initial_model": "models/first",
        "pretraining_set": first,
        "finetuning_set": first,
        "step": -1,
        "mode | head": "x",
    }
    write_new(tmp_path / "step-00000007", loader=loader, provenance=origin)
    import_checkpoint(tmp_path / "step-00000007", tmp_path / "model")
    provenance = engine.models.load(tmp_path / "model").config.provenance
    assert provenance["pretraining_set"] == {"mixture": [second, first]}
    assert provenance["finetuning_set"] == first
    assert provenance["initial_model"] == "models/first"
    assert provenance["step"] == 7
    assert "mode | head" not in provenance


def test_of_a_run_the_checkpoint_with_the_lowest_loss_is_converted_or_the_newest(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="contains no checkpoint"):
        import_checkpoint(tmp_path, tmp_path / "none")
    for step in (3, 5, 9):
        write_new(tmp_path / "checkpoints" / f"step-{step:08d}", step=step)
    assert import_checkpoint(tmp_path, tmp_path / "newest")[0].startswith("converted step-00000009, the newest")
    for step, score in ((3, math.nan), (5, 1.0), (9, 2.0)):
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step:08d}")
        write_new(tmp_path / "checkpoints" / f"step-{step:08d}", step=step, score=score)
    assert import_checkpoint(tmp_path, tmp_path / "best")[0].startswith("converted step-00000005, which has the lowest")
    assert engine.models.load(tmp_path / "best").config.provenance["step"] == 5


@OLD
def test_the_weights_of_an_older_checkpoint_are_those_of_the_run(tmp_path: Path, stage: int, num_ranks: int) -> None:
    check_model(tmp_path, write_old(tmp_path / "step-00000007", stage, num_ranks))


def check_model(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    import_checkpoint(tmp_path / "step-00000007", tmp_path / "model")
    model, tensors = load_tensors(tmp_path / "model")
    assert tensors.keys() == weights.keys()
    assert all(torch.equal(tensors[name], weights[name]) for name in weights)
    assert model.config.kind == "pretraining"
    assert model.config.leads == ("I", "II")
    assert model.config.provenance["step"] == 7
    assert model.embed(torch.randn(1, 2, 160)).shape == (1, 32)


@OLD
@pytest.mark.parametrize("version", [1, 2])
def test_an_older_checkpoint_is_converted(tmp_path: Path, stage: int, num_ranks: int, version: int) -> None:
    old, new = tmp_path / "old", tmp_path / "step-00000007"
    changes = {"valid_loss": 0.25, "best_valid_loss": 0.125} if version == 1 else {}
    weights = write_old(old, stage, num_ranks, format_version=version, **changes)
    convert_checkpoint(old, new)
    info = read_checkpoint(new)
    assert (info.step, info.score, info.best_score, info.num_updates) == (7, 0.25, 0.125, NUM_UPDATES)
    assert (info.loader["cursor"], info.world_size) == (28, 1)
    read = read_weights(new, info)
    assert read.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(read[name], weight)
        piece = ParameterSlice(name, 0, torch.zeros(weight.numel()), {key: torch.zeros(weight.numel()) for key in MOMENTS})
        read_slices(new, info.parts, [piece])
        assert all(torch.equal(piece.moments[key], moment.flatten()) for key, moment in moments_of(weight).items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "step-00000007"]


def test_optimizer_states_are_found_by_their_parameter_groups(tmp_path: Path) -> None:
    weights = {"a.weight": torch.tensor([1.0]), "a.bias": torch.tensor([2.0]), "b.weight": torch.tensor([3.0])}
    config = {"optimizer": {"groups": [{"match": "*.bias", "weight_decay": 0}]}}
    in_order_of_groups = {name: weights[name] for name in ("a.bias", "a.weight", "b.weight")}
    write_old_checkpoint(tmp_path / "old", in_order_of_groups, 0, 1, config, shapes={name: [1] for name in weights})
    convert_checkpoint(tmp_path / "old", tmp_path / "new")
    for name, weight in weights.items():
        piece = ParameterSlice(name, 0, torch.zeros(1), {key: torch.zeros(1) for key in MOMENTS})
        read_slices(tmp_path / "new", read_checkpoint(tmp_path / "new").parts, [piece])
        assert piece.moments == moments_of(weight)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"files": {}}, "is not listed among its files"),
        ({"files": None}, "files"),
        ({"world_size": 3}, "is not listed among its files"),
        ({"world_size": 10**400}, "world_size"),
        ({"shapes": {"a": [2]}}, "not a valid DeepSpeed checkpoint"),
        ({"format_version": 3}, "only versions 1 and 2 are converted"),
        ({"step": -1}, "step"),
        ({"config": {}}, "not a valid DeepSpeed checkpoint"),
    ],
)
def test_a_damaged_older_checkpoint_is_not_converted(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    write_old(tmp_path / "step", 0 if "config" in changes else 2, 2, **changes)
    with pytest.raises(UserError, match=word) as error:
        convert_checkpoint(tmp_path / "step", tmp_path / "model")
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step"]


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    write_old(tmp_path / "old", 0, 1)
    (tmp_path / "new").mkdir()
    with pytest.raises(UserError, match="already exists"):
        convert_checkpoint(tmp_path / "old", tmp_path / "new")


def refused(tmp_path: Path) -> str:
    with pytest.raises(UserError) as error:
        import_checkpoint(tmp_path / "step", tmp_path / "model")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()
    return str(error.value)


def test_older_checkpoints_have_the_leads_in_the_data_section(tmp_path: Path) -> None:
    weights = write_old(tmp_path / "new", 0, 1)
    config = json.loads((tmp_path / "new" / "checkpoint.json").read_text())["config"]
    older = {"data": {"leads": 2}, "model": config["model"] | {"num_leads": 2}, "objective": config["objective"]}
    write_old(tmp_path / "step", 0, 1, config=older)
    import_checkpoint(tmp_path / "step", tmp_path / "model")
    model, tensors = load_tensors(tmp_path / "model")
    assert model.config.leads == ("I", "II")
    assert tensors.keys() == weights.keys()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    write_old(tmp_path / "step", 3, 2)
    file = tmp_path / "step" / "deepspeed" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert f"{file.name} has changed" in refused(tmp_path)
    file.unlink()
    assert f"{file.name} is missing" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"config": {}}, "lacks 'data'"),
        ({"config": {"data": {}, "model": {}, "objective": {}}}, "lacks 'leads'"),
        ({"config": {"leads": 2, "model": {"widht": 1}, "objective": {"name": "w2v"}}}, "widht"),
        ({"config": {"data": {"leads": 2}, "model": {"num_leads": 2}, "objective": {"name": "cmsc"}}}, "unexpected objective."),
        ({"config": {"data": {"leads": 2}, "model": {"num_leads": 2}, "objective": {"name": "x"}}}, "unknown objective"),
        ({"config": {"data": {"leads": 1}, "model": {"num_leads": 2}, "objective": {"name": "w2v"}}}, "num_leads"),
        ({"config": {"data": {"leads": 5}, "model": {"num_leads": 2}, "objective": {"name": "w2v"}}}, "5 leads"),
        ({"format_version": 9}, "format version 9"),
    ],
)
def test_a_configuration_of_another_model_is_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    write_new(tmp_path / "step", **changes)
    assert word in refused(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", "3", '{"format_version": 1}'])
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    write_new(tmp_path / "step")
    (tmp_path / "step" / "checkpoint.json").write_text(content)
    assert "checkpoint.json" in refused(tmp_path)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    assert "checkpoint.json" in refused(tmp_path)


@pytest.mark.parametrize("content", [{}, [], {"module": None}, torch.zeros(2)])
def test_foreign_files_are_refused(tmp_path: Path, content: object) -> None:
    write_old(tmp_path / "step", 0, 1)
    replace_file(tmp_path / "step", MODEL_FILE, content)
    assert "DeepSpeed" in refused(tmp_path)


@pytest.mark.parametrize("weight", [3, None, torch.arange(2), torch.zeros(2, device="meta")])
def test_values_that_are_not_weights_are_refused(tmp_path: Path, weight: object) -> None:
    write_old(tmp_path / "step", 0, 1)
    replace_file(tmp_path / "step", MODEL_FILE, {"module": {"w": weight}})
    assert "module.w is not a plain" in refused(tmp_path)


@pytest.mark.parametrize("convert", [import_checkpoint, convert_checkpoint])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, convert: Callable[[Path, Path], object], stage: int) -> None:
    step, trace = tmp_path / "step", tmp_path / "was_run"
    write_old(step, stage, 1)

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (trace,)

    for file in sorted((step / "deepspeed").iterdir()):
        replace_file(step, f"deepspeed/{file.name}", {"module": Bomb(), "optimizer_state_dict": Bomb(), "optimizer": Bomb()})
    with pytest.raises(UserError, match="could run code"):
        convert(step, tmp_path / "out")
    assert not trace.exists()


def test_the_folder_contains_no_paths(tmp_path: Path) -> None:
    write_new(tmp_path / "step")
    import_checkpoint(tmp_path / "step", tmp_path / "model")
    assert str(tmp_path) not in (tmp_path / "model" / "config.json").read_text()
    engine.models.load(tmp_path / "model")
