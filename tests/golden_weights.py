"""The golden W2V+CMSC models (shared/golden): their arrays, and their weights under this engine's names."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.models import Encoder, EncoderOptions
from engine.models.feature_encoder import FeatureNorm
from engine.objectives import W2VCMSC, CMSCOptions, PretrainingModel, W2VCMSCOptions, W2VDraws, W2VOptions

RENAMED = {
    "mask_emb": "encoder.mask_embedding.embedding",
    "layer_norm": "encoder.feature_norm",
    "post_extract_proj": "encoder.feature_projection",
    "conv_pos.pos_conv.0.bias": "encoder.positional_convolution.bias",
    "conv_pos.pos_conv.0.parametrizations.weight.original0": "encoder.positional_convolution.weight_g",
    "conv_pos.pos_conv.0.parametrizations.weight.original1": "encoder.positional_convolution.weight_v",
    "encoder.layer_norm": "encoder.context_norm",
    "quantizer.weight_proj": "objective.w2v.quantizer.projection",
    "project_q": "objective.w2v.target_projection",
    "final_proj": "objective.w2v.context_projection",
}
RENAMED_IN_BLOCK = {
    "self_attn.out_proj": "attention.out",
    "self_attn_layer_norm": "attention_norm",
    "fc1": "fc1",
    "fc2": "fc2",
    "final_layer_norm": "mlp_norm",
}
NUM_FEATURE_BLOCKS = 4
NUM_BLOCKS = 2
NUM_CODEBOOKS = 2


def load_golden(folder: Path, norm: str) -> dict[str, Tensor]:
    """All arrays of one golden model as tensors; the weights are those under ``sd/``."""
    with np.load(folder / f"w2v_cmsc_{norm}.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


def engine_state_dict(golden: dict[str, Tensor], norm: str) -> dict[str, Tensor]:
    """The golden weights under the names of :class:`PretrainingModel` with ``w2v_cmsc``."""
    weights = {name.removeprefix("sd/"): value for name, value in golden.items() if name.startswith("sd/")}
    state: dict[str, Tensor] = {}

    def take(old: str, new: str) -> None:
        for name in [name for name in weights if name == old or name in {f"{old}.weight", f"{old}.bias"}]:
            state[new + name.removeprefix(old)] = weights.pop(name)

    for old, new in RENAMED.items():
        take(old, new)
    for i in range(NUM_FEATURE_BLOCKS):
        new = f"encoder.feature_encoder.blocks.{i}"
        take(f"feature_extractor.conv_layers.{i}.0", new)
        take(f"feature_extractor.conv_layers.{i}.2" + (".1" if norm == "layer_norm" else ""), f"{new}.norm")
    for i in range(NUM_BLOCKS):
        old, new = f"encoder.layers.{i}", f"encoder.blocks.{i}"
        for old_part, new_part in RENAMED_IN_BLOCK.items():
            take(f"{old}.{old_part}", f"{new}.{new_part}")
        for kind in ("weight", "bias"):
            parts = [weights.pop(f"{old}.self_attn.{part}_proj.{kind}") for part in "qkv"]
            state[f"{new}.attention.qkv.{kind}"] = torch.cat(parts)
    codes = weights.pop("quantizer.vars")[0]
    state["objective.w2v.quantizer.codebook.codes"] = codes.view(NUM_CODEBOOKS, -1, codes.shape[-1])
    assert not weights, f"golden weights without a place: {sorted(weights)}"
    return state


def golden_model(golden: dict[str, Tensor], norm: FeatureNorm) -> PretrainingModel:
    """The engine's model with the golden weights, in evaluation mode; the global loss in the official, symmetric form."""
    encoder_options = EncoderOptions(
        norm=norm, feature_channels=32, width=64, depth=NUM_BLOCKS, num_heads=4, mlp_width=128, pos_kernel=16, pos_groups=4
    )
    w2v = W2VOptions(final_width=32, code_width=32, num_codebooks=NUM_CODEBOOKS, num_codes=20)
    options = W2VCMSCOptions(w2v=w2v, cmsc=CMSCOptions(form="symmetric"))
    model = PretrainingModel(Encoder(encoder_options), W2VCMSC(options, encoder_options))
    model.load_state_dict(engine_state_dict(golden, norm))
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
