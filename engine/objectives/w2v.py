"""The local objective: wav2vec 2.0 on ECG tokens (the paper's W2V).

Equations 1 and 2 of the paper; the diversity loss is from A. Baevski et al., "wav2vec 2.0", https://arxiv.org/abs/2006.11477,
and the penalty on the features from the official code.

Legend: S segments, C leads, T tokens, G groups, V codes per group, E final width.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from engine.collectives import sum_over_ranks, world_size
from engine.counter_rng import uniform
from engine.models import Encoder, EncoderOptions, EncoderOutput, GumbelQuantizer, Quantized, quantizer
from engine.models.layers import Projection
from engine.objectives.masking import counted_span_mask, span_mask, token_weights
from engine.objectives.negatives import chance_levels, contrastive_losses, draw_negative_counts, without_equal_codes
from engine.objectives.protocol import LOSS_BY_SEGMENT, DrawKeys, Objective
from engine.options import Options, SampleUnit, SegmentPair

Masking = Literal["independent_starts", "fixed_count"]
MIN_SPANS = 2  # per segment, with ``fixed_count``


class W2VOptions(Options):
    """Options of W2V, the local objective; the defaults follow wav2vec 2.0, as in the paper."""

    masking: Masking = "independent_starts"
    """How masked tokens are chosen: independent_starts (the paper) or fixed_count (the official code). With
    independent_starts, each token starts a masked span with mask_probability. With fixed_count, each segment gets
    mask_probability x (number of tokens) spans, rounded at random and at least two; then masks are trimmed so that all segments
    have the same number of masked tokens."""
    mask_probability: float = Field(default=0.065, gt=0, le=1)
    """Probability that a token starts a masked span (with fixed_count: on average)."""
    mask_span: int = Field(default=10, ge=1)
    """Length of a masked span, in tokens."""
    num_negatives: int = Field(default=100, ge=1)
    """Negatives per masked token."""
    temperature: float = Field(default=0.1, gt=0)
    """Temperature of the similarities."""
    final_width: int = Field(default=256, ge=1)
    """Width of the space in which contexts and targets are compared."""
    num_codebooks: int = Field(default=2, ge=1)
    """Codebooks of the quantizer."""
    num_codes: int = Field(default=320, ge=2)
    """Codes per codebook."""
    code_width: int = Field(default=256, ge=1)
    """Width of a quantized vector, all codebooks together."""
    gumbel_start: float = Field(default=2.0, gt=0)
    """Gumbel temperature at the first step."""
    gumbel_end: float = Field(default=0.5, gt=0)
    """Lowest Gumbel temperature."""
    gumbel_decay: float = Field(default=0.999995, gt=0, le=1)
    """Multiplier for the Gumbel temperature per step."""
    diversity_weight: float = Field(default=0.1, ge=0)
    """Weight of the diversity loss."""
    features_penalty_weight: float = Field(default=10.0, ge=0)
    """Weight of the penalty on squared features."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.code_width % self.num_codebooks:
            raise ValueError(f"code_width {self.code_width} is not divisible by num_codebooks {self.num_codebooks}")
        if self.gumbel_end > self.gumbel_start:
            raise ValueError(f"gumbel_end {self.gumbel_end} is larger than gumbel_start {self.gumbel_start}")
        return self


class W2VDraws(NamedTuple):
    """Random draws of the local objective."""

    mask: Tensor
    """bool [S, T], the masked tokens."""
    negative_counts: Tensor
    """fp32 [S, T, T], multiplicities, see :mod:`engine.objectives.negatives`."""
    gumbel_noise: Tensor | None
    """fp32 [S, T, G, V]; None, as in evaluation: codes are the arg-max."""
    gumbel_temperature: Tensor | float
    """Temperature of the quantizer's softmax."""


def gumbel_temperature(options: W2VOptions, step: Tensor) -> Tensor:
    """Returns the temperature of the quantizer's softmax at a step (int64 scalar): fp32 scalar."""
    decayed = options.gumbel_start * torch.exp(step.double() * math.log(options.gumbel_decay))
    return decayed.clamp(min=options.gumbel_end).float()


def perplexity(probabilities: Tensor) -> Tensor:
    """Returns the sum over groups of exp(entropy): [G, V] -> scalar from G (one code each) to G V (uniform)."""
    return torch.exp(-(probabilities * torch.log(probabilities + 1e-7)).sum(-1)).sum()


class W2V(Objective):
    """At each masked token, picks the true quantized latent among the latents of other masked tokens.

    loss = mean over masked tokens of the contrastive loss
         + diversity_weight (G V - perplexity of the mean softmax over masked tokens) / (G V)
         + features_penalty_weight mean squared output of the feature encoder.

    The means are over the masked tokens of the global batch. As in wav2vec 2.0, the gradient of the penalty is scaled by
    ``feature_grad_scale`` too. Metrics: loss_local, loss_diversity and loss_features_penalty, which sum to the loss;
    accuracy_local, the fraction of masked tokens whose positive scores higher than every negative; chance_local, its
    expectation for a random order; prob_perplexity and code_perplexity, summed over groups; gumbel_temperature.
    """

    options_class: ClassVar[type[Options]] = W2VOptions
    pairs: ClassVar[Mapping[SampleUnit, SegmentPair]] = {"crop": "adjacent", "segment": "single"}
    options: W2VOptions

    def __init__(self, options: W2VOptions, encoder_options: EncoderOptions) -> None:
        super().__init__(options, encoder_options)
        self.num_features = encoder_options.feature_channels
        self.width = encoder_options.width
        self.quantizer = GumbelQuantizer(self.num_features, options.num_codebooks, options.num_codes, options.code_width)
        self.target_projection = Projection(options.code_width, options.final_width)
        self.context_projection = Projection(self.width, options.final_width)

    def draw(self, keys: DrawKeys, num_segments: int, num_tokens: int, device: torch.device) -> W2VDraws:
        """Draws masks, negatives and, in training, Gumbel noise."""
        o = self.options
        rows = keys.segment_rows(num_segments, device)
        mask = self._draw_mask(keys, rows, num_tokens)
        counts = draw_negative_counts(keys.key("negatives", device), rows, mask, o.num_negatives)
        noise = None
        if self.training:
            shape = (num_segments, num_tokens, o.num_codebooks, o.num_codes)
            draws = uniform(keys.key("gumbel", device), rows, math.prod(shape[1:]))
            noise = -torch.log(-torch.log(draws)).view(shape)
        return W2VDraws(mask, counts, noise, gumbel_temperature(o, keys.step_on(device)))

    def _draw_mask(self, keys: DrawKeys, rows: Tensor, num_tokens: int) -> Tensor:
        """Draws the mask as the option ``masking`` says: bool [S, T]."""
        o, device = self.options, rows.device
        start_key = keys.key("span starts", device)
        if o.masking == "independent_starts":
            return span_mask(start_key, rows, num_tokens, o.mask_probability, o.mask_span)
        batch_row = keys.batch_row(rows.shape[0], device)
        rounding = uniform(keys.key("span count", device), batch_row, 1)[0, 0]
        num_spans = (o.mask_probability * num_tokens + rounding).long().clamp(min=MIN_SPANS)
        return counted_span_mask(start_key, keys.key("span trimming", device), rows, num_tokens, num_spans, o.mask_span)

    def forward(self, encoder: Encoder, segments: Tensor, patient: Tensor, draws: W2VDraws) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`Objective`."""
        del patient  # negatives come from the same segment
        return self.local_loss(encoder(segments.flatten(0, 1), draws.mask), draws)

    def contrast(self, output: EncoderOutput, draws: W2VDraws) -> tuple[Tensor, Quantized, Tensor]:
        """Compares contexts with targets.

        Returns:
            Logits fp32 [S, T, T] of token t's context and token j's target; the quantizer's output; and the multiplicities of
            the negatives, fp32 [S, T, T], without those that equal the positive.
        """
        quantized: Quantized = self.quantizer(output.latents, draws.gumbel_noise, draws.gumbel_temperature)
        targets = F.normalize(self.target_projection(quantized.vectors).float(), dim=-1)
        contexts = F.normalize(self.context_projection(output.context).float(), dim=-1)
        counts = without_equal_codes(draws.negative_counts, quantized.codes)
        return contexts @ targets.mT / self.options.temperature, quantized, counts

    def local_loss(self, output: EncoderOutput, draws: W2VDraws) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics from the encoder's output for all S segments of this rank, masked with ``draws.mask``."""
        o = self.options
        logits, quantized, counts = self.contrast(output, draws)
        losses, correct = contrastive_losses(logits, counts)

        weights = token_weights(draws.mask)
        probabilities, code_usage, num_masked = self._statistics(quantized, weights)
        share = world_size() * weights / num_masked
        prob_perplexity = perplexity(probabilities)
        num_all_codes = o.num_codebooks * o.num_codes

        local = (losses * share).sum()
        diversity = o.diversity_weight * (num_all_codes - prob_perplexity) / num_all_codes
        penalty = o.features_penalty_weight * output.features.float().square().mean()
        metrics = {
            "loss_local": local,
            "loss_diversity": diversity,
            "loss_features_penalty": penalty,
            "accuracy_local": (correct * share).sum(),
            "chance_local": (chance_levels(counts, quantized.codes) * share).sum(),
            "prob_perplexity": prob_perplexity,
            "code_perplexity": perplexity(code_usage),
            "gumbel_temperature": torch.as_tensor(draws.gumbel_temperature, dtype=torch.float32, device=local.device),
        }
        if self.by_segment:
            metrics[LOSS_BY_SEGMENT] = (losses * share).sum(1) * len(losses) + diversity + penalty
        return local + diversity + penalty, {name: value.detach() for name, value in metrics.items()}

    @staticmethod
    def _statistics(quantized: Quantized, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns, over the masked tokens of all ranks: mean softmax [G, V], code usage without noise [G, V], their number."""
        num_codes = quantized.logits.shape[-1]
        softmax_sum = torch.einsum("st,stgv->gv", weights, quantized.logits.softmax(-1))
        choices = quantizer.one_hot(quantized.logits.argmax(-1), num_codes)
        usage_sum = torch.einsum("st,stgv->gv", weights, choices)
        # One collective for all three.
        sums = sum_over_ranks(torch.cat([softmax_sum.flatten(), usage_sum.flatten(), weights.sum()[None]]))
        num_masked = sums[-1].detach().clamp(min=1.0)
        means = (sums[:-1] / num_masked).view(2, *softmax_sum.shape)
        return means[0], means[1], num_masked

    def flops_per_segment(self, num_tokens: int) -> float:
        """See :class:`Objective`."""
        o = self.options
        heads = o.code_width * o.final_width + self.width * o.final_width + num_tokens * o.final_width
        quantizing = quantizer.flops_per_segment(self.num_features, o.num_codebooks, o.num_codes, o.code_width, num_tokens)
        return 3.0 * (2.0 * num_tokens * heads + quantizing)
