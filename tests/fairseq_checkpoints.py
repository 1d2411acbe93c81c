"""Checkpoints in the format of the official implementation, with its golden weights or random ones."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.models.feature_encoder import FeatureNorm

NUM_LABELS = 5
LABELS = ("AF", "LBBB", "RBBB", "PVC", "NSR")


def golden_cfg(norm: FeatureNorm, **changes: object) -> dict[str, Any]:
    """Returns the cfg of a golden model, as the official code saves it: a nested dict with much more than the model."""
    model = {
        "_name": "wav2vec2_cmsc",
        "extractor_mode": "default" if norm == "group_norm" else "layer_norm",
        "conv_feature_layers": "[(32, 2, 2)] * 4",
        "in_d": 12,
        "conv_bias": False,
        "feature_grad_mult": 0.1,
        "encoder_layers": 2,
        "encoder_embed_dim": 64,
        "encoder_ffn_embed_dim": 128,
        "encoder_attention_heads": 4,
        "layer_norm_first": False,
        "final_dim": 32,
        "quantize_targets": True,
        "latent_vars": 20,
        "latent_groups": 2,
        "latent_temp": [2.0, 0.5, 0.999995],
        "conv_pos": 16,
        "conv_pos_groups": 4,
        "apply_mask": True,
        "data": "/home/somebody/manifests",
        "args": None,
    }
    task = {"_name": "ecg_pretraining", "data": "/home/somebody/manifests", "sample_rate": 500, "normalize": False}
    return {"common": {"seed": 1}, "task": task, "model": model | changes, "optimizer": {"_name": "adam"}}


def as_checkpoint(cfg: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Any]:
    """Returns a checkpoint as the official trainer saves it."""
    return {
        "cfg": cfg,
        "args": None,
        "model": weights,
        "criterion": None,
        "optimizer_history": [{"criterion_name": "Wav2Vec2WithCMSC", "lr_scheduler_state": {"best": 1.5}, "num_updates": 7}],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 2, "iterations_in_epoch": 0}, "val_loss": None},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []},
    }


def save_checkpoint(path: Path, cfg: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    torch.save(as_checkpoint(cfg, weights), path)
    return path


def with_old_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames weights to those of PyTorch's older weight norm."""
    prefix = "conv_pos.pos_conv.0."
    new = {
        f"{prefix}parametrizations.weight.original0": f"{prefix}weight_g",
        f"{prefix}parametrizations.weight.original1": f"{prefix}weight_v",
    }
    return {new.get(name, name): tensor for name, tensor in weights.items()}


def fine_tuned(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns weights as after fine-tuning: the encoder under ``encoder.``, no pre-training heads, a classifier."""
    heads = ("mask_emb", "quantizer.", "project_q.", "final_proj.")
    encoder = {f"encoder.{name}": tensor for name, tensor in weights.items() if not name.startswith(heads)}
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(NUM_LABELS, len(weights["encoder.layer_norm.bias"]), generator=generator)
    return encoder | {"proj.weight": weight, "proj.bias": torch.linspace(-1, 1, NUM_LABELS)}


def random_weights(norm: FeatureNorm, seed: int = 0) -> dict[str, Tensor]:
    """Returns random weights with the golden model's names and shapes, for tests that need no golden outputs."""
    shapes: dict[str, tuple[int, ...]] = {"mask_emb": (64,)}
    for i in range(2):
        layer = f"encoder.layers.{i}"
        for part in "kvq":
            shapes |= _linear(f"{layer}.self_attn.{part}_proj", 64, 64)
        shapes |= _linear(f"{layer}.self_attn.out_proj", 64, 64) | _norm(f"{layer}.self_attn_layer_norm", 64)
        shapes |= _linear(f"{layer}.fc1", 128, 64) | _linear(f"{layer}.fc2", 64, 128) | _norm(f"{layer}.final_layer_norm", 64)
    shapes |= _norm("encoder.layer_norm", 64)
    for i in range(4):
        block = f"feature_extractor.conv_layers.{i}"
        shapes[f"{block}.0.weight"] = (32, 12 if i == 0 else 32, 2)
        if norm == "layer_norm":
            shapes |= _norm(f"{block}.2.1", 32)
        elif i == 0:
            shapes |= _norm(f"{block}.2", 32)
    shapes |= _linear("post_extract_proj", 64, 32) | _norm("layer_norm", 32)
    start = "conv_pos.pos_conv.0"
    shapes |= {f"{start}.bias": (64,), f"{start}.parametrizations.weight.original0": (1, 1, 16)}
    shapes |= {f"{start}.parametrizations.weight.original1": (64, 16, 16), "quantizer.vars": (1, 40, 16)}
    shapes |= _linear("quantizer.weight_proj", 40, 32) | _linear("project_q", 32, 32) | _linear("final_proj", 32, 64)
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def _linear(name: str, out_features: int, in_features: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out_features, in_features), f"{name}.bias": (out_features,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
