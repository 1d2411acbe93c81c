"""The encoder: feature encoder, projection, masking, positional convolution, transformer.

The order of operations follows wav2vec 2.0 and the paper's official code. All tensors are [B, T, D].

Legend: B segments, C leads, T samples at the input and tokens after the feature encoder, F feature channels, D width.
"""

from typing import NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from engine.models import feature_encoder, positional, transformer
from engine.models.feature_encoder import FeatureEncoder, FeatureNorm
from engine.models.functional import AttentionBackend
from engine.models.layers import Dropout, LayerNorm, MaskEmbedding, Projection, scale_gradient
from engine.models.positional import PositionalConvolution
from engine.models.positional_implementations import PositionalImplementation
from engine.models.transformer import Block
from engine.options import Options

# Far beyond any model, so that a mistyped or foreign number is refused instead of tried.
_MAX_SIZE, _MAX_DEPTH = 2**17, 1000


class EncoderOptions(Options):
    """Architecture of the encoder; the defaults are the paper's (BERT-base)."""

    feature_channels: int = Field(default=256, ge=1, le=_MAX_SIZE)
    """Number of channels of the feature encoder."""
    feature_blocks: int = Field(default=4, ge=1, le=_MAX_DEPTH)
    """Number of convolutional blocks of the feature encoder; each halves the length."""
    norm: FeatureNorm = "group_norm"
    """Normalization of the features: group_norm in the first block (the official code), or layer_norm in each (the paper)."""
    feature_grad_scale: float = Field(default=0.1, ge=0)
    """Multiplier for the gradient that reaches the feature encoder; 0 freezes it."""
    feature_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the features that the quantizer receives."""
    input_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the projected features, before masking."""
    width: int = Field(default=768, ge=1, le=_MAX_SIZE)
    """Width of the transformer."""
    depth: int = Field(default=12, ge=1, le=_MAX_DEPTH)
    """Number of transformer blocks."""
    num_heads: int = Field(default=12, ge=1, le=_MAX_SIZE)
    """Number of attention heads."""
    mlp_width: int = Field(default=3072, ge=1, le=_MAX_SIZE)
    """Hidden width of the feed-forward networks."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the transformer's input and of each residual branch."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the hidden values of the feed-forward networks, after the GELU."""
    drop_path: float = Field(default=0.0, ge=0, lt=1)
    """Stochastic depth: probability that a segment skips a residual branch of the last block; it rises linearly from
    0 in the first block."""
    output_layers: int = Field(default=1, ge=1, le=_MAX_DEPTH)
    """Number of last blocks whose outputs are averaged; 1: the last block's output."""
    pos_kernel: int = Field(default=128, ge=1, le=_MAX_SIZE)
    """Kernel size of the positional convolution, in tokens."""
    pos_groups: int = Field(default=16, ge=1, le=_MAX_SIZE)
    """Number of groups of the positional convolution."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not divisible by num_heads {self.num_heads}")
        if self.width % self.pos_groups:
            raise ValueError(f"width {self.width} is not divisible by pos_groups {self.pos_groups}")
        if self.output_layers > self.depth:
            raise ValueError(f"output_layers {self.output_layers} is more than depth {self.depth}")
        return self


class ComputeOptions(Options):
    """How the encoder computes its output; no choice here changes a weight, or a result beyond rounding.

    These are options of a run, not of a model: a model may be trained on one machine and used on another.
    """

    attention: AttentionBackend = "auto"
    """Attention kernel: plain (matmuls and a softmax), flash, cudnn, efficient, or auto (by device)."""
    positional: PositionalImplementation = "auto"
    """Implementation of the positional convolution: conv2d, conv1d, toeplitz, triton, or auto (by device)."""
    activation_checkpointing: bool = False
    """Whether to recompute the transformer blocks in the backward pass. Only the input of each block is kept: the base model
    needs a tenth of the memory, for a third more compute. Losses are the same, dropout included."""


class EncoderOutput(NamedTuple):
    """The encoder's output, which objectives and heads use."""

    context: Tensor
    """[B, T, D], output of the transformer: of its last block, or the mean of its last ``output_layers`` blocks."""
    features: Tensor
    """[B, T, F], output of the feature encoder, before LayerNorm."""
    latents: Tensor
    """[B, T, F], features after LayerNorm and feature dropout, unmasked: the input of the quantizer."""


class Encoder(nn.Module):
    """ECG segments to contextual tokens.

    Args:
        options: architecture.
        num_leads: C.
        compute: how to compute.
    """

    def __init__(self, options: EncoderOptions, num_leads: int = 12, compute: ComputeOptions | None = None) -> None:
        super().__init__()
        compute = ComputeOptions() if compute is None else compute
        self.options, self.num_leads = options, num_leads
        self.activation_checkpointing = compute.activation_checkpointing
        self.feature_encoder = FeatureEncoder(num_leads, options.feature_channels, options.feature_blocks, options.norm)
        self.feature_norm = LayerNorm(options.feature_channels)
        self.feature_dropout = Dropout(options.feature_dropout)
        self.feature_projection = Projection(options.feature_channels, options.width)
        self.input_dropout = Dropout(options.input_dropout)
        self.mask_embedding = MaskEmbedding(options.width)
        self.positional_convolution = PositionalConvolution(
            options.width, options.pos_kernel, options.pos_groups, compute.positional
        )
        self.context_norm = LayerNorm(options.width)
        self.context_dropout = Dropout(options.dropout)
        self.blocks = nn.ModuleList(
            Block(
                options.width,
                options.num_heads,
                options.mlp_width,
                options.dropout,
                options.attention_dropout,
                compute.attention,
                activation_dropout=options.activation_dropout,
                drop_path=options.drop_path * i / max(1, options.depth - 1),
            )
            for i in range(options.depth)
        )

    def num_tokens(self, num_samples: int) -> int:
        """Returns the number of tokens of a segment; ValueError if it is shorter than one token."""
        return self.feature_encoder.num_tokens(num_samples)

    def features(self, segments: Tensor) -> Tensor:
        """Runs the feature encoder alone: segments [B, C, T] in mV -> [B, T', F], with scaled gradient."""
        if segments.dim() != 3 or segments.shape[1] != self.num_leads:
            raise ValueError(f"expected segments [batch, {self.num_leads} leads, samples], got {list(segments.shape)}")
        return scale_gradient(self.feature_encoder(segments), self.options.feature_grad_scale)

    def forward(self, segments: Tensor, mask: Tensor | None = None) -> EncoderOutput:
        """Encodes segments; computes in their dtype.

        Args:
            segments: [B, C, T] in mV, fp32 or bf16.
            mask: bool [B, T'], tokens to replace by the mask embedding; None: none.

        Raises:
            ValueError: wrong number of axes or leads, or segments that are shorter than one token.
        """
        features = self.features(segments)
        normed = self.feature_norm(features)
        x = self.input_dropout(self.feature_projection(normed))
        if mask is not None:
            x = self.mask_embedding(x, mask)
        x = self.context_dropout(self.context_norm(self.positional_convolution(x)))
        recomputes = self.activation_checkpointing and is_grad_enabled()
        outputs: list[Tensor] = []
        for block in self.blocks:
            # PyTorch restores its generators for the second run, so that the same values are dropped.
            x = checkpoint(block, x, use_reentrant=False) if recomputes else block(x)
            outputs = [*outputs, x][-self.options.output_layers :]
        context = x if len(outputs) == 1 else torch.stack(outputs).mean(0)
        return EncoderOutput(context, features=features, latents=self.feature_dropout(normed))


def flops_per_segment(options: EncoderOptions, num_leads: int, num_samples: int) -> float:
    """Returns the FLOPs of one training step of the encoder for one segment.

    These are matrix products and convolutions only, forward once and backward twice, without recomputation. Objectives add
    theirs.
    """
    num_tokens = num_samples // feature_encoder.samples_per_token(options.feature_blocks)
    forward = (
        feature_encoder.flops_per_segment(num_leads, options.feature_channels, options.feature_blocks, num_samples)
        + 2.0 * num_tokens * options.feature_channels * options.width
        + positional.flops_per_segment(options.width, options.pos_kernel, options.pos_groups, num_tokens)
        + options.depth * transformer.flops_per_segment(options.width, options.mlp_width, num_tokens)
    )
    return 3.0 * forward
