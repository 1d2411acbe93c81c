"""Gumbel vector quantizer: the targets of the local objective (wav2vec 2.0, section 2, equation 1).

Legend: B segments, T tokens, F features, G groups (codebooks), V codes per group, Q width of a quantized vector.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.models.layers import Linear


class Quantized(NamedTuple):
    """The quantizer's output for every token."""

    vectors: Tensor
    """[B, T, Q], in the dtype of the input."""
    codes: Tensor
    """int64 [B, T, G]: the chosen code of each group, under the Gumbel noise if there is any."""
    logits: Tensor
    """fp32 [B, T, G, V], before noise and temperature."""


def one_hot(codes: Tensor, num_codes: int) -> Tensor:
    """Returns fp32 [..., V] for int64 [...]; ``F.one_hot`` returns int64, and on a CPU checks the codes first."""
    return (codes[..., None] == torch.arange(num_codes, device=codes.device)).float()


class Codebook(nn.Module):
    """The code vectors [G, V, Q / G] (initially uniform on [0, 1)); the choices of the groups are concatenated."""

    def __init__(self, num_groups: int, num_codes: int, width: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.empty(num_groups, num_codes, width // num_groups))
        nn.init.uniform_(self.codes)

    def forward(self, weights: Tensor) -> Tensor:
        """Returns the sums of the codes, weighted by [B, T, G, V]: [B, T, Q]."""
        return torch.einsum("btgv,gvd->btgd", weights, self.codes.to(weights.dtype)).flatten(2)


class GumbelQuantizer(nn.Module):
    """Chooses one code per group for each token.

    Args:
        num_features: F.
        num_groups: G.
        num_codes: V, per group.
        width: Q; must be divisible by the number of groups.
    """

    def __init__(self, num_features: int, num_groups: int, num_codes: int, width: int) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.projection = Linear(num_features, num_groups * num_codes)
        # As in wav2vec 2.0: large logits, so that tokens choose different codes from the first step.
        nn.init.normal_(self.projection.weight)
        self.codebook = Codebook(num_groups, num_codes, width)

    def forward(self, latents: Tensor, gumbel_noise: Tensor | None, temperature: Tensor | float) -> Quantized:
        """Quantizes tokens.

        Args:
            latents: [B, T, F].
            gumbel_noise: fp32 [B, T, G, V], standard Gumbel noise: codes are the arg-max of logits + noise, with
                straight-through gradients of softmax((logits + noise) / temperature). None: codes are the arg-max of the
                logits, which get no gradient.
            temperature: temperature of the softmax; only used with noise.
        """
        logits = self.projection(latents).float().unflatten(-1, (self.num_groups, -1))
        scores = logits if gumbel_noise is None else logits + gumbel_noise
        codes = scores.argmax(-1)
        weights = one_hot(codes, logits.shape[-1])
        if gumbel_noise is not None:
            soft = torch.softmax(scores / temperature, dim=-1)
            # soft - soft.detach() is exactly zero, so tokens with equal codes get exactly equal vectors.
            weights = weights + (soft - soft.detach())
        return Quantized(self.codebook(weights.to(latents.dtype)), codes, logits)


def flops_per_segment(num_features: int, num_groups: int, num_codes: int, width: int, num_tokens: int) -> float:
    """Returns the FLOPs of one forward pass for one segment."""
    return 2.0 * num_tokens * num_codes * (num_groups * num_features + width)
