"""The native folder to an ONNX file, which onnxruntime and others run without PyTorch.

Input: ``segments`` [batch, leads, samples] in mV, of any batch size and length. Outputs: ``tokens`` [batch, tokens, width],
their mean over time ``embedding`` [batch, width] and, for a classifier, ``logits`` [batch, labels]. The model's normalization,
over each segment, is part of the graph. The file's metadata contains ``config.json``, each value as JSON.
"""

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from data_tools.files import atomic_write
from engine.models import PretrainedModel, load
from engine.models.feature_encoder import samples_per_token
from engine.options import UserError

TOLERANCE: Final[float] = 1e-4
"""Largest difference between onnxruntime and PyTorch, relative to an output's largest value if that is above 1."""

_MAX_FILE_BYTES = 2**31  # protobuf's limit


class _Graph(nn.Module):
    """The exported computation."""

    def __init__(self, model: PretrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, segments: Tensor) -> tuple[Tensor, ...]:
        context = self.model.context(segments)
        outputs = (context.mean(1), context)
        return outputs if self.model.head is None else (*outputs, self.model.head(context))


def export_onnx(folder: Path, file: Path) -> list[str]:
    """Writes a native folder's model as an ONNX file, after checking it with onnxruntime for several batch sizes and lengths.

    Args:
        folder: the native folder.
        file: the file to write, atomically.

    Returns:
        Notes for the user: inputs, outputs, and the difference between onnxruntime and PyTorch.

    Raises:
        UserError: the packages for ONNX are not installed, the model is damaged, the file exists or cannot be written, or the
            results of onnxruntime differ from PyTorch's.
    """
    _require_packages()
    if file.exists():
        raise UserError(f"{file}: already exists: choose a new file")
    model = load(folder)
    if sum(p.numel() * p.element_size() for p in model.parameters()) >= _MAX_FILE_BYTES:
        raise UserError(f"{folder}: more than 2 GB of weights, the limit of an ONNX file; use its safetensors file")
    content = _export(model)
    differences = _measure_differences(model, content)
    difference = max(differences)
    if not all(value <= TOLERANCE for value in differences):  # false for NaN
        raise UserError(
            f"{file}: not written: the outputs of onnxruntime and torch differ by {difference:.1e}, more than "
            f"{TOLERANCE:.0e}: try other versions of both"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as opened:
            opened.write(content)
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror})") from None
    return [
        f"input: segments [batch, {len(model.config.leads)} leads, samples] in mV at {model.config.sampling_rate} Hz",
        f"outputs: {', '.join(_output_names(model))}",
        f"checked: onnxruntime and PyTorch differ by at most {difference:.1e}",
    ]


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'ecg-engine[onnx]'") from None


def _export(model: PretrainedModel) -> bytes:
    """Returns the content of the file."""
    config = model.config
    example = torch.zeros(2, len(config.leads), config.segment_samples)
    with _quiet():
        program = torch.onnx.export(
            _Graph(model).eval(),
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["segments"],
            output_names=_output_names(model),
            dynamic_shapes={"segments": {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}},
        )
    assert program is not None
    proto: Any = program.model_proto
    _name_axes(proto)
    for name, value in config.model_dump(mode="json").items():
        proto.metadata_props.add(key=name, value=json.dumps(value))
    content: bytes = proto.SerializeToString()
    return content


def _output_names(model: PretrainedModel) -> list[str]:
    return ["embedding", "tokens"] + ([] if model.head is None else ["logits"])


def _name_axes(proto: Any) -> None:
    """Gives the axes of inputs and outputs readable names instead of the exporter's formulas."""
    axes = {"segments": ("batch", None, "samples"), "embedding": ("batch", None), "tokens": ("batch", "tokens", None)}
    axes |= {"logits": ("batch", None)}
    # The names inside the graph would no longer match.
    del proto.graph.value_info[:]
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, name in zip(value.type.tensor_type.shape.dim, axes[value.name], strict=True):
            if name is not None:
                axis.dim_param = name


def _shapes_to_check(model: PretrainedModel) -> list[tuple[int, int]]:
    """Returns batch sizes and lengths: usual ones, a single token, and lengths that are not a multiple of a token."""
    usual, token = model.config.segment_samples, samples_per_token(model.config.encoder.feature_blocks)
    return [(1, usual), (3, usual), (2, 2 * usual + 1), (5, usual // 2 + 3 + token), (1, token), (2, 3 * token - 1)]


def _measure_differences(model: PretrainedModel, content: bytes) -> list[float]:
    """Returns the largest difference between onnxruntime and PyTorch for random segments of each shape; see TOLERANCE."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    graph = _Graph(model).eval()
    generator = torch.Generator().manual_seed(0)
    differences = []
    for batch, samples in _shapes_to_check(model):
        segments = 0.5 * torch.randn(batch, len(model.config.leads), samples, generator=generator)
        with torch.no_grad():
            expected = graph(segments)
        outputs = session.run(None, {"segments": segments.numpy()})
        pairs = zip(outputs, expected, strict=True)
        differences += [_compare(torch.from_numpy(output), ours) for output, ours in pairs]
    return differences


def _compare(theirs: Tensor, ours: Tensor) -> float:
    if theirs.shape != ours.shape:
        return math.inf
    return float((theirs - ours).abs().max()) / max(1.0, float(ours.abs().max()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter's notices about missing packages and its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
