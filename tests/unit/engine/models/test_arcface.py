"""ArcFace against the official code's recorded losses and against a float64 reference written from its equation."""

import math

import numpy as np
import pytest
import torch
from golden_weights import GOLDEN
from torch import Tensor
from torch.nn import functional as F

from engine.models.arcface import ArcFace


def reference_losses(vectors: Tensor, weight: Tensor, patient: Tensor, scale: float, margin: float) -> Tensor:
    """The equation, angle by angle in float64: [B]."""
    losses = []
    for vector, own in zip(vectors, patient.tolist(), strict=True):
        cosines = (weight @ vector) / weight.norm(dim=1) / vector.norm()
        angle = torch.acos(cosines[own])
        beyond = cosines[own] - margin * math.sin(margin)
        with_margin = torch.cos(angle + margin) if angle + margin < math.pi else beyond
        others = torch.cat([cosines[:own], cosines[own + 1 :]])
        losses.append(-F.log_softmax(scale * torch.cat([with_margin[None], others]), dim=0)[0])
    return torch.stack(losses)


def make_head(weight: Tensor, scale: float = 192.0, margin: float = 1.0) -> ArcFace:
    head = ArcFace(weight.shape[1], weight.shape[0], scale, margin)
    with torch.no_grad():
        head.weight.copy_(weight)
    return head


@pytest.mark.parametrize(("scale", "margin"), [(192.0, 1.0), (32.0, 0.5)])
def test_recorded_losses(scale: float, margin: float) -> None:
    with np.load(GOLDEN / "contrastive.npz") as arrays:
        golden = {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files if name.startswith("arcface")}
    output = make_head(golden["arcface_weight"], scale, margin)(golden["arcface_x"], golden["arcface_target"])
    torch.testing.assert_close(output.cosine, golden["arcface_cosine"], rtol=1e-5, atol=1e-6)
    expected = golden[f"arcface_sum_s{scale:.0f}_m{margin}"].item()
    assert output.loss.sum().item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("scale", "margin"), [(192.0, 1.0), (32.0, 0.5), (8.0, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients(scale: float, margin: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 16, generator=generator)
    patient = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 3])
    # From far beyond the angle at which the margin wraps to close to the patient's own direction.
    pull = torch.linspace(-3, 3, 10)[:, None]
    vectors = (pull * weight[patient] + torch.randn(10, 16, generator=generator)).to(dtype)
    cosines = F.cosine_similarity(vectors.float(), weight[patient])
    assert cosines.min() < math.cos(math.pi - 1)
    assert cosines.max() > 0.9

    head, given = make_head(weight, scale, margin), vectors.clone().requires_grad_()
    loss = head(given, patient).loss
    assert loss.dtype == torch.float32
    loss.mean().backward()
    exact_vectors, exact_weight = vectors.double().requires_grad_(), weight.double().requires_grad_()
    exact = reference_losses(exact_vectors, exact_weight, patient, scale, margin)
    exact.mean().backward()

    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-4)
    assert given.grad is not None
    assert head.weight.grad is not None
    assert exact_vectors.grad is not None
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-4  # the gradient of bf16 vectors is bf16
    scale_of = exact_vectors.grad.abs().max().item()
    torch.testing.assert_close(given.grad.double(), exact_vectors.grad, rtol=tolerance, atol=tolerance * scale_of)
    torch.testing.assert_close(head.weight.grad.double(), exact_weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1e-3])
def test_gradients_are_finite_on_and_opposite_to_the_direction(dtype: torch.dtype, sign: float, distance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 8, generator=generator).to(dtype).float()
    patient = torch.arange(4)
    vectors = (sign * 3 * weight + distance * torch.randn(4, 8, generator=generator)).to(dtype).requires_grad_()
    head = make_head(weight)
    loss = head(vectors, patient).loss
    loss.sum().backward()
    assert loss.isfinite().all()
    for gradient in (vectors.grad, head.weight.grad):
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient.abs().max() <= 2 * 192 * 4


def test_small_angles_keep_their_digits() -> None:
    angle = 1e-4  # whose cosine is 1 - 5e-9, which is 1 in fp32
    vectors, weight = torch.tensor([[math.cos(angle), math.sin(angle)]]), torch.eye(2)
    output = make_head(weight, scale=1.0, margin=0.5)(vectors, torch.tensor([0]))
    expected = reference_losses(
        torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64), weight.double(), torch.tensor([0]), 1.0, 0.5
    )
    assert output.loss.item() == pytest.approx(expected.item(), abs=3e-7)


def test_training_brings_segments_to_their_patients() -> None:
    torch.manual_seed(0)
    patient = torch.arange(8).repeat_interleave(4)
    vectors = torch.nn.Parameter(torch.randn(32, 16))
    head = ArcFace(16, 8)
    optimizer = torch.optim.AdamW([vectors, *head.parameters()], lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        output = head(vectors, patient)
        output.loss.mean().backward()
        optimizer.step()
    own = output.cosine.gather(1, patient[:, None])
    others = output.cosine.scatter(1, patient[:, None], -1.0).amax(1, keepdim=True)
    assert ((own.acos() + 0.9) < others.acos()).all()  # nearly the margin


def test_initial_columns_have_norm_1() -> None:
    torch.testing.assert_close(ArcFace(5, 40).weight.norm(dim=0), torch.ones(5))
