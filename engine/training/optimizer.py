"""The optimizer and its learning rate."""

import torch
from torch import nn

from engine.config import OptimizerOptions


def make_optimizer(model: nn.Module, options: OptimizerOptions) -> torch.optim.AdamW:
    """Builds AdamW over all parameters, decaying every one of them as the official recipe does.

    It is the fused form, which DeepSpeed accepts as a client optimizer for every ZeRO stage and which needs no compiler.
    """
    return torch.optim.AdamW(
        model.parameters(),
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        weight_decay=options.weight_decay,
        fused=True,
    )


def learning_rate(options: OptimizerOptions, step: int) -> float:
    """The learning rate of a step, counted from 0: a linear rise over the warm-up, then constant."""
    return options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup_steps))
