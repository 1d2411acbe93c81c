"""The encoder: sizes, comparisons with PyTorch's modules, gradients, dropout, dtypes."""

import pytest
import torch
from pydantic import ValidationError
from tiny_model import tiny_encoder_options
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

from engine.models import ComputeOptions, Encoder, EncoderOptions, flops_per_segment
from engine.models.feature_encoder import FeatureEncoder, FeatureNorm
from engine.models.layers import DropPath
from engine.models.positional import PositionalConvolution
from engine.models.transformer import Block

NORMS: list[FeatureNorm] = ["layer_norm", "group_norm"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("num_samples", [2500, 2496, 2511, 16, 31])
def test_feature_encoder_equals_pytorchs_convolutions(norm: FeatureNorm, num_samples: int) -> None:
    torch.manual_seed(0)
    encoder = FeatureEncoder(num_leads=3, num_channels=8, num_blocks=4, norm=norm)
    segments = torch.randn(2, 3, num_samples)
    x = segments
    state = encoder.state_dict()
    for i in range(4):
        x = F.conv1d(x, state[f"blocks.{i}.weight"], stride=2)
        weight, bias = state.get(f"blocks.{i}.norm.weight"), state.get(f"blocks.{i}.norm.bias")
        assert (weight is None) == (norm == "group_norm" and i > 0)
        if norm == "layer_norm":
            x = F.layer_norm(x.mT, (8,), weight, bias).mT
        elif i == 0:
            x = F.group_norm(x, 8, weight, bias)
        x = F.gelu(x)
    y = encoder(segments)
    assert y.shape == (2, encoder.num_tokens(num_samples), 8)
    torch.testing.assert_close(y, x.mT, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [16, 7, 1])
def test_positional_convolution_equals_pytorchs_weight_norm(kernel: int) -> None:
    torch.manual_seed(0)
    ours = PositionalConvolution(width=24, kernel=kernel, num_groups=4)
    theirs = weight_norm(nn.Conv1d(24, 24, kernel, padding=kernel // 2, groups=4), name="weight", dim=2)
    with torch.no_grad():
        ours.weight_g.mul_(torch.rand_like(ours.weight_g) + 0.5)
        ours.bias.normal_()
        theirs.parametrizations.weight.original0.copy_(ours.weight_g)
        theirs.parametrizations.weight.original1.copy_(ours.weight_v)
        assert theirs.bias is not None
        theirs.bias.copy_(ours.bias)
    x = torch.randn(2, 30, 24)
    expected = x + F.gelu(theirs(x.mT)[..., :30]).mT
    upstream = torch.randn(2, 30, 24)
    torch.testing.assert_close(ours(x), expected)
    mine = torch.autograd.grad(ours(x), [ours.weight_g, ours.weight_v, ours.bias], upstream)
    weight = theirs.parametrizations.weight
    reference = torch.autograd.grad(expected, [weight.original0, weight.original1, theirs.bias], upstream)
    for a, b in zip(mine, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_positional_convolution_is_initialized_as_in_wav2vec() -> None:
    torch.manual_seed(0)
    module = PositionalConvolution(width=64, kernel=32, num_groups=4)
    assert module.weight().std().item() == pytest.approx((4 / (32 * 64)) ** 0.5, rel=0.02)
    torch.testing.assert_close(module.weight(), module.weight_v)


def test_block_equals_pytorchs_post_ln_transformer_layer() -> None:
    torch.manual_seed(0)
    ours = Block(width=24, num_heads=3, mlp_width=40, dropout=0.0, attention_dropout=0.0)
    theirs = nn.TransformerEncoderLayer(24, 3, 40, dropout=0.0, activation="gelu", batch_first=True)
    attention = theirs.self_attn
    names = {
        "attention.qkv.weight": attention.in_proj_weight,
        "attention.qkv.bias": attention.in_proj_bias,
        "attention.out.weight": attention.out_proj.weight,
        "attention.out.bias": attention.out_proj.bias,
        "fc1.weight": theirs.linear1.weight,
        "fc1.bias": theirs.linear1.bias,
        "fc2.weight": theirs.linear2.weight,
        "fc2.bias": theirs.linear2.bias,
        "attention_norm.weight": theirs.norm1.weight,
        "attention_norm.bias": theirs.norm1.bias,
        "mlp_norm.weight": theirs.norm2.weight,
        "mlp_norm.bias": theirs.norm2.bias,
    }
    ours.load_state_dict(names)
    x = torch.randn(2, 11, 24)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
def test_gradient_of_the_feature_encoder_is_scaled(scale: float) -> None:
    segments = torch.randn(2, 12, 320)
    grads = []
    for factor in (1.0, scale):
        torch.manual_seed(0)
        encoder = Encoder(tiny_encoder_options(feature_grad_scale=factor))
        encoder(segments).context.square().sum().backward()
        grads.append([parameter.grad for parameter in encoder.feature_encoder.parameters()])
    for whole, scaled in zip(*grads, strict=True):
        assert whole is not None
        if scale == 0:
            assert scaled is None
        else:
            torch.testing.assert_close(scaled, scale * whole, rtol=1e-4, atol=1e-7)


def test_dropout_acts_where_the_options_say() -> None:
    segments = torch.randn(2, 12, 320)
    for name in ("feature_dropout", "input_dropout", "dropout", "attention_dropout", "activation_dropout", "drop_path"):
        torch.manual_seed(0)
        encoder = Encoder(tiny_encoder_options(**{name: 0.3}))
        first, second = encoder(segments), encoder(segments)
        assert torch.equal(first.features, second.features)
        assert torch.equal(first.latents, second.latents) == (name != "feature_dropout"), name
        assert torch.equal(first.context, second.context) == (name == "feature_dropout"), name
        encoder.eval()
        assert torch.equal(encoder(segments).context, encoder(segments).context)


def test_stochastic_depth_drops_whole_segments_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    dropped = DropPath(0.3)(torch.ones(10_000, 2, 3))
    assert (dropped == dropped[:, :1, :1]).all()
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    encoder = Encoder(tiny_encoder_options(depth=3, drop_path=0.4))
    assert [module.p for module in encoder.modules() if isinstance(module, DropPath)] == [0, 0.2, 0.4]


def test_the_outputs_of_the_last_blocks_are_averaged() -> None:
    torch.manual_seed(0)
    encoder, segments = Encoder(tiny_encoder_options(depth=3, output_layers=2)), torch.randn(2, 12, 320)
    outputs: list[Tensor] = []
    for block in encoder.blocks:
        block.register_forward_hook(lambda *args: outputs.append(args[2]))
    context = encoder(segments).context
    torch.testing.assert_close(context, (outputs[1] + outputs[2]) / 2)


def test_latents_are_not_masked() -> None:
    torch.manual_seed(0)
    encoder = Encoder(tiny_encoder_options())
    segments, mask = torch.randn(2, 12, 320), torch.rand(2, 20) < 0.5
    masked, unmasked = encoder(segments, mask), encoder(segments)
    assert torch.equal(masked.latents, unmasked.latents)
    assert not torch.allclose(masked.context, unmasked.context)


@pytest.mark.parametrize("norm", NORMS)
def test_bf16_is_close_to_fp32(norm: FeatureNorm) -> None:
    torch.manual_seed(0)
    encoder = Encoder(tiny_encoder_options(norm=norm))
    segments = torch.randn(2, 12, 640)
    mask = torch.rand(2, 40) < 0.5
    outputs, grads = [], []
    for dtype in (torch.float32, torch.bfloat16):
        encoder.zero_grad()
        output = encoder(segments.to(dtype), mask)
        assert all(x.dtype == dtype for x in output)
        (output.context.float() * torch.linspace(-1, 1, 32)).square().mean().backward()
        outputs.append(output.context.float().detach())
        grads.append(torch.cat([p.grad.flatten() for p in encoder.parameters() if p.grad is not None]))
        assert grads[-1].dtype == torch.float32
    assert (outputs[1] - outputs[0]).norm() < 0.02 * outputs[0].norm()
    assert (grads[1] - grads[0]).norm() < 0.1 * grads[0].norm()


def test_base_model_has_the_papers_size() -> None:
    options = EncoderOptions()
    with torch.device("meta"):
        encoder = Encoder(options)
    num_block = 4 * 768 * 769 + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert sum(p.numel() for p in encoder.blocks.parameters()) == 12 * num_block
    assert flops_per_segment(options, 12, 2500) / 1e9 == pytest.approx(87.6, abs=0.5)


def test_flops_equal_pytorchs_count() -> None:
    options = tiny_encoder_options(attention_dropout=0.0)
    # On the meta device: the counter does not know the CPU kernels. Other implementations have more operations.
    with torch.device("meta"):
        encoder, segments = Encoder(options, compute=ComputeOptions(positional="conv2d")), torch.randn(1, 12, 2496)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        encoder(segments)
    assert 3 * counter.get_total_flops() == pytest.approx(flops_per_segment(options, 12, 2496), rel=0.01)


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(ValidationError, match="width 100 is not divisible by num_heads 12"):
        EncoderOptions(width=100)
    with pytest.raises(ValidationError, match="width 24 is not divisible by pos_groups 16"):
        EncoderOptions(width=24)
    encoder = Encoder(tiny_encoder_options())
    with pytest.raises(ValueError, match=r"12 leads, samples\], got \[2, 3, 320\]"):
        encoder(torch.randn(2, 3, 320))
    with pytest.raises(ValueError, match="15 samples is shorter than one token of 16"):
        encoder(torch.randn(2, 12, 15))
