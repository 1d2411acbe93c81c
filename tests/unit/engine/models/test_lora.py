"""Low-rank updates."""

import sys

import pytest
import torch
from tiny_model import tiny_encoder_options

from engine.models import Encoder
from engine.models.lora import add_lora, load_encoder, merge_lora
from engine.options import UserError


def test_updates_are_added_to_the_matrices() -> None:
    weight, a, b = torch.randn(5, 3), torch.randn(2, 3), torch.randn(5, 2)
    tensors = {
        "encoder.fc1.base_layer.weight": weight,
        "encoder.fc1.base_layer.bias": torch.ones(5),
        "encoder.fc1.lora_A.default.weight": a,
        "encoder.fc1.lora_B.default.weight": b,
        "head.weight": weight,
    }
    merged = merge_lora(tensors)
    assert merged.keys() == {"encoder.fc1.weight", "encoder.fc1.bias", "head.weight"}
    expected = weight.double() + b.double() @ a.double()
    torch.testing.assert_close(merged["encoder.fc1.weight"].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_merged_encoder_computes_what_the_updated_one_does() -> None:
    pytest.importorskip("peft", reason="peft is not installed", exc_type=ImportError)
    torch.manual_seed(0)
    plain, updated = Encoder(tiny_encoder_options()), Encoder(tiny_encoder_options())
    segments = torch.randn(2, 12, 320)
    add_lora(updated, rank=2)
    load_encoder(updated, plain.state_dict())
    torch.testing.assert_close(updated(segments).context, plain(segments).context)
    trained = [name for name, parameter in updated.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2 * 4 * 2  # A and B of four matrices in two blocks
    for name, parameter in updated.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    expected = updated(segments).context
    assert not torch.allclose(expected, plain(segments).context)
    plain.load_state_dict(merge_lora(updated.state_dict()))
    torch.testing.assert_close(plain(segments).context, expected, rtol=1e-4, atol=1e-5)
    assert updated(segments.bfloat16()).context.dtype == torch.bfloat16


def test_without_peft_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match="mode=lora needs peft, which is not installed: pip install peft"):
        add_lora(Encoder(tiny_encoder_options()), rank=2)
