"""ECGEmbedder is a transformer as scikit-learn expects."""

import functools
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from saved_model import save_tiny_encoder
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import engine.models
from data_tools.leads import LEADS
from engine.models.scikit import ECGEmbedder
from engine.options import UserError


@pytest.fixture(scope="module")
def model_of_one_lead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of scikit-learn's checks, with one or more columns, are recordings of one lead of so many samples."""
    return save_tiny_encoder(tmp_path_factory.mktemp("scikit") / "model", leads=["I"])


@parametrize_with_checks([ECGEmbedder(device="cpu")])  # type: ignore[untyped-decorator]  # no types
def test_scikit_learn(
    estimator: ECGEmbedder, check: "functools.partial[Callable[[ECGEmbedder], None]]", model_of_one_lead: Path
) -> None:
    if check.func.__name__ == "check_methods_subset_invariance":
        pytest.skip("it allows a difference of 1e-7, less than the rounding of fp32; the next test compares as fp32 allows")
    check(estimator.set_params(model=str(model_of_one_lead)))


def test_embeddings_do_not_depend_on_the_other_rows(folder: Path) -> None:
    signals, _ = ecgs()
    embedder = ECGEmbedder(folder, leads=["I", "V2", "II"], sampling_rate=250)
    together = embedder.fit_transform(signals)
    alone = np.concatenate([embedder.transform(signals[i : i + 1]) for i in range(len(signals))])
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_encoder(tmp_path / "model")


def ecgs(num_recordings: int = 20) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """White noise, and in every other recording a sine; and which recordings these are."""
    labels = np.arange(num_recordings) % 2
    signals = np.random.default_rng(0).standard_normal((num_recordings, 3, 700)).astype(np.float32)
    signals[labels == 1] = 0.1 * signals[labels == 1] + np.sin(np.arange(700) / 20)
    return signals, labels


def test_a_pipeline_classifies_and_is_cross_validated(folder: Path) -> None:
    signals, labels = ecgs()
    embedder = ECGEmbedder(folder, leads=["I", "V2", "II"], sampling_rate=250)
    classifier = make_pipeline(embedder, LogisticRegression(max_iter=1000)).fit(signals, labels)
    assert classifier.score(signals, labels) == 1
    assert cross_val_score(classifier, signals, labels, cv=2).mean() > 0.8
    expected = engine.models.load(folder).embed(signals, leads=["I", "V2", "II"], sampling_rate=250)
    np.testing.assert_array_equal(classifier[0].transform(signals), expected)
    np.testing.assert_array_equal(clone(embedder).fit_transform(signals, labels), expected)
    np.testing.assert_array_equal(embedder.fit_transform(signals.reshape(len(signals), -1)), expected)
    assert embedder.get_feature_names_out()[:2].tolist() == ["ecgembedder0", "ecgembedder1"]


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "models.md").read_text()
    block = page.partition("In scikit-learn:\n\n")[2].partition("\n## ")[0]
    (tmp_path / "example.py").write_text(textwrap.dedent(block))
    signals, labels = ecgs()
    np.save(tmp_path / "signals.npy", signals)
    np.save(tmp_path / "labels.npy", labels)
    save_tiny_encoder(tmp_path / "models" / "first")
    monkeypatch.chdir(tmp_path)
    result = runpy.run_path("example.py")
    assert result["classifier"].predict(signals).shape == (20,)


def test_a_number_of_leads_and_volts_are_accepted(folder: Path) -> None:
    signals, _ = ecgs()
    expected = ECGEmbedder(folder, leads=["I", "II", "V2"]).fit_transform(signals)
    volts = ECGEmbedder(folder, leads=3, unit="V")
    np.testing.assert_allclose(volts.fit_transform((signals / 1000).reshape(len(signals), -1)), expected, atol=1e-5)


def test_implausible_amplitudes_are_warned_of_once(folder: Path) -> None:
    signals, _ = ecgs(4)
    with pytest.warns(UserWarning, match='pass unit="uV"') as caught:
        ECGEmbedder(folder, leads=3).fit_transform(signals * 1000)
    assert len(caught) == 1


def test_a_given_model_stays_as_it_is(folder: Path) -> None:
    model = engine.models.load(folder)
    embedder = ECGEmbedder(model).fit(np.zeros((1, 12, 100)))
    assert embedder.model_ is model


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"model": None}, (2, 12, 100), "ECGEmbedder needs a model: a folder"),
        ({"model": "absent"}, (2, 12, 100), "absent"),
        ({}, (2, 3, 100), "with 12 leads"),
        ({}, (2, 100), "got rows of 100 values, not a multiple of 12 leads"),
        ({"leads": ["I", "X"]}, (2, 2, 100), "unknown leads: X"),
        ({"sampling_rate": 1}, (2, 12, 100), "sampling_rate=1: expected 50"),
        ({"device": "cuda"}, (2, 12, 100), "PyTorch sees no GPU"),
    ],
)
def test_fit_refuses_what_cannot_be_embedded(
    folder: Path, options: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match=message):
        ECGEmbedder(**{"model": folder} | options).fit(np.zeros(shape))


def test_nan_is_refused_by_row_and_lead(folder: Path) -> None:
    signals = np.zeros((3, 12, 100))
    embedder = ECGEmbedder(folder).fit(signals)
    signals[1, 4] = np.nan
    for refused in (embedder.fit, embedder.transform):
        with pytest.raises(UserError, match=f"row 1, lead {LEADS[4]}: contains NaN or infinity"):
            refused(signals)
