"""The Triton kernels of the positional convolution, interpreted on the CPU, where Triton is installed.

Triton's interpreter has no bf16; tests/gpu has the kernels in bf16, on a GPU.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

# Sizes: segments, tokens, groups, channels of a group, kernel. The last has enough tokens for several blocks per share.
PROGRAM = """
import torch
from engine.models.positional_implementations import IMPLEMENTATIONS

def error(ours, exact):
    return ((ours.double() - exact).norm() / exact.norm()).item()

torch.manual_seed(0)
for B, T, G, C, K in [(2, 30, 2, 3, 8), (3, 70, 2, 48, 16), (1, 156, 1, 12, 127), (20, 5, 1, 2, 1), (30, 80, 2, 3, 8)]:
    for dtype, most in ((torch.float32, 1e-6), (torch.float16, 1e-3)):
        inputs = [torch.randn(B, T, G * C), torch.randn(G * C, C, K) / K, torch.randn(G * C)]
        rounded = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        exact = [tensor.detach().double().requires_grad_() for tensor in rounded]
        y, expected = IMPLEMENTATIONS["triton"](*rounded, G), IMPLEMENTATIONS["conv1d"](*exact, G)
        upstream = torch.randn(expected.shape).to(dtype)
        gradients = torch.autograd.grad(y, rounded, upstream)
        expected_gradients = torch.autograd.grad(expected, exact, upstream.double())
        for ours, theirs in zip((y, *gradients), (expected, *expected_gradients), strict=True):
            assert ours.dtype == dtype and ours.shape == theirs.shape
            assert error(ours, theirs) < most, (B, T, G, C, K, dtype, error(ours, theirs))
print("equal")
"""


@pytest.mark.slow
def test_equals_the_librarys_convolution_and_its_gradients() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert run.stdout == "equal\n", run.stdout + run.stderr


@pytest.mark.parametrize(("dtype", "precision"), [("bf16", "tf32"), ("fp32", "ieee")])
def test_kernels_compile_for_hopper_at_the_base_models_sizes(dtype: str, precision: str) -> None:
    """Compiling needs no GPU; bf16 products use tensor cores."""
    pytest.importorskip("triton")
    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    kernels = importlib.import_module("engine.models.positional_triton")
    sizes = {"T": 156, "D": 768, "C": 48, "R": 48 * 128, "TOKENS": 128, "SUMMANDS": 64, "CHANNELS": 64, "PRECISION": precision}
    numbers = {"N": "i32", "num_before": "i32"}
    pointer = f"*{dtype}"
    for kernel, signature, more in (
        (kernels._convolve_kernel, {"x": pointer, "weight": pointer, "y": pointer, **numbers}, {}),
        (kernels._correlate_kernel, {"x": pointer, "grad": pointer, "out": "*fp32", **numbers}, {"BLOCKS": 78}),
    ):
        # As at a launch: PyTorch's memory is aligned.
        aligned = {(place,): [["tt.divisibility", 16]] for place in range(3)}
        source = compiler.ASTSource(kernel, signature, sizes | more, aligned)
        compiled = compiler.compile(source, target=target)
        assert "cubin" in compiled.asm
        assert "cp.async" in compiled.asm["ptx"]  # pipelined loads
        assert ("wgmma" in compiled.asm["ptx"]) == (dtype == "bf16")
