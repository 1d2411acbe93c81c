"""A run's checkpoint, of any ZeRO stage, to our folder."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.config import ZeroStageEnum
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import tiny_model
from torch import Tensor

import engine.models
from engine.interop.native import load_tensors, objective_section
from engine.interop.zero_checkpoint import _join_partitions, import_checkpoint
from engine.options import UserError
from engine.training.checkpoint import FORMAT_VERSION, CheckpointInfo, FileDescription

SHAPES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=6
)


def partition(tensors: dict[str, Tensor], num_ranks: int) -> list[Tensor]:
    """What ZeRO 3 gives each rank: a piece of each flattened tensor, the last one padded."""
    parts: list[list[Tensor]] = [[] for _ in range(num_ranks)]
    for tensor in tensors.values():
        flat = tensor.flatten()
        length = -(-len(flat) // num_ranks)
        padded = torch.cat([flat, torch.full((length * num_ranks - len(flat),), 99.0)])
        for part, piece in zip(parts, padded.split(length), strict=True):
            part.append(piece)
    return [torch.cat(part) for part in parts]


@given(SHAPES, st.integers(1, 5))
def test_partitions_are_joined(shapes: dict[str, list[int]], num_ranks: int) -> None:
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    joined = _join_partitions(partition(tensors, num_ranks), {name: tensor.shape for name, tensor in tensors.items()})
    assert joined.keys() == tensors.keys()
    assert all(torch.equal(joined[name], tensor) for name, tensor in tensors.items())


def test_partitions_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 5"):
        _join_partitions([torch.zeros(4)], {"w": torch.Size([5])})


def write_checkpoint(folder: Path, stage: int, num_ranks: int, **changes: Any) -> dict[str, Tensor]:
    """A checkpoint as a run leaves it, with the files that DeepSpeed writes for the stage; returns its weights."""
    model = tiny_model("w2v_cmsc", num_leads=2)
    weights = model.state_dict()
    objective = objective_section(
        "w2v_cmsc", {"w2v": {"final_width": 16, "code_width": 16, "num_codes": 10, "num_negatives": 20}}
    )
    (folder / "deepspeed").mkdir(parents=True)
    if stage < 3:
        torch.save(
            {"module": weights, "optimizer": None, "buffer_names": []}, folder / "deepspeed" / "mp_rank_00_model_states.pt"
        )
    else:
        _write_partitions(folder / "deepspeed", weights, num_ranks)
    info = CheckpointInfo(
        format_version=FORMAT_VERSION,
        step=7,
        loader={"fingerprint": "abc"},
        config={"leads": 2, "model": model.encoder.options.model_dump(), "objective": objective},
        world_size=num_ranks,
        zero_stage=stage,
        shapes={name: list(tensor.shape) for name, tensor in weights.items()},
        versions={"torch": "2"},
        files={
            str(path.relative_to(folder)): FileDescription(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in sorted((folder / "deepspeed").iterdir())
        },
    )
    (folder / "checkpoint.json").write_text(json.dumps(asdict(info) | changes))
    return weights


class MemberByName:
    """Pickles as a member of an enumeration does in Python 3.11.0 to 3.11.3."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (ZeroStageEnum, "weights")


def _write_partitions(folder: Path, weights: dict[str, Tensor], num_ranks: int) -> None:
    shapes = [{name: tensor.shape for name, tensor in weights.items()}]
    for rank, part in enumerate(partition(weights, num_ranks)):
        states = {"module": {name: torch.zeros(0) for name in weights}, "param_shapes": shapes, "buffer_names": []}
        torch.save(states, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        groups = list(part.split(1000)) if rank == 0 else [part]
        objects = {"zero_stage": ZeroStageEnum.weights, "in Python 3.11.2": MemberByName()}
        optimizer = {"optimizer_state_dict": {"fp32_flat_groups": groups, "partition_count": num_ranks, **objects}}
        torch.save(optimizer, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


@pytest.mark.parametrize(("stage", "num_ranks"), [(0, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_gives_the_weights_of_the_run(tmp_path: Path, stage: int, num_ranks: int) -> None:
    weights = write_checkpoint(tmp_path / "step-00000007", stage, num_ranks)
    import_checkpoint(tmp_path / "step-00000007", tmp_path / "model")
    model, tensors = load_tensors(tmp_path / "model")
    assert tensors.keys() == weights.keys()
    assert all(torch.equal(tensors[name], weights[name]) for name in weights)
    assert model.config.kind == "pretraining"
    assert model.config.leads == ("I", "II")
    assert model.config.provenance["step"] == 7
    assert model.embed(torch.zeros(1, 2, 160)).shape == (1, 32)


def refused(tmp_path: Path) -> str:
    with pytest.raises(UserError) as error:
        import_checkpoint(tmp_path / "step", tmp_path / "model")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()
    return str(error.value)


def test_an_older_checkpoint_names_the_leads_among_the_data(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path / "new", 0, 1)
    config = json.loads((tmp_path / "new" / "checkpoint.json").read_text())["config"]
    older = {"data": {"leads": 2}, "model": config["model"] | {"num_leads": 2}, "objective": config["objective"]}
    write_checkpoint(tmp_path / "step", 0, 1, config=older)
    import_checkpoint(tmp_path / "step", tmp_path / "model")
    model, tensors = load_tensors(tmp_path / "model")
    assert model.config.leads == ("I", "II")
    assert tensors.keys() == weights.keys()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step", 3, 2)
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
        ({"config": {}}, "no 'data'"),
        ({"config": {"data": {}, "model": {}, "objective": {}}}, "no 'leads'"),
        ({"config": {"leads": 2, "model": {"widht": 1}, "objective": {"name": "w2v"}}}, "widht"),
        ({"config": {"data": {"leads": 2}, "model": {"num_leads": 2}, "objective": {"name": "cmsc"}}}, "unexpected objective."),
        ({"config": {"data": {"leads": 2}, "model": {"num_leads": 2}, "objective": {"name": "x"}}}, "unknown objective"),
        ({"config": {"data": {"leads": 1}, "model": {"num_leads": 2}, "objective": {"name": "w2v"}}}, "num_leads"),
        ({"config": {"data": {"leads": 5}, "model": {"num_leads": 2}, "objective": {"name": "w2v"}}}, "5 leads"),
        ({"format_version": 9}, "format version 9"),
    ],
)
def test_a_configuration_of_another_model_is_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    write_checkpoint(tmp_path / "step", 0, 1, **changes)
    assert word in refused(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", "3", '{"format_version": 1}'])
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    write_checkpoint(tmp_path / "step", 0, 1)
    (tmp_path / "step" / "checkpoint.json").write_text(content)
    assert "checkpoint.json" in refused(tmp_path)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    assert "checkpoint.json" in refused(tmp_path)


@pytest.mark.parametrize("content", [{}, [], {"module": None}, torch.zeros(2)])
def test_files_of_something_else_are_refused(tmp_path: Path, content: object) -> None:
    write_checkpoint(tmp_path / "step", 0, 1, files={})
    torch.save(content, tmp_path / "step" / "deepspeed" / "mp_rank_00_model_states.pt")
    assert "DeepSpeed" in refused(tmp_path)


@pytest.mark.parametrize("weight", [3, None, torch.arange(2), torch.zeros(2, device="meta")])
def test_what_is_no_weight_is_refused(tmp_path: Path, weight: object) -> None:
    write_checkpoint(tmp_path / "step", 0, 1, files={})
    torch.save({"module": {"w": weight}}, tmp_path / "step" / "deepspeed" / "mp_rank_00_model_states.pt")
    assert "module.w is not a plain" in refused(tmp_path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step", 0, 1, files={})
    trace = tmp_path / "was_run"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (trace,)

    torch.save({"module": Bomb()}, tmp_path / "step" / "deepspeed" / "mp_rank_00_model_states.pt")
    assert "could run code" in refused(tmp_path)
    assert not trace.exists()


def test_the_folder_is_one_that_loads_anywhere(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step", 0, 1)
    import_checkpoint(tmp_path / "step", tmp_path / "model")
    assert str(tmp_path) not in (tmp_path / "model" / "config.json").read_text()
    engine.models.load(tmp_path / "model")
