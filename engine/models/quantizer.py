"""Gumbel vector quantizer: the targets of the local objective (wav2vec 2.0, section 2, equation 1).

Legend: B segments, T tokens, F features, G groups (codebooks), V codes per group, Q width of a quantized vector.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.models.layers import Linear


class Quantized(NamedTuple):
    """What the quantizer makes of every token."""

    vectors: Tensor
    """[B, T, Q], in the dtype of the input."""
    codes: Tensor
    """int64 [B, T, G]: the chosen code of each group; with Gumbel noise, the choice under the noise."""
    logits: Tensor
    """fp32 [B, T, G, V], without noise or temperature."""


def one_hot(codes: Tensor, num_codes: int) -> Tensor:
    """fp32 [..., V] from int64 [...]; ``F.one_hot`` makes 64-bit numbers, and on a CPU looks at the codes first."""
    return (codes[..., None] == torch.arange(num_codes, device=codes.device)).float()


class Codebook(nn.Module):
    """The code vectors, [G, V, Q / G] (uniform on [0, 1) at the start); the groups' choices are concatenated."""

    def __init__(self, num_groups: int, num_codes: int, width: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.empty(num_groups, num_codes, width // num_groups))
        nn.init.uniform_(self.codes)

    def forward(self, weights: Tensor) -> Tensor:
        """Sums the codes by their weights [B, T, G, V] -> [B, T, Q]."""
        return torch.einsum("btgv,gvd->btgd", weights, self.codes.to(weights.dtype)).flatten(2)


class GumbelQuantizer(nn.Module):
    """Chooses one code per group for each token.

    Args:
        num_features: F.
        num_groups: G.
        num_codes: V, per group.
        width: Q; the groups must divide it.
    """

    def __init__(self, num_features: int, num_groups: int, num_codes: int, width: int) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.projection = Linear(num_features, num_groups * num_codes)
        # As in wav2vec 2.0: wide logits, so that the choices differ between tokens from the first step on.
        nn.init.normal_(self.projection.weight)
        self.codebook = Codebook(num_groups, num_codes, width)

    def forward(self, latents: Tensor, gumbel_noise: Tensor | None, temperature: Tensor | float) -> Quantized:
        """Quantizes tokens.

        Args:
            latents: [B, T, F].
            gumbel_noise: fp32 [B, T, G, V], standard Gumbel: the choice is the arg-max of logits + noise, and gradients
                pass straight through to softmax((logits + noise) / temperature). None: arg-max of the logits; no gradient
                reaches them.
            temperature: of the softmax; has no effect without noise.
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
    """Operations of one forward pass for one segment, two per multiplication."""
    return 2.0 * num_tokens * num_codes * (num_groups * num_features + width)
