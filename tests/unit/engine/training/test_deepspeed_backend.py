from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_runs import TINY
from tiny_model import random_batch

from engine.config import PretrainConfig, load_config
from engine.models.transformer import SelfAttention
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.checkpoint_files import ParameterSlice
from engine.training.deepspeed_backend import DeepSpeedBackend, deepspeed_config
from engine.training.distributed import Ranks

CONFIGS = Path(__file__).parents[4] / "configs"
PAPER, QUICKSTART = CONFIGS / "pretrain" / "w2v_cmsc_rlm.yaml", CONFIGS / "quickstart.yaml"

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


def load(*overrides: str, files: Sequence[Path] = (PAPER,)) -> PretrainConfig:
    return load_config(PretrainConfig, files, ["train.micro_batch_size=null", *overrides])


@pytest.fixture
def make_backend(ranks: Ranks) -> Any:
    backends: list[DeepSpeedBackend] = []

    def make(model: torch.nn.Module, config: PretrainConfig) -> DeepSpeedBackend:
        backends.append(DeepSpeedBackend(model, config, ranks))
        return backends[-1]

    yield make
    for backend in backends:
        backend.destroy()


MakeBackend = Callable[[torch.nn.Module, PretrainConfig], DeepSpeedBackend]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_resumed_run_uses_its_own_options_instead_of_the_checkpoints(make_backend: MakeBackend, stage: int) -> None:
    overrides = [f"zero.stage={stage}", "train.batch_size=1"]
    saved = make_backend(torch.nn.Linear(4, 3), load(*overrides)).owned_slices()
    changed = ["optimizer.betas=[0.8, 0.9]", "optimizer.eps=1e-4", "optimizer.weight_decay=0.3", "train.gradient_clipping=0.5"]
    groups = "optimizer.groups=[{match: bias, weight_decay: 0.2, learning_rate_scale: 3}]"
    backend = make_backend(torch.nn.Linear(4, 3), load(*overrides, *changed, groups))
    backend.load(lambda slices: copy_slices(saved, slices), 0)
    backend.set_learning_rate(0.5, 0)
    groups_now = backend.model.optimizer.param_groups
    assert [(group["betas"], group["eps"]) for group in groups_now] == [((0.8, 0.9), 1e-4)] * 2
    assert [(group["weight_decay"], group["lr"]) for group in groups_now] == [(0.2, 1.5), (0.3, 0.5)]
    assert backend.model.gradient_clipping() == 0.5
    if stage:
        assert backend.model.optimizer.clip_grad == 0.5


def test_a_model_with_persistent_buffers_is_refused(make_backend: MakeBackend) -> None:
    with pytest.raises(AssertionError, match="running_mean"):
        make_backend(torch.nn.BatchNorm1d(3), load())


def copy_slices(source: Sequence[ParameterSlice], target: Sequence[ParameterSlice]) -> None:
    """Copies whole parameters, as one rank holds them."""
    by_name = {piece.name: piece for piece in source}
    for name, start, weight, moments in target:
        assert start == 0
        weight.copy_(by_name[name].weight)
        for key, moment in moments.items():
            moment.copy_(by_name[name].moments[key])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_loaded_model_continues_bitwise(make_backend: MakeBackend, stage: int, frozen: bool) -> None:
    def make() -> DeepSpeedBackend:
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3, bias=False))
        model[0].requires_grad_(not frozen)
        # One parameter stays whole at ZeRO 3, the others are partitioned.
        words = (
            f"zero.stage={stage}",
            "train.batch_size=1",
            "zero.param_persistence_threshold=4",
            "optimizer.learning_rate=0.1",
        )
        return make_backend(model, load(*words))

    def train(backend: DeepSpeedBackend) -> list[float]:
        losses = []
        for _ in range(2):
            loss = backend.model(torch.ones(2, 4)).square().mean()
            backend.backward(loss)
            backend.step()
            losses.append(loss.item())
        return losses

    first, second = make(), make()
    train(first)
    with torch.no_grad():
        saved = [ParameterSlice(n, s, w.clone(), {k: m.clone() for k, m in ms.items()}) for n, s, w, ms in first.owned_slices()]
    assert {p.name: bool(p.moments) for p in saved} == {"0.weight": not frozen, "0.bias": not frozen, "1.weight": True}
    assert first.num_updates() == 2
    second.load(lambda slices: copy_slices(saved, slices), 2)
    assert second.num_updates() == 2
    assert train(second) == train(first)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_parameter_groups_have_their_own_learning_rate_and_weight_decay(make_backend: MakeBackend, stage: int) -> None:
    groups = "optimizer.groups=[{match: bias, learning_rate_scale: 0, weight_decay: 0}]"
    overrides = [f"zero.stage={stage}", "train.batch_size=1", "optimizer.learning_rate=0.1", groups]
    model = torch.nn.Linear(4, 3)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    backend = make_backend(model, load(*overrides))
    backend.set_learning_rate(0.1, 0)
    backend.backward(backend.model(torch.ones(2, 4)).square().mean())
    assert backend.step() is not None
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(backend.model.module.parameters())):
        after = {name: parameter.detach().clone() for name, parameter in backend.model.module.named_parameters()}
    assert torch.equal(after["bias"], before["bias"])
    assert not torch.equal(after["weight"], before["weight"])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("clipping", [0.0, 0.01])
def test_the_gradient_norm_is_that_of_the_accumulated_gradients_before_clipping(
    make_backend: MakeBackend, stage: int, clipping: float
) -> None:
    overrides = [f"zero.stage={stage}", "train.batch_size=2", "train.micro_batch_size=1"]
    model = torch.nn.Linear(4, 3)
    weight, bias = (parameter.detach().clone().requires_grad_() for parameter in (model.weight, model.bias))
    backend = make_backend(model, load(*overrides, f"train.gradient_clipping={clipping}"))
    inputs = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(0))
    norms = []
    for x in inputs:
        backend.backward(backend.model(x).square().sum())
        norms.append(backend.step())
        (torch.nn.functional.linear(x, weight, bias).square().sum() / 2).backward()
    assert norms[0] is None
    assert weight.grad is not None
    assert bias.grad is not None
    assert norms[1] is not None
    torch.testing.assert_close(norms[1].float(), torch.cat([weight.grad.flatten(), bias.grad]).norm())


def test_unused_parameters_decay_the_same_at_every_stage(make_backend: MakeBackend) -> None:
    """At ZeRO-0, one rank reduces no gradients; DeepSpeed creates zeros for missing gradients only where it reduces."""
    weights = []
    tiny = [override for override in TINY if not override.startswith("objective.")]
    changed = ["train.precision=fp32", "objective={name: cmsc}", "optimizer.weight_decay=0.5", "optimizer.learning_rate=0.01"]
    for stage in (0, 1):
        config = load(*tiny, *changed, f"zero.stage={stage}", files=[QUICKSTART])
        backend = make_backend(PretrainingTask(config).model, config)
        segments, patient = random_batch(4)
        for step in range(3):
            loss, _ = backend.model(segments, patient, torch.tensor(step), torch.tensor(0))
            backend.backward(loss)
            backend.step()
        weights.append(backend.model.module.encoder.mask_embedding.embedding.detach().clone())
    assert torch.equal(*weights)
    assert weights[0].norm() < 0.99 * PretrainingTask(config).model.encoder.mask_embedding.embedding.norm()


def test_compute_options_reach_the_encoder() -> None:
    overrides = ["compute.attention=plain", "compute.positional=toeplitz", "compute.activation_checkpointing=true"]
    encoder = PretrainingTask(load(*overrides, "model.depth=1")).model.encoder
    assert encoder.positional_convolution.implementation == "toeplitz"
    assert [module.backend for module in encoder.modules() if isinstance(module, SelfAttention)] == ["plain"]
    assert encoder.activation_checkpointing


@pytest.mark.parametrize("target", ["blocks", "model"])
def test_a_compiled_step_has_the_same_loss_and_never_generalizes_over_shapes(
    make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    torch.compiler.reset()
    compile_ = torch.nn.Module.compile
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    # The real compiler takes half a minute.
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: compile_(self, backend=compiler, **options))
    config = load(*TINY, "train.precision=fp32", f"compute.compile={target}", files=[QUICKSTART])
    backend, plain = make_backend(PretrainingTask(config).model, config), PretrainingTask(config).model
    num_graphs = []
    for num_pairs in (2, 3, 4):
        segments, patient = random_batch(num_pairs)
        numbers = torch.tensor(1), torch.tensor(0)
        loss, _ = backend.model(segments, patient, *numbers)
        torch.testing.assert_close(loss, plain(segments, patient, *numbers)[0], rtol=1e-5, atol=1e-5)
        num_graphs.append(len(graphs))
    # Both blocks share one graph, and each shape has its own.
    assert num_graphs[0] > 0
    assert num_graphs == [num_graphs[0] * shape for shape in (1, 2, 3)]
    if target == "blocks":
        assert num_graphs[0] == 1


def test_compiling_partitioned_parameters_is_refused() -> None:
    with pytest.raises(UserError, match=r"compute.compile=blocks does not work with zero.stage=3"):
        load("compute.compile=blocks", "zero.stage=3")


def test_deepspeed_never_waits_for_the_device() -> None:
    config = load("zero.stage=2")
    assert deepspeed_config(config, 1)["timers"] == {"throughput": {"enabled": False}}
    assert not deepspeed_config(config, 1)["zero_optimization"]["overlap_comm"]
    assert deepspeed_config(config, 2)["zero_optimization"]["overlap_comm"]
    assert not deepspeed_config(config, 2)["zero_optimization"]["compute_grad_norm"]
    # Clipping needs the norm within DeepSpeed's step.
    assert (
        "compute_grad_norm" not in deepspeed_config(load("zero.stage=2", "train.gradient_clipping=1"), 2)["zero_optimization"]
    )


def test_batch_sizes_are_derived() -> None:
    derived = deepspeed_config(load("train.batch_size=48", "train.micro_batch_size=8"), 2)
    assert (derived["train_batch_size"], derived["train_micro_batch_size_per_gpu"]) == (48, 8)
    assert derived["gradient_accumulation_steps"] == 3


@pytest.mark.parametrize(("world_size", "micro"), [(5, "null"), (2, "7")])
def test_a_batch_that_cannot_be_divided_is_refused(world_size: int, micro: str) -> None:
    with pytest.raises(UserError, match="divi"):
        deepspeed_config(load("train.batch_size=48", f"train.micro_batch_size={micro}"), world_size)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_files_override_a_preset(stage: int) -> None:
    config = load(files=[PAPER, CONFIGS / "deepspeed" / f"zero{stage}.yaml"])
    assert deepspeed_config(config, 1)["zero_optimization"]["stage"] == stage
