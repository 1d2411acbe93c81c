"""Low-rank updates of an encoder's matrices (LoRA, https://arxiv.org/abs/2106.09685), by the library peft.

A layer ``L`` of a transformer block becomes ``L.base_layer``, which is frozen, and ``L.lora_A.default`` and
``L.lora_B.default``; its matrix is W + B A.
"""

from collections.abc import Mapping

from torch import Tensor

from engine.models.encoder import Encoder
from engine.options import UserError

_LAYERS = ["qkv", "out", "fc1", "fc2"]
_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def add_lora(encoder: Encoder, rank: int) -> None:
    """Freezes an encoder and adds updates of zero, which are trained, to every matrix of its transformer blocks.

    Args:
        encoder: the encoder, modified in place.
        rank: columns of B and rows of A.

    Raises:
        UserError: peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError("mode=lora needs peft, which is not installed: pip install peft") from None
    # The factor of peft on B A is lora_alpha / r.
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=_LAYERS), encoder)


def load_encoder(encoder: Encoder, weights: Mapping[str, Tensor]) -> None:
    """Loads the weights of an encoder, by their names without updates, into an encoder with or without updates."""
    updates = {name: tensor for name, tensor in encoder.state_dict().items() if ".lora_" in name}
    names = [name for name in encoder.state_dict() if name not in updates]
    encoder.load_state_dict({name: weights[name.replace(_BASE, ".")] for name in names} | updates)


def merge_lora(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adds the updates to the matrices; returns all tensors by their names without updates."""
    merged = {name.replace(_BASE, "."): tensor for name, tensor in tensors.items() if ".lora_" not in name}
    for name, a in tensors.items():
        if name.endswith(_A):
            layer = name.removesuffix(_A)
            merged[f"{layer}.weight"] = merged[f"{layer}.weight"] + tensors[layer + _B] @ a
    return merged
