"""The optimizer and its parameter groups."""

from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import nn

from engine.config import OptimizerOptions
from engine.options import UserError


class GroupOptions(NamedTuple):
    """Options of one parameter group."""

    learning_rate_scale: float
    weight_decay: float
    first_step: int = 0


def make_optimizer(model: nn.Module, options: OptimizerOptions) -> tuple[torch.optim.AdamW, list[GroupOptions]]:
    """Builds AdamW: one group for each entry of ``optimizer.groups`` and one for all other parameters.

    All parameters decay, as in the official recipe. DeepSpeed accepts the fused implementation as a client optimizer for
    every ZeRO stage, and it needs no compiler.

    Returns:
        The optimizer, and the options of its groups in the same order.

    Raises:
        UserError: a group matches no parameter.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    parts = split_parameters(list(parameters), options)
    groups = [
        {
            "params": [parameters[name] for name in names],
            "lr": options.learning_rate * group.learning_rate_scale,
            "weight_decay": group.weight_decay,
        }
        for names, group in parts
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=True)
    return optimizer, [group for _, group in parts]


def split_parameters(names: list[str], options: OptimizerOptions) -> list[tuple[list[str], GroupOptions]]:
    """Returns the names of the parameters of each group, in the model's order, and the group's options.

    Raises:
        UserError: a group matches no parameter.
    """
    rest, parts = list(names), []
    for group in options.groups:
        matching = [name for name in rest if fnmatchcase(name, group.match)]
        if not matching:
            raise UserError(
                f"optimizer.groups: '{group.match}' matches no parameters, or only those of earlier groups; parameter names "
                f"look like {names[0]} and {names[-1]}"
            )
        weight_decay = options.weight_decay if group.weight_decay is None else group.weight_decay
        parts.append((matching, GroupOptions(group.learning_rate_scale, weight_decay, group.first_step)))
        rest = [name for name in rest if name not in set(matching)]
    if rest:
        parts.append((rest, GroupOptions(1.0, options.weight_decay)))
    return parts
