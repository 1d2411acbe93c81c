"""The names of tensors in the official implementation, and ours.

Both directions follow one table, so that what was read can be written again, bit for bit.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from engine.models import EncoderOptions

KeyTable = dict[str, tuple[str, ...]]
"""Our name -> the official one, or the several whose rows ours has one after another."""

_POS_CONV = "conv_pos.pos_conv.0"
_ALIASES: Final[dict[str, str]] = {
    # Before it was a module of its own.
    "encoder.pos_conv.0.": f"{_POS_CONV}.",
    # torch's older weight norm.
    f"{_POS_CONV}.weight_g": f"{_POS_CONV}.parametrizations.weight.original0",
    f"{_POS_CONV}.weight_v": f"{_POS_CONV}.parametrizations.weight.original1",
}

HEADS: Final[tuple[str, ...]] = ("quantizer.", "project_q.", "final_proj.", "target_glu.")
"""How the official names of the pre-training heads begin."""


def key_table(encoder: EncoderOptions, *, heads: str | None, has_mask_embedding: bool) -> KeyTable:
    """The table for one architecture, in the order of the official state dict.

    Args:
        encoder: sizes and norm.
        heads: how our names of the wav2vec 2.0 heads begin, such as ``objective.w2v.``; None without them.
        has_mask_embedding: whether the official state dict has one.
    """
    table: KeyTable = {"encoder.mask_embedding.embedding": ("mask_emb",)} if has_mask_embedding else {}
    for i in range(encoder.depth):
        table |= _block(f"encoder.blocks.{i}", f"encoder.layers.{i}")
    table |= dict(_both("encoder.context_norm", "encoder.layer_norm"))
    for i in range(encoder.feature_blocks):
        ours, official = f"encoder.feature_encoder.blocks.{i}", f"feature_extractor.conv_layers.{i}"
        table[f"{ours}.weight"] = (f"{official}.0.weight",)
        if encoder.norm == "layer_norm":
            table |= dict(_both(f"{ours}.norm", f"{official}.2.1"))
        elif i == 0:
            table |= dict(_both(f"{ours}.norm", f"{official}.2"))
    if has_projection(encoder):
        table |= dict(_both("encoder.feature_projection", "post_extract_proj"))
    table["encoder.positional_convolution.bias"] = (f"{_POS_CONV}.bias",)
    table["encoder.positional_convolution.weight_g"] = (f"{_POS_CONV}.parametrizations.weight.original0",)
    table["encoder.positional_convolution.weight_v"] = (f"{_POS_CONV}.parametrizations.weight.original1",)
    table |= dict(_both("encoder.feature_norm", "layer_norm"))
    if heads is not None:
        table[f"{heads}quantizer.codebook.codes"] = ("quantizer.vars",)
        table |= dict(_both(f"{heads}quantizer.projection", "quantizer.weight_proj"))
        table |= dict(_both(f"{heads}target_projection", "project_q"))
        table |= dict(_both(f"{heads}context_projection", "final_proj"))
    return table


def below_encoder(table: KeyTable) -> KeyTable:
    """The table of a fine-tuned model, whose official names are below ``encoder.``."""
    return {ours: tuple(f"encoder.{name}" for name in official) for ours, official in table.items()}


def has_projection(encoder: EncoderOptions) -> bool:
    """Whether the official encoder projects its features; of features as wide as the transformer it does not."""
    return encoder.feature_channels != encoder.width


def _block(ours: str, official: str) -> KeyTable:
    table: KeyTable = {}
    for kind in ("weight", "bias"):
        table[f"{ours}.attention.qkv.{kind}"] = tuple(f"{official}.self_attn.{part}_proj.{kind}" for part in "qkv")
    for own_part, part in (
        ("attention.out", "self_attn.out_proj"),
        ("attention_norm", "self_attn_layer_norm"),
        ("fc1", "fc1"),
        ("fc2", "fc2"),
        ("mlp_norm", "final_layer_norm"),
    ):
        table |= dict(_both(f"{ours}.{own_part}", f"{official}.{part}"))
    return table


def _both(ours: str, official: str) -> Iterator[tuple[str, tuple[str]]]:
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", (f"{official}.{kind}",)


def modern_names(names: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with older official names replaced by today's; a tensor that then stands twice keeps its older name.

    Args:
        names: the official state dict.
        prefix: ``encoder.`` for a fine-tuned model, else nothing.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in names.items():
        new = name
        for old_start, new_start in _ALIASES.items():
            if new.startswith(prefix + old_start):
                new = prefix + new_start + new.removeprefix(prefix + old_start)
        renamed[name if new != name and (new in names or new in renamed) else new] = tensor
    return renamed


def to_ours(official: Mapping[str, Tensor], table: KeyTable, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Our tensors from the official ones, which must have the names and shapes that :func:`to_official` gives."""
    ours: dict[str, Tensor] = {}
    for name, parts in table.items():
        tensors = [official[part] for part in parts]
        ours[name] = (torch.cat(tensors) if len(tensors) > 1 else tensors[0]).reshape(shapes[name])
    return ours


def to_official(ours: Mapping[str, Tensor], table: KeyTable) -> dict[str, Tensor]:
    """The official tensors from ours."""
    official: dict[str, Tensor] = {}
    for name, parts in table.items():
        tensor = ours[name]
        if name.endswith("codebook.codes"):
            tensor = tensor.flatten(0, 1)[None]  # [G, V, d] -> [1, G V, d]
        official |= dict(zip(parts, tensor.chunk(len(parts)), strict=True))
    return official
