"""DeepSpeed behind a small interface: only this file and deepspeed_state.py know its internals."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from engine.config import RunConfig
from engine.cpu_kernels import keep_freed_memory
from engine.models.transformer import Block
from engine.training.checkpoint_files import ParameterSlice
from engine.training.deepspeed_state import held_slices, num_updates, owned_slices, refresh_weights, set_num_updates
from engine.training.distributed import Ranks
from engine.training.optimizer import make_optimizer


class DeepSpeedBackend:
    """A model under training: forward and backward passes, optimizer steps, and its state.

    Args:
        model: the model; DeepSpeed moves it to the device and, with ZeRO-3, partitions it.
        config: the run's configuration, with ``train.micro_batch_size=auto`` resolved.
        ranks: all ranks construct this together, and call every method together.

    Attributes:
        model: DeepSpeed's engine, called like the model.
        stage: the ZeRO stage.
        shapes: shape of every parameter by name, before ZeRO-3 partitions them.
        frozen: names of the parameters that are not trained.
    """

    def __init__(self, model: nn.Module, config: RunConfig, ranks: Ranks) -> None:
        import deepspeed

        if ranks.device.type == "cpu":
            keep_freed_memory()
        self._ranks = ranks
        self.stage = config.zero.stage
        buffers = model.state_dict().keys() & dict(model.named_buffers()).keys()
        assert not buffers, f"checkpoints contain parameters only: register {', '.join(buffers)} with persistent=False"
        self.shapes = parameter_shapes(model)
        self.frozen = frozen_parameters(model)
        optimizer, self._group_options = make_optimizer(model, config.optimizer)
        settings = deepspeed_config(config, ranks.world_size)
        # DeepSpeed computes the gradient norm where it clips; elsewhere that would make it wait for the device in each step.
        self._deepspeed_computes_norm = self.stage > 0 and settings["zero_optimization"].get("compute_grad_norm", True)
        self.model: Any
        self.model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        if ranks.world_size == 1 and self.stage == 0:
            # DeepSpeed would copy all gradients into one buffer, average it over this one rank, and copy them back.
            self.model.enable_backward_allreduce = False
            optimizer.register_step_pre_hook(_fill_missing_gradients)
        _compile(self.model.module, config.compute.compile)

    def set_learning_rate(self, learning_rate: float, step: int) -> None:
        """Sets the learning rate of a step, from 0; parameter groups scale it, or are not trained yet."""
        for group, options in zip(self.model.optimizer.param_groups, self._group_options, strict=True):
            group["lr"] = learning_rate * options.learning_rate_scale if step >= options.first_step else 0.0

    def backward(self, loss: Tensor) -> None:
        """Accumulates the gradients of a micro-batch; :meth:`step` must follow."""
        self.model.backward(loss)

    def step(self) -> Tensor | None:
        """Ends a micro-batch; after the last one of a step, updates the weights.

        Returns:
            The norm of the gradients before clipping, averaged over ranks and micro-batches: a scalar on the device; ``None``
            if no weights were updated.
        """
        if not self.model.is_gradient_accumulation_boundary():
            self.model.step()
            return None
        if not self._deepspeed_computes_norm:
            norm = self._gradient_norm()
            self.model.step()
            return norm
        self.model.step()
        return torch.as_tensor(self.model.get_global_grad_norm(), device=self._ranks.device)

    def num_updates(self) -> int:
        """Returns how often the optimizer has updated the weights."""
        return num_updates(self.model)

    def owned_slices(self) -> list[ParameterSlice]:
        """Returns this rank's part of weights and optimizer state; the parts of all ranks hold each element once."""
        return owned_slices(self.model, self._ranks.rank, self._ranks.world_size)

    def load(self, read: Callable[[Sequence[ParameterSlice]], None], count: int) -> None:
        """Loads weights and optimizer state; the optimizer keeps this run's options.

        Args:
            read: fills the slices that it is called with.
            count: how often the optimizer has updated the weights.
        """
        read(held_slices(self.model, self._ranks.rank))
        set_num_updates(self.model, count)
        refresh_weights(self.model)

    def destroy(self) -> None:
        """Frees DeepSpeed's memory; for processes that build several backends."""
        self.model.destroy()

    def _gradient_norm(self) -> Tensor:
        """Returns the norm of the gradients, which are averaged over ranks; does not wait for the device."""
        if not self.stage:
            return _norm(parameter.grad for parameter in self.model.module.parameters())
        # With ZeRO each rank holds a part. DeepSpeed's own function copies a number to the device and waits for it.
        total = _norm(part for group in self.model.optimizer.averaged_gradients.values() for part in group).square()
        dist.all_reduce(total)
        return total.sqrt()


def parameter_shapes(model: nn.Module) -> dict[str, list[int]]:
    """Returns the shape of every parameter by name."""
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}


def frozen_parameters(model: nn.Module) -> list[str]:
    """Returns the names of the parameters that are not trained."""
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def deepspeed_config(config: RunConfig, world_size: int) -> dict[str, Any]:
    """Returns the configuration of :func:`deepspeed.initialize`.

    Parameters stay in fp32 and the model itself computes in ``train.precision``, so that every ZeRO stage, with and without
    accumulation, has the same arithmetic; so there is no ``bf16`` section.
    """
    micro_batch_size, num_micro_batches = config.train.micro_batches(world_size)
    zero: dict[str, Any] = {"stage": config.zero.stage}
    if config.zero.stage:
        zero |= {
            # A single rank reduces nothing, and would wait for the device in each step.
            "overlap_comm": config.zero.overlap_comm and world_size > 1,
            "reduce_bucket_size": config.zero.reduce_bucket_size,
            "allgather_bucket_size": config.zero.allgather_bucket_size,
        }
    if config.zero.stage in {1, 2} and not config.train.gradient_clipping:
        zero["compute_grad_norm"] = False
    if config.zero.stage == 3:
        zero["stage3_param_persistence_threshold"] = config.zero.param_persistence_threshold
    return {
        "train_batch_size": config.train.batch_size,
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": num_micro_batches,
        "gradient_clipping": config.train.gradient_clipping,
        "steps_per_print": None,
        # DeepSpeed's timer waits for the device twice in each micro-batch.
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": zero,
    }


def _compile(model: nn.Module, target: str | None) -> None:
    # All batches of a run have the same shape. When the size changes within one process, the compiler would otherwise treat
    # shapes as variables and generate slower kernels.
    if target == "model":
        model.compile(dynamic=False)
    elif target == "blocks":
        for module in model.modules():
            if isinstance(module, Block):
                module.compile(dynamic=False)


def _fill_missing_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Gives parameters that the loss does not depend on a zero gradient, as ZeRO does, so that weight decay is the same."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _norm(gradients: Iterable[Tensor | None]) -> Tensor:
    return torch.nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None], foreach=True)
