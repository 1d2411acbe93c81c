"""Tiny pre-training models and batches for tests."""

import torch
from torch import Tensor

from engine.models import Encoder, EncoderOptions
from engine.objectives import (
    OBJECTIVES,
    CMSCOptions,
    PretrainingModel,
    W2VCMSCOptions,
    W2VOptions,
)
from engine.objectives.cmsc import CMSCForm
from engine.options import Options

NO_DROPOUT = {"feature_dropout": 0.0, "input_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}


def tiny_encoder_options(**changes: object) -> EncoderOptions:
    """Small everywhere, without dropout."""
    sizes = {
        "feature_channels": 16,
        "width": 32,
        "depth": 2,
        "num_heads": 4,
        "mlp_width": 64,
        "pos_kernel": 8,
        "pos_groups": 4,
    }
    return EncoderOptions.model_validate(sizes | NO_DROPOUT | changes)


def tiny_model(objective: str, form: CMSCForm = "ntxent", seed: int = 0, **changes: object) -> PretrainingModel:
    """A tiny model in training mode, with weights from the seed."""
    encoder_options = tiny_encoder_options(**changes)
    w2v = W2VOptions(final_width=16, code_width=16, num_codes=10, num_negatives=20)
    cmsc = CMSCOptions(form=form)
    options: dict[str, Options] = {"w2v": w2v, "cmsc": cmsc, "w2v_cmsc": W2VCMSCOptions(w2v=w2v, cmsc=cmsc)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(encoder_options)
        return PretrainingModel(encoder, OBJECTIVES[objective](options[objective], encoder_options), seed=seed)


def random_batch(num_pairs: int, num_samples: int = 640, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Segments [N, 2, 12, T] in mV and patients [N], of whom the first two pairs share one."""
    generator = torch.Generator().manual_seed(seed)
    segments = 0.3 * torch.randn(num_pairs, 2, 12, num_samples, generator=generator)
    return segments, (torch.arange(num_pairs) - 1).clamp(min=0)
