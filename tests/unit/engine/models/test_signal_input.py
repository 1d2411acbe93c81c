"""Embeddings and predictions of signals in any order of leads, sampling rate, length, dtype and unit."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import wfdb
from numpy.typing import NDArray
from recording_files import random_signal, write_recording
from saved_model import save_tiny_classifier, save_tiny_encoder
from scipy.signal import resample_poly
from tiny_model import tiny_encoder_options
from torch import Tensor

import engine.embed
import engine.models
from data_tools.labels import LabelDefinition
from data_tools.leads import LEADS
from engine.models import Encoder, PretrainedModel
from engine.options import UserError


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    return engine.models.create(tiny_encoder_options(), seed=0)


def signals_of(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return (0.5 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def with_zscore(model: PretrainedModel) -> PretrainedModel:
    return PretrainedModel(model.config.model_copy(update={"normalization": "zscore_per_lead"}), model.encoder)


@pytest.mark.parametrize("normalization", ["none", "zscore_per_lead"])
def test_arrays_and_tensors_of_any_float_have_the_embeddings_of_segments(model: PretrainedModel, normalization: str) -> None:
    model = model if normalization == "none" else with_zscore(model)
    signals = signals_of(3, 12, 2500)
    with torch.no_grad():
        expected = model.context(torch.from_numpy(signals)).mean(1)
    assert torch.equal(model.embed(torch.from_numpy(signals)), expected)
    for given in (signals, signals.astype(np.float64), signals.astype(">f4"), np.asfortranarray(signals)):
        embedding = model.embed(given)
        assert isinstance(embedding, np.ndarray)
        assert embedding.dtype == np.float32
        np.testing.assert_array_equal(embedding, expected.numpy())
    assert isinstance(model.embed(torch.from_numpy(signals[0])), Tensor)
    torch.testing.assert_close(model.embed(torch.from_numpy(signals[0])), expected[0])
    np.testing.assert_allclose(model.embed(signals[1]), expected[1].numpy(), atol=1e-5)
    assert model.embed(torch.from_numpy(signals).half()).dtype == torch.float32
    half = PretrainedModel(model.config, Encoder(model.config.encoder)).bfloat16()
    assert half.embed(signals).dtype == np.float32


def test_read_only_arrays_are_not_copied_with_a_warning_nor_changed(model: PretrainedModel) -> None:
    signals = signals_of(2, 12, 2500)
    signals.setflags(write=False)
    before = signals.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_zscore(model).embed(signals)
    np.testing.assert_array_equal(signals, before)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_integers_are_microvolts(model: PretrainedModel, dtype: type[np.integer[Any]]) -> None:
    microvolts = random_signal(0)[None].astype(dtype)
    expected = model.embed((microvolts / 1000).astype(np.float32))
    np.testing.assert_array_equal(model.embed(microvolts), expected)
    np.testing.assert_array_equal(model.embed(torch.from_numpy(microvolts)).numpy(), expected)
    np.testing.assert_array_equal(model.embed(microvolts.astype(np.float64), unit="uV"), expected)
    np.testing.assert_array_equal(model.embed(torch.from_numpy(microvolts).float(), unit="uV").numpy(), expected)
    np.testing.assert_array_equal(model.embed(microvolts // 1000, unit="mV"), model.embed((microvolts // 1000).astype(float)))


def test_units_are_those_of_recording_files(model: PretrainedModel) -> None:
    millivolts = signals_of(12, 2500).astype(np.float64)
    expected = model.embed(millivolts)
    for unit, factor in (("V", 1e-3), ("volts", 1e-3), ("mv", 1), ("µV", 1e3)):
        np.testing.assert_allclose(model.embed(millivolts * factor, unit=unit), expected, atol=1e-5)
        batch = torch.from_numpy(millivolts * factor)[None]  # of segments, if the unit is mV
        np.testing.assert_allclose(model.embed(batch, unit=unit)[0].numpy(), expected, atol=1e-5)


SMALL, LARGE = "too small for ECGs; if they are in ", "too large for ECGs; if they are in "


@pytest.mark.parametrize(
    ("factor", "dtype", "unit", "message"),
    [
        (1e-3, np.float32, None, f'{SMALL}V, pass unit="V"'),
        (1e3, np.float32, None, f'{LARGE}uV, pass unit="uV"'),
        (1, np.float32, "V", f'{LARGE}mV, pass unit="mV"'),
        (1e3, np.float32, "V", f'{LARGE}uV, pass unit="uV"'),
        (1, np.float32, "uV", f'{SMALL}mV, pass unit="mV"'),
        (1e-3, np.float32, "uV", f'{SMALL}V, pass unit="V"'),
        (5, np.int16, None, f'{SMALL}mV, pass unit="mV"'),
        (1e6, np.float32, "uV", "too large for ECGs; check their unit"),
    ],
)
def test_amplitudes_of_another_unit_are_warned_of_once(
    model: PretrainedModel, factor: float, dtype: type[Any], unit: str | None, message: str
) -> None:
    signals = (signals_of(4, 12, 2500).clip(-1, 1) * factor).astype(dtype)  # 2 mV peak to peak
    for given in (signals, torch.from_numpy(signals), signals[0], signals + dtype(100)):
        with pytest.warns(UserWarning, match="peak-to-peak amplitude") as caught:
            model.embed(given, unit=unit)
        assert [str(warning.message).partition("mV, ")[2] for warning in caught] == [message]
        assert caught[0].filename == __file__


def test_plausible_amplitudes_are_not_warned_of(model: PretrainedModel) -> None:
    """Warnings are errors in tests."""
    signals = signals_of(5, 12, 2500)
    signals[0] *= 1000  # one noisy recording
    signals[1] /= 1000  # one that is almost flat
    signals[2] += 300  # offset of the electrodes
    signals[3, 1:] = 0  # missing leads
    signals[4, :, 300:] = 0  # padding
    model.embed(signals)
    model.embed(torch.from_numpy(signals))
    model.embed(signals * 1e-3, is_normalized=True)
    with_zscore(model).embed(signals * 1e-3)  # does not depend on the unit


def test_constant_recordings_are_warned_of_by_row(model: PretrainedModel) -> None:
    signals = signals_of(4, 12, 2500)
    signals[1] = np.arange(12)[:, None]
    for given in (signals, torch.from_numpy(signals), signals[..., :900]):
        with pytest.warns(UserWarning, match="^row 1: all leads are constant; leave such recordings out$"):
            model.embed(given)
    with pytest.warns(UserWarning, match="^all leads are constant"):
        model.embed(signals[1])
    signals[3, :2] = 7
    with pytest.warns(UserWarning, match=r"^row 1: all leads are constant \(2 such rows\)"):
        engine.models.create(tiny_encoder_options(), leads=["I", "II"]).embed(signals, leads=LEADS)


def test_leads_are_ordered_by_name_and_missing_ones_are_zero(model: PretrainedModel) -> None:
    signals = signals_of(2, 12, 2500)
    order = [7, 1, 3]
    expected = np.zeros_like(signals)
    expected[:, order] = signals[:, order]
    names = [" v2 ", "ii", "AVR"]
    np.testing.assert_array_equal(model.embed(signals[:, order], leads=names), model.embed(expected))
    np.testing.assert_array_equal(model.embed(signals[:, ::-1], leads=LEADS[::-1]), model.embed(signals))
    tensors = torch.from_numpy(signals[:, order])
    assert torch.equal(model.embed(tensors, leads=names), model.embed(torch.from_numpy(expected)))
    two = engine.models.create(tiny_encoder_options(), leads=["I", "V2"], seed=0)
    expected = signals[:, [0, 7]]
    np.testing.assert_array_equal(two.embed(signals, leads=LEADS), two.embed(expected))
    with pytest.raises(UserError, match=r"expected at least one of the model's leads \(I, V2\)"):
        two.embed(signals[:, 1:3], leads=["II", "III"])


def test_a_number_of_leads_is_a_combination_in_its_order(model: PretrainedModel) -> None:
    signals = signals_of(3, 2500)
    expected = model.embed(signals, leads=["I", "II", "V2"])
    np.testing.assert_array_equal(model.embed(signals, leads=3), expected)
    np.testing.assert_array_equal(model.embed(signals, leads=np.int64(3)), expected)  # type: ignore[arg-type]  # not an int


def test_leads_that_fine_tuning_did_not_use_are_zero(tmp_path: Path) -> None:
    model = engine.models.load(save_tiny_classifier(tmp_path / "model", trained_leads=("I", "II")))
    signals = signals_of(2, 12, 2500)
    expected = model.predict(signals * (np.arange(12) < 2)[:, None])
    np.testing.assert_array_equal(model.predict(signals, leads=LEADS), expected)


@pytest.mark.parametrize("sampling_rate", [100, 257.5, 1000])
def test_signals_are_resampled(model: PretrainedModel, sampling_rate: float) -> None:
    signals = signals_of(2, 12, round(5 * sampling_rate)).cumsum(-1) / 20
    up, down = {100: (5, 1), 257.5: (200, 103), 1000: (1, 2)}[sampling_rate]
    expected = resample_poly(signals.astype(np.float64), up, down, axis=-1, padtype="edge")[..., :2500]
    embedding = model.embed(signals, sampling_rate=sampling_rate)
    np.testing.assert_allclose(embedding, model.embed(expected), atol=1e-4)
    assert np.abs(embedding - model.embed(np.resize(signals, (2, 12, 2500)))).max() > 1e-2
    tensor = model.embed(torch.from_numpy(signals), sampling_rate=np.float64(sampling_rate))
    np.testing.assert_array_equal(tensor.numpy(), embedding)
    np.testing.assert_array_equal(model.embed(signals_of(1, 12, 2500), sampling_rate=500), model.embed(signals_of(1, 12, 2500)))


@pytest.mark.parametrize("seconds", [9.9, 10, 12, 14.999, 15, 23])
def test_longer_recordings_are_the_mean_over_their_complete_segments(model: PretrainedModel, seconds: float) -> None:
    signals = signals_of(2, 12, round(500 * seconds))
    segments = [signals[..., start : start + 2500] for start in range(0, signals.shape[-1] - 2499, 2500)]
    expected = np.mean([model.embed(segment) for segment in segments], axis=0)
    np.testing.assert_allclose(model.embed(signals), expected, atol=1e-5)
    np.testing.assert_allclose(model.embed(torch.from_numpy(signals)).numpy(), expected, atol=1e-5)


def test_zscores_are_over_crops_of_10_s() -> None:
    model = with_zscore(engine.models.create(tiny_encoder_options(), seed=0))
    signals = signals_of(2, 12, 8600) * np.linspace(1, 3, 8600, dtype=np.float32)
    crops = [signals[..., :5000], signals[..., 5000:]]  # of the second, 1.1 s are not complete, but count for its statistics
    normalized = [(crop - crop.mean(-1, keepdims=True)) / crop.std(-1, keepdims=True) for crop in crops]
    segments = [normalized[0][..., :2500], normalized[0][..., 2500:], normalized[1][..., :2500]]
    expected = np.mean([model.embed(segment, is_normalized=True) for segment in segments], axis=0)
    np.testing.assert_allclose(model.embed(signals), expected, atol=1e-4)


@pytest.mark.parametrize("normalization", ["none", "zscore_per_lead"])
def test_shorter_recordings_are_padded_with_zeros_after_normalization(model: PretrainedModel, normalization: str) -> None:
    signals = signals_of(2, 12, 1300) + 1
    normalized = signals
    if normalization != "none":
        model = with_zscore(model)
        normalized = (signals - signals.mean(-1, keepdims=True)) / signals.std(-1, keepdims=True)
    padded = np.zeros((2, 12, 2500), np.float32)
    padded[..., :1300] = normalized
    np.testing.assert_allclose(model.embed(signals), model.embed(padded, is_normalized=True), atol=1e-5)


def test_many_recordings_are_embedded_in_batches(model: PretrainedModel) -> None:
    signals = signals_of(70, 12, 3000)
    embedding = model.embed(signals)
    np.testing.assert_allclose(embedding, [model.embed(signal) for signal in signals], atol=1e-5)
    assert model.embed(signals[:0]).shape == (0, 32)
    assert model.embed(torch.from_numpy(signals[:0])).shape == (0, 32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("samples", [2500, 700])
def test_nan_is_refused_by_row_and_lead(model: PretrainedModel, bad: float, samples: int) -> None:
    signals = signals_of(4, 12, samples)
    signals[2, [1, 6], 77] = bad
    for given in (signals, torch.from_numpy(signals)):
        with pytest.raises(UserError, match=r"^row 2, lead II, V1: contains NaN or infinity; fill the gaps"):
            model.embed(given)
    signals[3] = bad
    with pytest.raises(UserError, match=r"^row 2, lead V3, V4: contains NaN or infinity \(2 such rows\)"):
        model.embed(signals[:, [1, 6]], leads=["V3", "V4"], sampling_rate=250)
    with pytest.raises(UserError, match=r"^lead II, V1: contains NaN"):
        model.embed(signals[2])
    huge = signals_of(1, 12, samples).astype(np.float64)
    huge[0, 0] = 1e300
    with pytest.raises(UserError, match="row 0, lead I: contains NaN or infinity"):
        model.embed(huge)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((12, 2500), {"leads": [*LEADS[:11], "MLII"]}, "unknown leads: MLII; remove their names and signals; known: I, II"),
        ((3, 2500), {"leads": ["I", "II", "i"]}, "leads named more than once: I; keep one"),
        ((3, 2500), {"leads": "II"}, "expected a list of names"),
        ((0, 2500), {"leads": []}, "expected at least one of the model's leads"),
        ((3, 2500), {"leads": 4}, "leads=4: use 12, 6, 3, 2, 1, or a list of names"),
        ((2, 2500), {"leads": 2.0}, "leads=2.0: expected a list of names"),
        (
            (3, 2500),
            {"leads": ["I", "II"]},
            r"with 2 leads \(I, II\), got shape \[3, 2500\]; pass the names of the",
        ),
        ((3, 2, 2500), {"leads": ["I"]}, r"with 1 lead \(I\), got shape \[3, 2, 2500\]; pass the names of the signals' leads"),
        (
            (3, 2500),
            {"leads": ["I"]},
            r"got shape \[3, 2500\]; for a batch of recordings, pass signals\[:, None\]",
        ),
        ((2, 6, 2500), {}, r"with 12 leads .* got shape \[2, 6, 2500\]; pass the names"),
        ((2500, 12), {}, r"got shape \[2500, 12\]; swap the last two axes"),
        ((2500,), {}, r"samples\], got shape \[2500\]: a lead axis is missing$"),
        ((2500,), {"leads": 1}, r"got shape \[2500\]: a lead axis is missing; for one lead, pass signals\[None\]$"),
        ((1, 1, 12, 2500), {}, r"samples\], got shape \[1, 1, 12, 2500\]: remove the other axes$"),
        ((2, 12, 0), {}, "no samples"),
        ((12, 2500), {"sampling_rate": 0.5}, "sampling_rate=0.5: expected 50 to 20,000 Hz"),
        ((12, 2500), {"sampling_rate": float("nan")}, "sampling_rate=nan"),
        ((12, 2500), {"sampling_rate": "500"}, "sampling_rate='500': expected a number"),
        ((12, 2500), {"unit": "mmHg"}, "unit='mmHg': use 'V', 'mV' or 'uV'"),
        ((12, 2500), {"unit": 1000}, "unit=1000: use 'V', 'mV' or 'uV'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    model: PretrainedModel, shape: tuple[int, ...], options: dict[str, Any], message: str
) -> None:
    for given in (np.zeros(shape), torch.zeros(shape)):
        with pytest.raises(UserError, match=message) as error:
            model.embed(given, **options)
        assert "\n" not in str(error.value)


def test_other_types_are_refused(model: PretrainedModel) -> None:
    for wrong in (np.zeros((12, 9), bool), torch.zeros(12, 9, dtype=torch.bool), np.zeros((12, 9), complex)):
        with pytest.raises(UserError, match="expected integers or floating-point numbers, got"):
            model.embed(wrong)
    with pytest.raises(TypeError, match="expected a NumPy array or a tensor, got list"):
        model.embed([[0.0]])  # type: ignore[type-var]


def test_models_at_other_rates_resample_nothing(tmp_path: Path) -> None:
    model = engine.models.load(save_tiny_encoder(tmp_path / "model", sampling_rate=250, segment_samples=1250))
    assert model.embed(signals_of(2, 12, 2600), sampling_rate=250).shape == (2, 32)
    with pytest.raises(UserError, match="the model expects 250 Hz: resample the signals"):
        model.embed(signals_of(2, 12, 2600), sampling_rate=500)


def test_a_recording_read_with_wfdb_has_the_embedding_and_prediction_of_the_scripts(tmp_path: Path) -> None:
    """What a user writes in a notebook."""
    definition = LabelDefinition(name="rhythm", kind="multilabel", classes=("AF", "NSR"))
    path = write_recording(tmp_path / "clinic", "r1", random_signal(3, 4400)[:3], leads=["V2", "I", "aVF"], sampling_rate="257")
    save_tiny_classifier(tmp_path / "model", definition, normalization="zscore_per_lead")

    model = engine.models.load(tmp_path / "model")
    signal, fields = wfdb.rdsamp(str(path))
    embedding = model.embed(signal.T, leads=fields["sig_name"], sampling_rate=fields["fs"])
    probabilities = model.predict(signal.T, leads=fields["sig_name"], sampling_rate=fields["fs"])
    assert embedding.shape == (32,)
    assert dict(zip(model.definition.classes, probabilities.tolist(), strict=True)).keys() == {"AF", "NSR"}

    out = tmp_path / "embeddings.npz"
    arguments = ["--model", str(tmp_path / "model"), "--input", str(tmp_path / "clinic"), "--output", str(out)]
    assert engine.embed.main([*arguments, "--device", "cpu"]) == 0
    with np.load(out) as content:
        segments = content["embedding"].reshape(-1, 32)
    np.testing.assert_allclose(embedding, np.nanmean(segments, axis=0), atol=2e-3)  # the script rounds to 1 uV
