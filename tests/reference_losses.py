"""Naive float64 versions of every loss, written from the equations: references for the fast versions.

They loop over segments, tokens and drawn negatives, and share no code with the engine. Equations are those of the paper
("Lead-agnostic Self-supervised Learning for Local and Global Representations of Electrocardiogram"); Gumbel-softmax and
diversity are those of wav2vec 2.0.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def constant_norm_cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of the official code's global losses: no gradient flows through the norms."""
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt()).detach()


def local_losses(
    contexts: Tensor, targets: Tensor, codes: Tensor, mask: Tensor, negatives: Tensor, temperature: float
) -> Tensor:
    """Equation 1, with explicit draws.

    Args:
        contexts: [S, T, E].
        targets: [S, T, E].
        codes: [S, T, G]; negatives with the positive's codes are excluded.
        mask: bool [S, T].
        negatives: [S, T, K] positions in the segment.
        temperature: tau.

    Returns:
        Losses of the masked tokens, in order, of segments with at least two of them.
    """
    losses = []
    for s in range(mask.shape[0]):
        if mask[s].sum() < 2:
            continue
        for t in range(mask.shape[1]):
            if not mask[s, t]:
                continue
            positive = cosine(contexts[s, t], targets[s, t]) / temperature
            denominator = positive.exp()
            for j in negatives[s, t].tolist():
                if not torch.equal(codes[s, j], codes[s, t]):
                    denominator = denominator + (cosine(contexts[s, t], targets[s, j]) / temperature).exp()
            losses.append(-torch.log(positive.exp() / denominator))
    return torch.stack(losses) if losses else contexts.new_zeros(0)


def perplexity(probabilities: Tensor) -> Tensor:
    """Returns exp(entropy), summed over the groups of [G, V]; the small constant is wav2vec 2.0's."""
    total = probabilities.new_zeros(())
    for group in probabilities:
        total = total + torch.exp(-sum((p * torch.log(p + 1e-7) for p in group), start=probabilities.new_zeros(())))
    return total


def quantize(logits: Tensor, noise: Tensor | None, temperature: float, codebook: Tensor) -> tuple[Tensor, Tensor]:
    """Gumbel-softmax with straight-through gradients, token by token.

    Args:
        logits: [S, T, G, V].
        noise: Gumbel noise of the same shape; ``None``: arg-max.
        temperature: temperature of the softmax.
        codebook: [G, V, Q / G].

    Returns:
        Vectors [S, T, Q] and codes [S, T, G].
    """
    S, T, G, V = logits.shape
    vectors, codes = [], []
    for token in range(S * T):
        parts = []
        for g in range(G):
            row = logits.view(-1, G, V)[token, g]
            if noise is not None:
                row = row + noise.reshape(-1, G, V)[token, g]
            code = int(row.argmax())
            codes.append(code)
            choice = torch.zeros(V, dtype=logits.dtype)
            choice[code] = 1.0
            if noise is not None:
                soft = (row / temperature).exp() / (row / temperature).exp().sum()
                choice = choice + soft - soft.detach()
            parts.append(choice @ codebook[g])
        vectors.append(torch.cat(parts))
    return torch.stack(vectors).view(S, T, -1), torch.tensor(codes).view(S, T, G)


def global_loss(
    pooled: Tensor,
    patient: Tensor,
    form: str,
    temperature: float,
    positives: str = "pair",
    similarity: Callable[[Tensor, Tensor], Tensor] = cosine,
) -> Tensor:
    """Equations 3 and 4 (``ntxent``), or the mean of both directions of the cross-entropy between halves (``symmetric``).

    Args:
        pooled: g, [2 N, D]; rows 2 i and 2 i + 1 are a pair.
        patient: [N]; other pairs of the same patient are excluded, or positives too.
        form: ``ntxent`` or ``symmetric``.
        temperature: tau.
        positives: ``pair`` or ``all``.
        similarity: of two vectors.
    """
    total = pooled.new_zeros(())
    for i in range(len(pooled)):
        compared = [k for k in range(len(pooled)) if k != i and (form == "ntxent" or k % 2 != i % 2)]
        chosen = [k for k in compared if patient[k // 2] == patient[i // 2] and (positives == "all" or k == i ^ 1)]
        denominator = pooled.new_zeros(())
        for k in compared:
            if k in chosen or patient[k // 2] != patient[i // 2]:
                denominator = denominator + (similarity(pooled[i], pooled[k]) / temperature).exp()
        for j in chosen:
            total = total - torch.log((similarity(pooled[i], pooled[j]) / temperature).exp() / denominator) / len(chosen)
    return total / len(pooled)


def patient_loss(
    pooled: Tensor, patient: Tensor, temperature: float, similarity: Callable[[Tensor, Tensor], Tensor] = cosine
) -> Tensor:
    """3KG: each positive of an anchor against the anchor's negatives, averaged over all ordered pairs of a patient.

    Args:
        pooled: [2 N, D].
        patient: [2 N].
        temperature: tau.
        similarity: of two vectors.
    """
    losses = []
    for i in range(len(pooled)):
        negatives = pooled.new_zeros(())
        for k in range(len(pooled)):
            if patient[k] != patient[i]:
                negatives = negatives + (similarity(pooled[i], pooled[k]) / temperature).exp()
        for j in range(len(pooled)):
            if j != i and patient[j] == patient[i]:
                positive = (similarity(pooled[i], pooled[j]) / temperature).exp()
                losses.append(-torch.log(positive / (positive + negatives)))
    return torch.stack(losses).mean()
