"""A global loss over all micro-batches of a step, with the memory of one (GradCache).

Gradient accumulation alone compares the segments of one micro-batch. Here all of a step's micro-batches are encoded first,
without gradient; the loss over all their embeddings gives the gradient of each embedding. Then each micro-batch is encoded
again, with gradient, and its embeddings receive theirs. The second pass must repeat the first: the same draws and dropout.

Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", https://arxiv.org/abs/2101.06983.

Legend: N samples of a micro-batch, K micro-batches of a step, T tokens, D width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.objectives.protocol import LOSS_BY_SEGMENT

Contrast = Callable[[Tensor, Tensor], tuple[Tensor, dict[str, Tensor]]]


class EmbeddingCache:
    """The embeddings of a step's micro-batches, and the gradients of the global loss over all of them.

    Args:
        contrast: the loss, from the encoder's output [2 N, T, D] and patients int64 [N].

    Attributes:
        is_first_pass: whether embeddings are still being collected.
    """

    def __init__(self, contrast: Contrast) -> None:
        self._contrast = contrast
        self._embeddings: list[Tensor] = []
        self._patients: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._results: list[tuple[Tensor, dict[str, Tensor]]] = []  # for the micro-batches of the second pass
        self.is_first_pass = True

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Encloses the first pass over all micro-batches; at the end the loss is computed, by all ranks together."""
        with torch.no_grad():
            yield
        embeddings = torch.cat(self._embeddings).requires_grad_()
        loss, metrics = self._contrast(embeddings, torch.cat(self._patients))
        (gradient,) = torch.autograd.grad(loss, embeddings)
        sizes = [len(part) for part in self._embeddings]
        # Gradients are averaged over the micro-batches.
        self._gradients = list((gradient * len(sizes)).split(sizes))
        by_segment = metrics.pop(LOSS_BY_SEGMENT, None)
        shares = [{} for _ in sizes] if by_segment is None else [{LOSS_BY_SEGMENT: part} for part in by_segment.split(sizes)]
        self.is_first_pass = False
        self._results = [(loss.detach(), metrics | share) for share in shares]

    def loss(self, context: Tensor, patient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the next micro-batch, context [2 N, T, D] and patient int64 [N], and metrics.

        In the second pass, the value is the loss of the whole step, and the gradient is this micro-batch's share.
        """
        embedding = context.mean(1, keepdim=True, dtype=torch.float32)
        if self.is_first_pass:
            self._embeddings.append(embedding)
            self._patients.append(patient)
            return embedding.new_zeros(()), {}
        loss, metrics = self._results.pop(0)
        share = (embedding * self._gradients.pop(0)).sum()
        return loss + share - share.detach(), metrics
