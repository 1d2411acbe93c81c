"""Finds the fastest implementation of attention and of the positional convolution on this device.

    python benchmarks/variants.py [--pairs 64] [--precision bf16] [--compile] [--json FILE] [key.path=value ...]

Measures each implementation that the model offers, forward and backward, with the shapes of a training step, and compares it
with the limit set by its FLOPs and bytes; attention runs once per transformer block. An implementation that has no kernel for
this device, or runs out of memory, is listed with its error. The names are values of ``compute.attention`` and
``compute.positional``.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, get_args

import torch
from _breakdown import measure_part
from _common import environment, print_environment, print_table, write_json
from _step_parts import Call, Part
from _steps import PRESET
from _timing import Roofline, measure_roofline
from torch import nn

from data_tools.recording import SEGMENT_SAMPLES
from data_tools.validation import first_line
from engine.config import PretrainConfig, load_config
from engine.device import DTYPES, select_device
from engine.models import EncoderOptions, feature_encoder, positional, transformer
from engine.models.functional import AttentionBackend
from engine.models.positional import PositionalConvolution
from engine.models.positional_implementations import IMPLEMENTATIONS
from engine.models.transformer import SelfAttention
from engine.options import UserError
from engine.training.throughput import peak_memory_bytes, reset_peak_memory

_MODULES = {"attention": get_args(AttentionBackend), "positional": tuple(IMPLEMENTATIONS)}


def main() -> int:
    """Measures, prints a table, and writes JSON on request."""
    arguments = _parse_arguments()
    try:
        device = select_device(arguments.device)
        options = load_config(PretrainConfig, [PRESET], arguments.overrides).model
    except UserError as error:
        sys.stderr.write(f"variants: {error}\n")
        return 2
    roofline = measure_roofline(device, DTYPES[arguments.precision])
    results = [
        _measure(module, name, options, device, roofline, arguments) for module, names in _MODULES.items() for name in names
    ]
    _report(results, arguments, device)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=64, help="pairs of segments (default: %(default)s)")
    parser.add_argument(
        "--precision", choices=list(DTYPES), default="bf16", help="precision of the model (default: %(default)s)"
    )
    parser.add_argument("--compile", action="store_true", help="compile with torch.compile")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each implementation (default: %(default)s)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="device (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="settings that override the paper's preset")
    arguments = parser.parse_intermixed_args()
    if min(arguments.pairs, arguments.repeats) < 1:
        parser.error("--pairs and --repeats must be at least 1")
    return arguments


def _measure(
    module: str, name: str, options: EncoderOptions, device: torch.device, roofline: Roofline, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Times one implementation, or reports why it cannot run."""
    num_segments = 2 * arguments.pairs
    num_tokens = SEGMENT_SAMPLES // feature_encoder.samples_per_token(options.feature_blocks)
    x = torch.randn(num_segments, num_tokens, options.width, device=device).to(DTYPES[arguments.precision])
    layer: nn.Module
    if module == "attention":
        layer = SelfAttention(options.width, options.num_heads, options.attention_dropout, name)  # type: ignore[arg-type]
        num_uses, flops = options.depth, transformer.flops_per_segment(options.width, 0, num_tokens)
    else:
        layer = PositionalConvolution(options.width, options.pos_kernel, options.pos_groups, name)  # type: ignore[arg-type]
        num_uses, flops = 1, positional.flops_per_segment(options.width, options.pos_kernel, options.pos_groups, num_tokens)
    layer = layer.to(device)
    weights = tuple(layer.parameters())
    calls = [Call(layer, (x.detach().clone().requires_grad_(),), weights) for _ in range(num_uses)]
    reset_peak_memory(device)
    result: dict[str, Any] = {"module": module, "name": name}
    try:
        part = Part(name, calls, num_segments * num_uses * flops)
        cost = measure_part(part, device, arguments.repeats, compiled=arguments.compile)
    except torch.OutOfMemoryError:
        return result | {"error": "out of memory"}
    except Exception as error:  # noqa: BLE001 -- libraries raise errors of any kind; the table shows them
        return result | {"error": first_line(error)}
    limit = sum(roofline.seconds(one.flops, one.bytes) for one in (cost.forward, cost.backward))
    result |= {"limit_seconds": limit, "peak_memory_gb": peak_memory_bytes(device) / 1e9}
    return result | {"forward_seconds": cost.forward.seconds, "backward_seconds": cost.backward.seconds}


def _report(results: list[dict[str, Any]], arguments: argparse.Namespace, device: torch.device) -> None:
    machine = environment()
    print_environment(machine)
    mode = "compiled" if arguments.compile else "not compiled"
    print(f"{arguments.pairs} pairs, {arguments.precision}, {mode}, on {device.type}")
    rows = [_row(result) for result in results if "error" not in result]
    print_table(["part", "implementation", "forward ms", "backward ms", "limit ms", "% of limit", "peak GB so far"], rows)
    for result in results:
        if "error" in result:
            print(f"{result['module']} {result['name']}: {result['error']}")
    if arguments.json:
        names = ("pairs", "precision", "compile", "repeats", "overrides")
        config = {name: getattr(arguments, name) for name in names} | {"device": device.type}
        write_json(arguments.json, "variants", config, machine, {"variants": results})


def _row(result: dict[str, Any]) -> list[object]:
    forward, backward, limit = (result[f"{name}_seconds"] for name in ("forward", "backward", "limit"))
    milliseconds = [1e3 * forward, 1e3 * backward, 1e3 * limit]
    return [result["module"], result["name"], *milliseconds, 100 * limit / (forward + backward), result["peak_memory_gb"]]


if __name__ == "__main__":
    sys.exit(main())
