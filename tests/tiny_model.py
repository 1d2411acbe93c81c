"""Tiny pre-training models and batches for tests."""

import torch
from torch import Tensor

from engine.models import Encoder, EncoderOptions
from engine.objectives import OBJECTIVES, PretrainingModel, W2VOptions
from engine.objectives.cmsc import CMSCOptions
from engine.objectives.contrast import GlobalOptions
from engine.objectives.w2v_cmsc import W2VCMSCOptions
from engine.options import Options

_W2V = {"final_width": 16, "code_width": 16, "num_codes": 10, "num_negatives": 20}
_FIXED_COUNT = W2VOptions.model_validate(_W2V | {"masking": "fixed_count"})
_SYMMETRIC = CMSCOptions(form="symmetric")
_OWN_RANK = GlobalOptions(negatives="own_rank", constant_norms=True, identity="recording")
_OFFICIAL = CMSCOptions(form="symmetric", positives="all", **_OWN_RANK.model_dump())

# Every form of every objective: case -> (name in OBJECTIVES, tiny options).
EVERY_OBJECTIVE: dict[str, tuple[str, Options]] = {
    "w2v": ("w2v", W2VOptions.model_validate(_W2V)),
    "w2v-fixed_count": ("w2v", _FIXED_COUNT),
    "cmsc": ("cmsc", CMSCOptions()),
    "cmsc-symmetric": ("cmsc", _SYMMETRIC),
    "cmsc-all_positives": ("cmsc", CMSCOptions(positives="all")),
    "cmsc-official": ("cmsc", _OFFICIAL),
    "w2v_cmsc": ("w2v_cmsc", W2VCMSCOptions(w2v=W2VOptions.model_validate(_W2V))),
    "w2v_cmsc-symmetric": ("w2v_cmsc", W2VCMSCOptions(w2v=W2VOptions.model_validate(_W2V), cmsc=_SYMMETRIC)),
    "w2v_cmsc-official": ("w2v_cmsc", W2VCMSCOptions(w2v=_FIXED_COUNT, cmsc=_OFFICIAL)),
    "simclr": ("simclr", GlobalOptions()),
    "simclr-official": ("simclr", _OWN_RANK),
    "3kg": ("3kg", GlobalOptions()),
    "3kg-official": ("3kg", _OWN_RANK),
}

NO_DROPOUT = {"feature_dropout": 0.0, "input_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}


def tiny_encoder_options(**changes: object) -> EncoderOptions:
    """Returns tiny sizes without dropout."""
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


def tiny_model(case: str, seed: int = 0, num_leads: int = 12, **changes: object) -> PretrainingModel:
    """Returns a tiny model for a case of :data:`EVERY_OBJECTIVE`, in training mode, with weights from the seed."""
    name, options = EVERY_OBJECTIVE[case]
    encoder_options = tiny_encoder_options(**changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = Encoder(encoder_options, num_leads)
        return PretrainingModel(encoder, OBJECTIVES[name](options, encoder_options), seed=seed)


def random_batch(num_pairs: int, num_samples: int = 640, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns segments [N, 2, 12, T] in mV and patients [N]; the first two pairs share a patient."""
    generator = torch.Generator().manual_seed(seed)
    segments = 0.3 * torch.randn(num_pairs, 2, 12, num_samples, generator=generator)
    return segments, (torch.arange(num_pairs) - 1).clamp(min=0)
