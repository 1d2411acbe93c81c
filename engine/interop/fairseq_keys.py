"""Names of tensors in official checkpoints and in this engine.

One table serves both directions, so that imported weights can be exported again bit for bit.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from engine.models import EncoderOptions

KeyTable = dict[str, tuple[str, ...]]
"""Our name -> the official names, whose rows are concatenated in ours."""

_POS_CONV = "conv_pos.pos_conv.0"
_ALIASES: Final[dict[str, str]] = {
    # Before it became a module of its own.
    "encoder.pos_conv.0.": f"{_POS_CONV}.",
    # PyTorch's older weight norm.
    f"{_POS_CONV}.weight_g": f"{_POS_CONV}.parametrizations.weight.original0",
    f"{_POS_CONV}.weight_v": f"{_POS_CONV}.parametrizations.weight.original1",
}

_BLOCK_PARTS: Final = {
    "attention.out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "fc1": "fc1",
    "fc2": "fc2",
    "mlp_norm": "final_layer_norm",
}

HEADS: Final[tuple[str, ...]] = ("quantizer.", "project_q.", "final_proj.", "target_glu.")
"""Prefixes of the official names of the pre-training heads."""


def key_table(encoder: EncoderOptions, *, heads: str | None, has_mask_embedding: bool) -> KeyTable:
    """Returns the table for an architecture, in the order of the official state dict.

    Args:
        encoder: the encoder's options.
        heads: prefix of our names of the wav2vec 2.0 heads, such as ``objective.w2v.``; None without heads.
        has_mask_embedding: whether the official state dict has a mask embedding.
    """
    table: KeyTable = {"encoder.mask_embedding.embedding": ("mask_emb",)} if has_mask_embedding else {}

    def add(ours: str, *official: str) -> None:
        for kind in ("weight", "bias"):
            table[f"{ours}.{kind}"] = tuple(f"{name}.{kind}" for name in official)

    for i in range(encoder.depth):
        ours, official = f"encoder.blocks.{i}", f"encoder.layers.{i}"
        add(f"{ours}.attention.qkv", *(f"{official}.self_attn.{part}_proj" for part in "qkv"))
        for our_part, part in _BLOCK_PARTS.items():
            add(f"{ours}.{our_part}", f"{official}.{part}")
    add("encoder.context_norm", "encoder.layer_norm")
    for i in range(encoder.feature_blocks):
        ours, official = f"encoder.feature_encoder.blocks.{i}", f"feature_extractor.conv_layers.{i}"
        table[f"{ours}.weight"] = (f"{official}.0.weight",)
        if encoder.norm == "layer_norm" or i == 0:
            add(f"{ours}.norm", f"{official}.2.1" if encoder.norm == "layer_norm" else f"{official}.2")
    if has_projection(encoder):
        add("encoder.feature_projection", "post_extract_proj")
    table["encoder.positional_convolution.bias"] = (f"{_POS_CONV}.bias",)
    table["encoder.positional_convolution.weight_g"] = (f"{_POS_CONV}.parametrizations.weight.original0",)
    table["encoder.positional_convolution.weight_v"] = (f"{_POS_CONV}.parametrizations.weight.original1",)
    add("encoder.feature_norm", "layer_norm")
    if heads is not None:
        table[f"{heads}quantizer.codebook.codes"] = ("quantizer.vars",)
        add(f"{heads}quantizer.projection", "quantizer.weight_proj")
        add(f"{heads}target_projection", "project_q")
        add(f"{heads}context_projection", "final_proj")
    return table


def below_encoder(table: KeyTable) -> KeyTable:
    """Returns the table of a fine-tuned model, whose official names are below ``encoder.``."""
    return {ours: tuple(f"encoder.{name}" for name in official) for ours, official in table.items()}


def has_projection(encoder: EncoderOptions) -> bool:
    """Returns whether the official encoder projects its features, as it does unless they are as wide as the transformer."""
    return encoder.feature_channels != encoder.width


def rename_to_current(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Replaces older official names by current ones, unless the current name already exists.

    Args:
        tensors: the official state dict.
        prefix: ``encoder.`` for a fine-tuned model, else empty.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new = name
        for old_start, new_start in _ALIASES.items():
            if new.startswith(prefix + old_start):
                new = prefix + new_start + new.removeprefix(prefix + old_start)
        renamed[name if new != name and (new in tensors or new in renamed) else new] = tensor
    return renamed


def to_ours(official: Mapping[str, Tensor], table: KeyTable, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Returns our tensors from the official ones, whose names and shapes must be those that :func:`to_official` returns."""
    ours: dict[str, Tensor] = {}
    for name, parts in table.items():
        tensors = [official[part] for part in parts]
        ours[name] = (torch.cat(tensors) if len(tensors) > 1 else tensors[0]).reshape(shapes[name])
    return ours


def to_official(ours: Mapping[str, Tensor], table: KeyTable) -> dict[str, Tensor]:
    """Returns the official tensors from ours."""
    official: dict[str, Tensor] = {}
    for name, parts in table.items():
        tensor = ours[name]
        if name.endswith("codebook.codes"):
            tensor = tensor.flatten(0, 1)[None]  # [G, V, d] -> [1, G V, d]
        official |= dict(zip(parts, tensor.chunk(len(parts)), strict=True))
    return official
