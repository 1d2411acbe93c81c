"""The golden W2V+CMSC models of tests/golden: their arrays, and their weights under this engine's names."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.interop.fairseq_keys import key_table, to_ours
from engine.models import Encoder, EncoderOptions
from engine.models.feature_encoder import FeatureNorm
from engine.objectives import PretrainingModel, W2VOptions
from engine.objectives.cmsc import CMSCOptions
from engine.objectives.w2v import W2VDraws
from engine.objectives.w2v_cmsc import W2VCMSC, W2VCMSCOptions

GOLDEN = Path(__file__).parent / "golden"
NUM_BLOCKS = 2
NUM_CODEBOOKS = 2


def load_golden(norm: str) -> dict[str, Tensor]:
    """Returns all arrays of a golden model as tensors; the weights are those under ``sd/``."""
    with np.load(GOLDEN / f"w2v_cmsc_{norm}.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


def official_weights(golden: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the golden weights under the official names."""
    return {name.removeprefix("sd/"): value for name, value in golden.items() if name.startswith("sd/")}


def golden_model(golden: dict[str, Tensor], norm: FeatureNorm) -> PretrainingModel:
    """The engine's model with the golden weights, in evaluation mode; the global loss in the official, symmetric form."""
    encoder_options = EncoderOptions(
        norm=norm, feature_channels=32, width=64, depth=NUM_BLOCKS, num_heads=4, mlp_width=128, pos_kernel=16, pos_groups=4
    )
    w2v = W2VOptions(final_width=32, code_width=32, num_codebooks=NUM_CODEBOOKS, num_codes=20)
    options = W2VCMSCOptions(w2v=w2v, cmsc=CMSCOptions(form="symmetric"))
    model = PretrainingModel(Encoder(encoder_options), W2VCMSC(options, encoder_options))
    table = key_table(encoder_options, heads="objective.w2v.", has_mask_embedding=True)
    weights = official_weights(golden)
    assert {name for names in table.values() for name in names} == weights.keys()
    model.load_state_dict(to_ours(weights, table, {name: tensor.shape for name, tensor in model.state_dict().items()}))
    return model.eval()


def negative_positions(golden: dict[str, Tensor]) -> Tensor:
    """The golden negatives as positions in their segment: int64 [S, M, 100]."""
    mask, negatives = golden["mask"], golden["negatives"]
    num_segments, num_masked = negatives.shape[:2]
    positions = mask.nonzero()[:, 1].view(num_segments, num_masked)
    within = negatives - torch.arange(num_segments)[:, None, None] * num_masked
    return positions.gather(1, within.flatten(1)).view(negatives.shape)


def golden_draws(golden: dict[str, Tensor]) -> W2VDraws:
    """The golden mask and negatives as the objective's draws, with arg-max codes."""
    mask = golden["mask"]
    num_segments, num_tokens = mask.shape
    counts = torch.zeros(num_segments, num_tokens, num_tokens)
    for segment, positions in enumerate(negative_positions(golden)):
        for token, chosen in zip(mask[segment].nonzero()[:, 0], positions, strict=True):
            counts[segment, token] = torch.bincount(chosen, minlength=num_tokens).float()
    return W2VDraws(mask, counts, gumbel_noise=None, gumbel_temperature=1.0)
