from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_runs import TINY
from tiny_model import random_batch

from engine.config_files import load_config
from engine.models.transformer import SelfAttention
from engine.options import UserError
from engine.training.distributed import Ranks
from engine.training.setup import (
    _read_cache,
    _set_optimizer_options,
    _steps_of_epochs,
    _write_cache,
    make_engine,
    make_model,
    prepare,
)

CONFIGS = Path(__file__).parents[4] / "configs"
PAPER, QUICKSTART = CONFIGS / "pretrain" / "w2v_cmsc_rlm.yaml", CONFIGS / "quickstart.yaml"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_resumed_run_has_its_own_options_and_not_those_of_the_checkpoint(tmp_path: Path, ranks: Ranks, stage: int) -> None:
    words = [f"zero.stage={stage}", "train.batch_size=1"]
    engine = make_engine(load_config([PAPER], words), torch.nn.Linear(4, 3), ranks)  # type: ignore[arg-type]
    engine.save_checkpoint(str(tmp_path), tag="x", save_latest=False)
    words += ["optimizer.betas=[0.8, 0.9]", "optimizer.eps=1e-4", "optimizer.weight_decay=0.3", "train.gradient_clipping=0.5"]
    config = load_config([PAPER], words)
    engine = make_engine(config, torch.nn.Linear(4, 3), ranks)  # type: ignore[arg-type]
    engine.load_checkpoint(str(tmp_path), tag="x")
    _set_optimizer_options(engine.optimizer, config)
    for group in engine.optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.9), 1e-4, 0.3)
    assert engine.gradient_clipping() == 0.5
    if stage:
        assert engine.optimizer.clip_grad == 0.5


def test_epochs_count_crops_whatever_the_batches_were() -> None:
    config = load_config([PAPER], ["train.epochs=2", "train.batch_size=8"])
    assert _steps_of_epochs(config, 100, 0) == 25
    assert _steps_of_epochs(config, 100, 40) == 20
    assert _steps_of_epochs(config, 100, 200) == 0
    assert _steps_of_epochs(config, 1, 0) == 1


def test_a_cache_that_is_damaged_or_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "verified.json"
    assert _read_cache(cache) == {}
    _write_cache(cache, {"shard": [1, 2]})
    assert _read_cache(cache) == {"shard": [1, 2]}
    cache.write_text("{")
    assert _read_cache(cache) == {}
    (tmp_path / "file").touch()
    _write_cache(tmp_path / "file" / "verified.json", {})


def test_an_attention_kernel_that_the_device_lacks_is_refused(ranks: Ranks) -> None:
    config = load_config([PAPER], ["train.attention=cudnn", "model.depth=1"])
    with pytest.raises(
        UserError, match=r"train.attention=cudnn: torch has no such kernel on cpu for bf16, 12 heads of width 64"
    ):
        make_engine(config, make_model(config), ranks)


@pytest.mark.parametrize("micro_batch_size", [8, "auto"])
def test_triton_without_a_gpu_is_refused(ranks: Ranks, tmp_path: Path, micro_batch_size: object) -> None:
    words = ["train.positional=triton", "train.batch_size=8", f"train.micro_batch_size={micro_batch_size}"]
    config = load_config([PAPER], [*words, f"output_dir={tmp_path}", "model.depth=1"])
    with pytest.raises(UserError, match=r"train.positional=triton needs a GPU"):
        prepare(config, ranks)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_an_objective_has_no_use_for_decays_the_same_at_every_stage(ranks: Ranks) -> None:
    """One rank at ZeRO-0 reduces no gradients, which is where DeepSpeed makes zeros of those that are missing."""
    weights = []
    for stage in (0, 1):
        words = ["train.precision=fp32", "objective.name=cmsc", "optimizer.weight_decay=0.5", "optimizer.learning_rate=0.01"]
        tiny = [word for word in TINY if not word.startswith("objective.")]
        engine_config = load_config([QUICKSTART], [*tiny, *words, f"zero.stage={stage}"])
        engine = make_engine(engine_config, make_model(engine_config), ranks)
        segments, patient = random_batch(4)
        for step in range(3):
            loss, _ = engine(segments, patient, torch.tensor(step), torch.tensor(0))
            engine.backward(loss)
            engine.step()
        weights.append(engine.module.encoder.mask_embedding.embedding.detach().clone())
        engine.destroy()
    assert torch.equal(*weights)
    assert weights[0].norm() < 0.99 * make_model(engine_config).encoder.mask_embedding.embedding.norm()


def test_formulations_reach_the_encoder() -> None:
    words = ["train.attention=plain", "train.positional=unfold", "train.activation_checkpointing=true", "model.depth=1"]
    encoder = make_model(load_config([PAPER], words)).encoder
    assert encoder.positional_convolution.formulation == "unfold"
    assert [module.backend for module in encoder.modules() if isinstance(module, SelfAttention)] == ["plain"]
    assert encoder.activation_checkpointing


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("part", ["blocks", "model"])
def test_a_compiled_step_gives_the_same_loss_and_never_takes_shapes_for_variables(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    torch.compiler.reset()
    compile_ = torch.nn.Module.compile
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    # The real compiler of kernels takes half a minute.
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: compile_(self, backend=backend, **options))
    config = load_config([QUICKSTART], [*TINY, "train.precision=fp32", f"train.compile={part}"])
    engine, plain = make_engine(config, make_model(config), ranks), make_model(config)
    num_graphs = []
    for num_pairs in (2, 3, 4):
        segments, patient = random_batch(num_pairs)
        numbers = torch.tensor(1), torch.tensor(0)
        loss, _ = engine(segments, patient, *numbers)
        torch.testing.assert_close(loss, plain(segments, patient, *numbers)[0], rtol=1e-5, atol=1e-5)
        num_graphs.append(len(graphs))
    # The two blocks share one graph, and each shape has its own.
    assert num_graphs[0] > 0
    assert num_graphs == [num_graphs[0] * shape for shape in (1, 2, 3)]
    if part == "blocks":
        assert num_graphs[0] == 1
    engine.destroy()


def test_compiling_what_deepspeed_takes_apart_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.compile=blocks does not go with zero.stage=3"):
        load_config([PAPER], ["train.compile=blocks", "zero.stage=3"])


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "some", [2]])
def test_a_micro_batch_is_a_number_of_pairs_or_auto(size: object) -> None:
    with pytest.raises(UserError, match=r"micro_batch_size: give a number of pairs, 1 or more, 'auto' or null"):
        load_config([PAPER], [f"train.micro_batch_size={size}"])


def test_deepspeed_is_told_not_to_wait_for_the_device() -> None:
    config = load_config([PAPER], ["zero.stage=2"])
    assert config.deepspeed(1)["timers"] == {"throughput": {"enabled": False}}
    assert not config.deepspeed(1)["zero_optimization"]["overlap_comm"]
    assert config.deepspeed(2)["zero_optimization"]["overlap_comm"]
    assert not config.deepspeed(2)["zero_optimization"]["compute_grad_norm"]
    # Clipping needs the norm within DeepSpeed's step.
    clipping = load_config([PAPER], ["zero.stage=2", "train.gradient_clipping=1"])
    assert "compute_grad_norm" not in clipping.deepspeed(2)["zero_optimization"]
