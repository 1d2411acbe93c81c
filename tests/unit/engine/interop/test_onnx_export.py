"""The ONNX file has the model's outputs, and is written only if it does."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tiny_model import tiny_encoder_options
from torch import Tensor

import engine.models
from engine.interop import onnx_export
from engine.interop.onnx_export import export_onnx
from engine.models import ClassificationHead, Encoder, ModelConfig
from engine.models.feature_encoder import FeatureNorm
from engine.models.model_config import Normalization
from engine.options import UserError

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def save_model(folder: Path, norm: FeatureNorm, normalization: Normalization, *, seed: int = 0, is_classifier: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = tiny_encoder_options(norm=norm, depth=1, dropout=0.1)
        modules = {"encoder.": Encoder(options, num_leads=3), "head.": ClassificationHead(32, 2)}
        # As after training: with initial weights, all embeddings would be nearly the same.
        tensors = {
            p + n: t + 0.1 * torch.randn(t.shape) for p, module in modules.items() for n, t in module.state_dict().items()
        }
    if not is_classifier:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}
    config = ModelConfig(
        kind="classifier" if is_classifier else "encoder",
        encoder=options,
        leads=("I", "II", "V2"),
        normalization=normalization,
        labels=("AF", "NSR") if is_classifier else None,
    )
    engine.models.save(folder, config, tensors)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model's folder and its ONNX file."""
    folder = tmp_path_factory.mktemp("onnx")
    save_model(folder / "model", "group_norm", "zscore_per_lead", is_classifier=True)
    export_onnx(folder / "model", folder / "model.onnx")
    return folder / "model", folder / "model.onnx"


@pytest.mark.parametrize(("batch", "samples"), [(1, 2500), (4, 2500), (2, 5000), (3, 1237), (1, 16), (7, 47)])
def test_outputs_equal_the_models_for_any_batch_size_and_length(
    classifier: tuple[Path, Path], batch: int, samples: int
) -> None:
    folder, file = classifier
    segments = torch.randn(batch, 3, samples, generator=torch.Generator().manual_seed(samples))
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    outputs = session.run(["embedding", "tokens", "logits"], {"segments": segments.numpy()})
    embedding, tokens, logits = (torch.from_numpy(output) for output in outputs)
    model = engine.models.load(folder)
    with torch.no_grad():
        expected = model.context(segments)
    _assert_near(tokens, expected)
    _assert_near(embedding, expected.mean(1))
    _assert_near(logits, model.logits(segments))


def _assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_the_file_describes_input_and_output(classifier: tuple[Path, Path]) -> None:
    session = onnxruntime.InferenceSession(classifier[1], providers=["CPUExecutionProvider"])
    assert [(value.name, value.shape) for value in session.get_inputs()] == [("segments", ["batch", 3, "samples"])]
    assert {value.name: value.shape for value in session.get_outputs()} == {
        "embedding": ["batch", 32],
        "tokens": ["batch", "tokens", 32],
        "logits": ["batch", 2],
    }
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["leads"]) == ["I", "II", "V2"]
    assert json.loads(metadata["labels"]) == ["AF", "NSR"]
    assert json.loads(metadata["sampling_rate"]) == 500
    assert json.loads(metadata["normalization"]) == "zscore_per_lead"


@pytest.mark.slow
def test_group_norm(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "layer_norm", "none", is_classifier=False)
    notes = export_onnx(tmp_path / "model", tmp_path / "new" / "model.onnx")
    assert "outputs: embedding, tokens" in notes
    assert (tmp_path / "new" / "model.onnx").is_file()


def test_a_file_with_other_results_is_not_written(
    classifier: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "model", "group_norm", "zscore_per_lead", seed=1, is_classifier=True)
    content = classifier[1].read_bytes()  # of the same model with other weights
    monkeypatch.setattr(onnx_export, "_export", lambda _model: content)
    with pytest.raises(UserError, match="not written"):
        export_onnx(tmp_path / "model", tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"onnxruntime is not installed: pip install 'ecg-engine\[onnx\]'"):
        export_onnx(tmp_path / "model", tmp_path / "model.onnx")


def test_existing_files_are_not_overwritten(classifier: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="already exists"):
        export_onnx(*classifier)
