import pytest
import torch
from torch import nn

from engine.config import OptimizerOptions, ParameterGroup
from engine.options import UserError
from engine.training.optimizer import make_optimizer, split_parameters

NAMES = ["encoder.feature.weight", "encoder.feature.bias", "encoder.block.weight", "head.weight", "head.bias"]


def options(**values: object) -> OptimizerOptions:
    return OptimizerOptions.model_validate(values)


def test_weights_decay_by_adamw() -> None:
    model = nn.Linear(2, 1)
    optimizer, groups = make_optimizer(model, options(learning_rate=0.1, weight_decay=0.5))
    assert [group.weight_decay for group in groups] == [0.5]
    before = model.weight.detach().clone()
    model.weight.grad = torch.zeros_like(model.weight)
    model.bias.grad = torch.zeros_like(model.bias)
    optimizer.step()
    assert torch.allclose(model.weight, before * (1 - 0.1 * 0.5))


def test_the_first_matching_group_takes_a_parameter() -> None:
    head = ParameterGroup(match="head.*", learning_rate_scale=10)
    biases = ParameterGroup(match="*.bias", weight_decay=0)
    parts = split_parameters(NAMES, options(weight_decay=0.3, groups=(head, biases)))
    assert [names for names, _ in parts] == [
        ["head.weight", "head.bias"],
        ["encoder.feature.bias"],
        ["encoder.feature.weight", "encoder.block.weight"],
    ]
    assert [tuple(group) for _, group in parts] == [(10.0, 0.3, 0), (1.0, 0.0, 0), (1.0, 0.3, 0)]


def test_frozen_parameters_are_in_no_group() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    optimizer, _ = make_optimizer(model, options())
    assert [group["params"] for group in optimizer.param_groups] == [[model.weight]]


def test_a_group_that_matches_nothing_is_refused() -> None:
    head = ParameterGroup(match="head.*")
    with pytest.raises(UserError, match=r"optimizer.groups: 'heads\.\*' matches no parameters"):
        split_parameters(NAMES, options(groups=(ParameterGroup(match="heads.*"),)))
    with pytest.raises(UserError, match=r"'head\.bias' matches no parameters, or only those of earlier groups"):
        split_parameters(NAMES, options(groups=(head, ParameterGroup(match="head.bias"))))
