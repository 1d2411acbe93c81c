"""The parts of a training step, each with the FLOPs of its forward pass.

Each part is the model's own module on inputs of the step's shape and dtype. The FLOPs add up to the model's
``flops_per_segment``.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.collectives import gather_ranks, sum_over_ranks, world_size
from engine.models import (
    Encoder,
    EncoderOutput,
    GumbelQuantizer,
    Quantized,
    feature_encoder,
    positional,
    quantizer,
    transformer,
)
from engine.models.transformer import Block
from engine.objectives import DrawKeys, PretrainingModel

BACKWARD_FLOPS = 2.0
"""FLOPs of a part's backward pass relative to its forward pass."""


@dataclass(frozen=True)
class Call:
    """One call of a part.

    Attributes:
        run: maps inputs to outputs.
        inputs: arguments of ``run``; tensors that require a gradient receive one.
        weights: parameters that ``run`` reads and that receive gradients.
    """

    run: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    weights: tuple[nn.Parameter, ...] = ()


@dataclass(frozen=True)
class Part:
    """A part of the step.

    Attributes:
        name: name in the table.
        calls: one call per instance.
        flops: FLOPs of the forward pass of all instances.
        part_of: name of the part that already includes this one's time, FLOPs and bytes; None for a top-level part.
    """

    name: str
    calls: Sequence[Call]
    flops: float = 0.0
    part_of: str | None = None


def make_parts(model: PretrainingModel, segments: Tensor, patient: Tensor) -> list[Part]:
    """Returns the parts of a step of this model, except the optimizer."""
    model.train()
    encoder, objective = model.encoder, model.objective
    o, num_segments, num_samples = encoder.options, 2 * segments.shape[0], segments.shape[-1]
    num_tokens = encoder.num_tokens(num_samples)
    keys = DrawKeys(model.seed, torch.zeros((), dtype=torch.int64, device=segments.device), 0)
    draws = objective.draw(keys, num_segments, num_tokens, segments.device)
    flat = segments.flatten(0, 1)
    with torch.no_grad():
        features = encoder.features(flat)
    x = torch.randn(num_segments, num_tokens, o.width, device=flat.device).to(flat.dtype)
    mask = torch.rand(x.shape[:2], device=flat.device) < 0.5
    projection = (encoder.feature_norm, encoder.feature_projection, encoder.mask_embedding)

    def project(values: Tensor) -> tuple[Tensor, Tensor]:
        normed = encoder.feature_norm(values)
        projected = encoder.mask_embedding(encoder.input_dropout(encoder.feature_projection(normed)), mask)
        return projected, encoder.feature_dropout(normed)

    parts = [
        Part("random numbers", [Call(lambda: objective.draw(keys, num_segments, num_tokens, flat.device))]),
        Part(
            "feature encoder",
            [Call(encoder.features, (flat,), _weights(encoder.feature_encoder))],
            num_segments
            * feature_encoder.flops_per_segment(encoder.num_leads, o.feature_channels, o.feature_blocks, num_samples),
        ),
        Part(
            "projection and masking",
            [Call(project, (_leaf(features),), _weights(*projection))],
            num_segments * 2.0 * num_tokens * o.feature_channels * o.width,
        ),
        Part(
            "positional convolution",
            [Call(encoder.positional_convolution, (_leaf(x),), _weights(encoder.positional_convolution))],
            num_segments * positional.flops_per_segment(o.width, o.pos_kernel, o.pos_groups, num_tokens),
        ),
        *_block_parts(encoder, x),
        Part("norms, dropout, residuals", _norm_calls(model, x)),
    ]
    return parts + _objective_parts(model, segments, patient, draws, features, x) + _collective_parts(model, x)


def _block_parts(encoder: Encoder, x: Tensor) -> list[Part]:
    """Returns the matrix products of the transformer, all blocks together."""
    o, (num_segments, num_tokens, _) = encoder.options, x.shape
    blocks = [block for block in encoder.blocks if isinstance(block, Block)]
    attention_flops = transformer.flops_per_segment(o.width, 0, num_tokens)
    mlp_flops = transformer.flops_per_segment(o.width, o.mlp_width, num_tokens) - attention_flops
    return [
        Part(
            "attention",
            [Call(block.attention, (_leaf(x),), _weights(block.attention)) for block in blocks],
            num_segments * len(blocks) * attention_flops,
        ),
        Part(
            "QKV and output projections",
            [
                Call(linear, (_leaf(x),), _weights(linear))
                for block in blocks
                for linear in (block.attention.qkv, block.attention.out)
            ],
            num_segments * len(blocks) * 2.0 * num_tokens * 4 * o.width**2,
            part_of="attention",
        ),
        Part(
            "MLP",
            [Call(_mlp(block), (_leaf(x),), _weights(block.fc1, block.fc2)) for block in blocks],
            num_segments * len(blocks) * mlp_flops,
        ),
    ]


def _mlp(block: Block) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        y: Tensor = block.fc2(F.gelu(block.fc1(x)))
        return y

    return run


def _norm_calls(model: PretrainingModel, x: Tensor) -> list[Call]:
    encoder = model.encoder

    def context_entry(values: Tensor) -> Tensor:
        y: Tensor = encoder.context_dropout(encoder.context_norm(values))
        return y

    def residual(norm: nn.Module, dropout: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda values, branch: norm(values + dropout(branch))

    calls = [Call(context_entry, (_leaf(x),), _weights(encoder.context_norm))]
    for block in encoder.blocks:
        assert isinstance(block, Block)
        calls += [
            Call(residual(norm, block.dropout), (_leaf(x), _leaf(x)), _weights(norm))
            for norm in (block.attention_norm, block.mlp_norm)
        ]
    return calls


def _objective_parts(
    model: PretrainingModel, segments: Tensor, patient: Tensor, draws: Any, features: Tensor, x: Tensor
) -> list[Part]:
    """Returns the quantizer, if there is one, and the rest of the objective given the outputs of encoder and quantizer."""
    objective, num_segments = copy.deepcopy(model.objective), x.shape[0]
    flops = num_segments * objective.flops_per_segment(x.shape[1]) / (1 + BACKWARD_FLOPS)
    latents = F.layer_norm(features, features.shape[-1:])
    parts: list[Part] = []
    fixed: Quantized | None = None
    for owner, name, quantize in _quantizers(objective):
        num_groups, num_codes, width = quantize.codebook.codes.shape
        quantizer_flops = num_segments * quantizer.flops_per_segment(
            latents.shape[-1], num_groups, num_codes, num_groups * width, x.shape[1]
        )
        flops -= quantizer_flops
        inputs = (_leaf(latents), draws.gumbel_noise, draws.gumbel_temperature)
        parts.append(Part("quantizer", [Call(quantize, inputs, _weights(quantize))], quantizer_flops))
        with torch.no_grad():
            quantized = quantize(latents, draws.gumbel_noise, draws.gumbel_temperature)
        fixed = Quantized(_leaf(quantized.vectors), quantized.codes, _leaf(quantized.logits))
        setattr(owner, name, _FixedOutput(fixed))

    def compute_loss(context: Tensor, values: Tensor, _: Quantized | None) -> Tensor:
        output = EncoderOutput(context, values, latents)
        loss: Tensor = objective(lambda *_: output, segments, patient, draws)[0]
        return loss

    call = Call(compute_loss, (_leaf(x), _leaf(features), fixed), _weights(objective))
    return [*parts, Part("similarity and losses", [call], flops)]


def _quantizers(objective: nn.Module) -> list[tuple[nn.Module, str, GumbelQuantizer]]:
    """Returns the quantizers of a module, each with its parent module and its name there."""
    return [
        (owner, name, child)
        for owner in objective.modules()
        for name, child in owner.named_children()
        if isinstance(child, GumbelQuantizer)
    ]


def _collective_parts(model: PretrainingModel, x: Tensor) -> list[Part]:
    """Returns the objective's own collectives; scaling.py counts those of the gradients."""
    if world_size() == 1:
        return []
    calls = [Call(gather_ranks, (torch.randn(x.shape[0], x.shape[-1], device=x.device, requires_grad=True),))]
    for _, _, quantize in _quantizers(model.objective):
        # Mean softmax and usage of each code, and the number of masked tokens.
        num_sums = 2 * quantize.codebook.codes.shape[:2].numel() + 1
        calls.append(Call(sum_over_ranks, (torch.randn(num_sums, device=x.device, requires_grad=True),)))
    return [Part("collectives of the objective", calls)]


class _FixedOutput(nn.Module):
    """Replaces a quantizer and returns a fixed output."""

    def __init__(self, output: Quantized) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: object) -> Quantized:
        """Ignores its inputs."""
        return self.output


def _weights(*modules: nn.Module) -> tuple[nn.Parameter, ...]:
    return tuple(weight for module in modules for weight in module.parameters())


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()
