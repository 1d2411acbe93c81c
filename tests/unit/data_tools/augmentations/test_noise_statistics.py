"""What the noises draw, by statistics that notice a parameter that is 10% off: see the last test."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from reference_augmentations import OFFICIAL
from scipy import stats

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations import AugmentationOptions, make_augmentations
from data_tools.augmentations.base import LeadScaling, Noise, NoiseDraws, SignalMap
from data_tools.leads import LEADS

T = 2500
SOURCES = [LEADS.index(lead) for lead in ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")]
SEGMENTS = np.arange(500, 3500)
TURN = 2.0**32
Values = NDArray[np.floating[Any]]

# Each statistic as the p-value of a test of what the paper says, or where it is no test as 1.0 (right) or 0.0 (wrong).
Statistics = Mapping[str, float]
SIGNIFICANCE = 1e-4
NAMES = list(AugmentationOptions.model_fields)


def draw(name: str, **options: Any) -> tuple[Noise, NoiseDraws]:
    (noise,) = make_augmentations(AugmentationOptions.model_validate({name: options}), 3, range(12))
    assert isinstance(noise, Noise)
    return noise, noise.draw(SEGMENTS)


def follows_uniform(values: Values, low: float, high: float) -> float:
    return float(stats.kstest(values.ravel(), stats.uniform(low, high - low).cdf).pvalue)


def independent(values: Values) -> float:
    """p-value of the largest correlation between columns: [n, columns]."""
    correlation = np.atleast_2d(np.corrcoef(values.T))[np.triu_indices(values.shape[1], 1)]
    p_values = 2 * stats.norm.sf(np.abs(correlation) * np.sqrt(len(values)))
    return float(p_values.min() * len(p_values))


def powerline_statistics(**options: Any) -> Statistics:
    noise, draws = draw("powerline", **options)
    amplitude = draws.weights[:, 0, SOURCES, 0]
    waves = noise.waves(NUMPY_OPS, *(detail[:50] for detail in draws.details))[:, 0, 0]
    spectrum = np.abs(np.fft.rfft(waves.astype(np.float64))) / (T / 2)
    at_mains = round(50 * T / 500)
    return {
        "amplitude": follows_uniform(amplitude, 0, 0.5),
        "amplitudes and phases": independent(np.concatenate([amplitude, draws.details[1][:, 0, 0] / TURN], 1)),
        "phase": follows_uniform(draws.details[1] / TURN, 0, 1),
        "phase over segments": independent(np.stack([draws.details[1][:-1].ravel(), draws.details[1][1:].ravel()], 1)),
        "line at 50 Hz": float(np.allclose(spectrum[:, at_mains], 1, atol=1e-5)),
        "nothing else": float(np.delete(spectrum, at_mains, axis=1).max() < 1e-5),
    }


def electromyographic_statistics(**options: Any) -> Statistics:
    noise, draws = draw("electromyographic", **options)
    computed = noise.waves(NUMPY_OPS, draws.details[0][:40])[:, 0, SOURCES].astype(np.float64)
    samples = computed[..., ::7].ravel()
    power = np.abs(np.fft.rfft(computed)[..., 1:1251]) ** 2
    bands = power.reshape(-1, 5, 250).sum(axis=(0, 2)) / power.mean()  # 80,000 each, with as much variance
    spread = np.sqrt((computed**2).mean(axis=1))  # of the 8 leads at each sample
    # Products of U(0, 0.5) and N(0, 1), drawn by NumPy.
    random = np.random.default_rng(1)
    expected = random.uniform(0, 0.5, 400_000) * random.standard_normal(400_000)
    normal = computed / np.sqrt((computed**2).sum(axis=1, keepdims=True) / 8)
    return {
        "noise of a sample": float(stats.ks_2samp(samples, expected).pvalue),
        # Of 100,000 samples of 8 leads: the standard error is 0.0035 of it.
        "variance": float(abs(np.mean(computed**2) / (0.25 / 3) - 1) < 5 * 0.0035),
        "white": float(stats.chisquare(bands).pvalue),
        "samples": independent(np.stack([computed[..., :-1].ravel(), computed[..., 1:].ravel()], 1)),
        "leads": independent(computed.transpose(0, 2, 1).reshape(-1, 8)),
        "amplitudes of samples": independent(np.stack([spread[:, :-1].ravel(), spread[:, 1:].ravel()], 1)),
        # Eight normal numbers over their root mean square: each squared and divided by 8 is Beta(1/2, 7/2).
        "normal over amplitude": float(stats.kstest((normal[:, 0, ::3] ** 2 / 8).ravel(), stats.beta(0.5, 3.5).cdf).pvalue),
    }


def wander_statistics(**options: Any) -> Statistics:
    noise, draws = draw("baseline_wander", **options)
    amplitude, increment, phase = (detail[..., 0, 0] for detail in draws.details)
    scale = draws.weights[:, 0, SOURCES, 0]
    step = increment[:, 0] / TURN * 500
    waves = noise.waves(NUMPY_OPS, *(detail[:100] for detail in draws.details))[:, 0, 0].astype(np.float64)
    return {
        "number of components": float(amplitude.shape[1] == 3),
        "amplitude": follows_uniform(amplitude, 0, 0.5),
        "step": follows_uniform(step, 0.01, 0.2),
        "multiples": float(np.allclose(increment / TURN * 500, step[:, None] * np.arange(1, amplitude.shape[1] + 1))),
        "phase": follows_uniform(phase / TURN, 0, 1),
        "scale": float(stats.kstest(scale.ravel(), stats.norm(1, 0.5).cdf).pvalue),
        "everything": independent(np.concatenate([amplitude, phase / TURN, scale, step[:, None]], 1)),
        "slow": float(np.abs(np.diff(waves)).max() < 2 * np.pi * 0.2 / 500 * 0.5 * (1 + 2 + 3)),
    }


def shift_statistics(**options: Any) -> Statistics:
    noise, draws = draw("baseline_shift", **options)
    steps = noise.waves(NUMPY_OPS, *(detail[:300] for detail in draws.details))[:, 0]
    length, first = steps.sum(axis=-1), steps.argmax(axis=-1)
    ends = (np.diff(steps, axis=-1) != 0).sum(axis=-1)
    jitter = np.random.default_rng(2).uniform(size=(2, *length.shape))  # makes whole numbers continuous
    inside = (length > 0) & (length < T)
    return {
        "offset": follows_uniform(draws.weights, -0.5, 0.5),
        "offsets, spans and places of leads": independent(
            np.concatenate([draws.weights[:300, 0, :, 0], length, first / (T - length + 1)], 1).astype(np.float64)
        ),
        "span": follows_uniform((length - 0.5 + jitter[0])[inside], 0, T),
        "place": follows_uniform(((first + jitter[1]) / (T - length + 1))[inside], 0, 1),
        "one span": float((ends <= 2).all() and set(np.unique(steps)) <= {0, 1}),
    }


def official_powerline_statistics(**options: Any) -> Statistics:
    _, (weights, (increment, phase)) = draw("powerline", **{**OFFICIAL["powerline"], **options})
    amplitude = weights[:, 0, SOURCES, 0]
    hertz = np.rint(increment / TURN * 500 * 1000) / 1000
    num_60_hz = int((hertz == 60).sum())
    return {
        "amplitude": follows_uniform(amplitude[:, 0], 0, 0.5),
        "one amplitude": float((amplitude == amplitude[:, :1]).all()),
        "50 or 60 Hz": float(set(np.unique(hertz)) == {50, 60}),
        "coin": float(stats.binomtest(num_60_hz, len(hertz)).pvalue),
        "phase": follows_uniform(phase / TURN, 0, 1),
        "everything": independent(np.stack([amplitude[:, 0], phase.ravel() / TURN, hertz.ravel()], 1)),
    }


def official_electromyographic_statistics(**options: Any) -> Statistics:
    noise, draws = draw("electromyographic", **{**OFFICIAL["electromyographic"], **options})
    amplitude = draws.details[1][:, 0, :, 0]
    computed = noise.waves(NUMPY_OPS, *(detail[:40] for detail in draws.details))[:, 0, SOURCES].astype(np.float64)
    normal = computed / amplitude[:40, :, None]
    halves = np.sqrt((computed**2).reshape(40, 8, 2, -1).mean(axis=-1))
    power = np.abs(np.fft.rfft(normal)[..., 1:1251]) ** 2
    return {
        "amplitude": follows_uniform(amplitude, 0, 0.5),
        "amplitudes of leads": independent(amplitude),
        # In half of a segment the root mean square of 1,250 normal numbers is within 5 standard errors of 0.02.
        "constant over the segment": float(np.abs(halves[..., 0] / halves[..., 1] - 1).max() < 5 * 0.028),
        "normal": float(stats.kstest(normal[..., ::7].ravel(), stats.norm.cdf).pvalue),
        "white": float(stats.chisquare(power.reshape(-1, 5, 250).sum(axis=(0, 2)) / power.mean()).pvalue),
        "leads": independent(normal.transpose(0, 2, 1).reshape(-1, 8)),
        "root mean square of a lead": follows_uniform(np.sqrt((computed**2).mean(axis=-1)), 0, 0.5),
    }


def official_wander_statistics(**options: Any) -> Statistics:
    _, draws = draw("baseline_wander", **{**OFFICIAL["baseline_wander"], **options})
    amplitude, increment, phase = (detail[..., 0, 0] for detail in draws.details)
    scale, hertz = draws.weights[:, 0, SOURCES, 0], increment / TURN * 500
    return {
        "number of components": float(amplitude.shape[1] == 3),
        "amplitude": follows_uniform(amplitude, 0, 0.5),
        "frequency": follows_uniform(hertz, 0.01, 0.2),
        "phase": follows_uniform(phase / TURN, 0, 1),
        "scale": float(stats.kstest(scale.ravel(), stats.norm(1, 0.5).cdf).pvalue),
        "everything": independent(np.concatenate([amplitude, phase / TURN, scale, hertz], 1)),
    }


def official_shift_statistics(**options: Any) -> Statistics:
    noise, draws = draw("baseline_shift", **{**OFFICIAL["baseline_shift"], **options})
    steps = noise.waves(NUMPY_OPS, *draws.details)[:, 0, 0]
    offset = draws.weights[:, 0, SOURCES, 0].astype(np.float64)
    is_up, shared = offset > 0, np.where(offset > 0, 1, -1) - offset  # s = 1 or -1, and u
    length, first = steps.sum(axis=-1), steps.argmax(axis=-1)
    jitter = np.random.default_rng(2).uniform(size=(2, *length.shape))  # makes whole numbers continuous
    place = (first + jitter[1]) / (T - length + 1)
    squares = (((length / T - 0.2) / 0.04) ** 2).sum()
    return {
        "u": follows_uniform(shared[:, 0], 0, 0.25),
        "one u": float(np.ptp(shared, axis=1).max() < 1e-6),
        "coin": float(stats.binomtest(int(is_up.sum()), is_up.size).pvalue),
        "one span": float(steps.shape == (len(SEGMENTS), T) and (np.diff(steps) != 0).sum(axis=-1).max() <= 2),
        "span": float(stats.kstest((length - 0.5 + jitter[0]) / T, stats.norm(0.2, 0.04).cdf).pvalue),
        "spread of spans": 2 * float(min(stats.chi2.cdf(squares, len(length)), stats.chi2.sf(squares, len(length)))),
        "place": follows_uniform(place, 0, 1),
        "everything": independent(np.concatenate([is_up, shared[:, :1], np.stack([length, place], 1)], 1).astype(np.float64)),
    }


STATISTICS = {
    "powerline": powerline_statistics,
    "electromyographic": electromyographic_statistics,
    "baseline_wander": wander_statistics,
    "baseline_shift": shift_statistics,
    "official powerline": official_powerline_statistics,
    "official electromyographic": official_electromyographic_statistics,
    "official baseline_wander": official_wander_statistics,
    "official baseline_shift": official_shift_statistics,
}


@pytest.mark.parametrize("name", STATISTICS)
def test_noise_is_distributed_as_the_paper_or_the_official_code_says(name: str) -> None:
    for statistic, value in STATISTICS[name]().items():
        assert value > SIGNIFICANCE, f"{statistic}: {value}"


def test_augmentations_draw_independently_of_each_other_and_of_the_next_segment() -> None:
    """The first lead's draws, and the key of the electromyographic noise, of each segment and of the one after it."""
    with_p = {"electromyographic", "random_lead_masking", "time_mask"}
    options = {name: {"p": 0.5} if name in with_p else {} for name in NAMES}
    columns: list[Values] = []
    for augmentation in make_augmentations(AugmentationOptions.model_validate(options), 3, range(12)):
        if isinstance(augmentation, Noise):
            weights, details = augmentation.draw(SEGMENTS)
            columns += [weights[:, 0, 0, 0], details[0][:, 0, 0, 0] / TURN]
        elif isinstance(augmentation, SignalMap):
            columns += [draws.reshape(len(SEGMENTS), -1)[:, 0] for draws in augmentation.draw(SEGMENTS)]
        else:
            assert isinstance(augmentation, LeadScaling)
            columns.append(augmentation.draw(SEGMENTS)[:, 0, 0])
    table = np.stack([column for column in columns if np.ptp(column)], 1).astype(np.float64)
    assert table.shape[1] == 11
    assert independent(table) > SIGNIFICANCE
    assert independent(np.concatenate([table[:-1], table[1:]], 1)) > SIGNIFICANCE
    assert independent(np.concatenate([table, table[:, :1] + table[:, -1:]], 1)) < SIGNIFICANCE


OFF = [
    ("powerline", {"amplitude_mv": [0, 0.55]}, "amplitude"),
    ("powerline", {"amplitude_mv": [0.05, 0.5]}, "amplitude"),
    ("powerline", {"frequencies_hz": [45]}, "line at 50 Hz"),
    ("powerline", {"frequencies_hz": [55]}, "line at 50 Hz"),
    ("electromyographic", {"amplitude_mv": [0, 0.55]}, "variance"),
    ("electromyographic", {"amplitude_mv": [0, 0.55]}, "noise of a sample"),
    ("electromyographic", {"amplitude_mv": [0, 0.45]}, "variance"),
    ("electromyographic", {"amplitude_mv": [0.05, 0.5]}, "noise of a sample"),
    ("baseline_wander", {"amplitude_mv": [0, 0.55]}, "amplitude"),
    ("baseline_wander", {"amplitude_mv": [0, 0.45]}, "amplitude"),
    ("baseline_wander", {"frequency_step_hz": [0.01, 0.22]}, "step"),
    ("baseline_wander", {"frequency_step_hz": [0.02, 0.2]}, "step"),
    ("baseline_wander", {"scale_mean": 1.1}, "scale"),
    ("baseline_wander", {"scale_std": 0.55}, "scale"),
    ("baseline_wander", {"num_components": 4}, "number of components"),
    ("baseline_shift", {"offset_mv": [-0.55, 0.5]}, "offset"),
    ("baseline_shift", {"offset_mv": [-0.5, 0.45]}, "offset"),
    ("baseline_shift", {"span": [0, 0.9]}, "span"),
    ("baseline_shift", {"span": [0.1, 1]}, "span"),
    ("official powerline", {"amplitude_mv": [0, 0.55]}, "amplitude"),
    ("official powerline", {"amplitude_mv": [0, 0.45]}, "amplitude"),
    ("official powerline", {"amplitude_per": "lead"}, "one amplitude"),
    ("official powerline", {"frequencies_hz": [50, 66]}, "50 or 60 Hz"),
    ("official powerline", {"frequencies_hz": [50, 50, 60]}, "coin"),
    ("official electromyographic", {"amplitude_mv": [0, 0.55]}, "amplitude"),
    ("official electromyographic", {"amplitude_mv": [0.05, 0.5]}, "amplitude"),
    ("official baseline_wander", {"amplitude_mv": [0, 0.45]}, "amplitude"),
    ("official baseline_wander", {"frequency_step_hz": [0.01, 0.22]}, "frequency"),
    ("official baseline_wander", {"frequency_step_hz": [0.01, 0.18]}, "frequency"),
    ("official baseline_wander", {"frequencies": "harmonic"}, "frequency"),
    ("official baseline_wander", {"scale_mean": 0.9}, "scale"),
    ("official baseline_wander", {"scale_std": 0.45}, "scale"),
    ("official baseline_shift", {"jump_mv": 1.1}, "u"),
    ("official baseline_shift", {"jump_mv": 0.9}, "u"),
    ("official baseline_shift", {"offset_mv": [-0.275, 0]}, "u"),
    ("official baseline_shift", {"offset_mv": [-0.225, 0]}, "u"),
    ("official baseline_shift", {"span_normal": [0.22, 0.04]}, "span"),
    ("official baseline_shift", {"span_normal": [0.2, 0.044]}, "spread of spans"),
    ("official baseline_shift", {"span_normal": [0.2, 0.036]}, "spread of spans"),
]


@pytest.mark.parametrize(("name", "options", "statistic"), OFF, ids=str)
def test_a_parameter_that_is_a_tenth_off_would_be_noticed(name: str, options: dict[str, Any], statistic: str) -> None:
    assert STATISTICS[name](**options)[statistic] < SIGNIFICANCE
