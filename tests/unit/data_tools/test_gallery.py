"""The gallery of augmentations."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from data_tools.cli import main
from data_tools.gallery import draw_panels, gallery_figure
from data_tools.leads import LEADS
from data_tools.plot.ecg_paper import baselines
from data_tools.shards.dataset import Dataset

METADATA: dict[str, object] = {"source": "georgia", "recording": "E07500", "sampling_rate": 500.0}
TITLES = [
    "Original",
    "Powerline noise",
    "Electromyographic noise",
    "Baseline wander",
    "Baseline shift",
    "Random lead masking",
    "All of these",
    "3KG",
]


@pytest.fixture
def crop() -> NDArray[np.int16]:
    """Limb leads that follow from I and II, as in a real ECG."""
    signal = np.random.default_rng(0).integers(-400, 400, (12, 5000)) * 2
    i, ii = signal[:2]
    signal[2:6] = [ii - i, -(i + ii) // 2, i - ii // 2, ii - i // 2]
    return signal.astype(np.int16)


@pytest.fixture
def segment(crop: NDArray[np.int16]) -> NDArray[np.float64]:
    return crop[:, :2500] / 1000


def einthoven(signal: NDArray[np.float64]) -> float:
    lead = dict(zip(LEADS, signal, strict=True))
    return float(np.abs(lead["I"] + lead["III"] - lead["II"]).max())


def test_panels_are_those_of_the_paper_and_more(segment: NDArray[np.float64]) -> None:
    panels = draw_panels(segment, seed=0)
    assert [panel.title for panel in panels] == TITLES
    np.testing.assert_array_equal(panels[0].signal, segment)
    for panel in panels:
        assert panel.signal.shape == segment.shape
        # Only masking, the shift and 3KG's time mask break the limb leads' relations.
        consistent = panel.title in {"Original", "Powerline noise", "Electromyographic noise", "Baseline wander"}
        assert (einthoven(panel.signal) < 1e-12) is consistent, panel.title


def test_noises_are_what_their_names_say(segment: NDArray[np.float64]) -> None:
    noise = {panel.title: panel.signal - segment for panel in draw_panels(segment, seed=3)}
    spectrum = np.abs(np.fft.rfft(noise["Powerline noise"], axis=1))
    assert (spectrum.argmax(axis=1) == 250).all()  # 50 Hz, in bins of 0.2 Hz
    muscle = noise["Electromyographic noise"][[0, 1, *range(6, 12)]]
    # Uniform amplitudes up to 0.5 mV have a mean square of 0.25 / 3.
    assert muscle.std() == pytest.approx(np.sqrt(0.25 / 3), rel=0.03)
    wander = np.abs(np.diff(noise["Baseline wander"], axis=1))
    assert 0 < wander.max() < 0.02
    for lead in noise["Baseline shift"]:
        levels = np.unique(lead.round(9))
        assert len(levels) <= 2
        assert np.abs(levels).max() <= 0.5


def test_masked_leads_are_zero_and_named(segment: NDArray[np.float64]) -> None:
    for seed in range(5):
        for panel in draw_panels(segment, seed):
            zero = {lead for lead, trace in zip(LEADS, panel.signal, strict=True) if not trace.any()}
            assert zero == set(panel.masked), panel.title


def test_everything_is_the_sum_of_the_noises_where_it_is_not_masked(segment: NDArray[np.float64]) -> None:
    panels = {panel.title: panel for panel in draw_panels(segment, seed=1)}
    total = segment + sum(panels[title].signal - segment for title in TITLES[1:5])
    masked = [lead in panels["All of these"].masked for lead in LEADS]
    np.testing.assert_allclose(panels["All of these"].signal[np.invert(masked)], total[np.invert(masked)], atol=1e-12)
    assert panels["All of these"].masked == panels["Random lead masking"].masked


def test_a_seed_gives_the_same_gallery_and_another_one_another(segment: NDArray[np.float64]) -> None:
    first, again, other = (draw_panels(segment, seed) for seed in (0, 0, 1))
    for a, b, c in zip(first[1:], again[1:], other[1:], strict=True):
        np.testing.assert_array_equal(a.signal, b.signal)
        assert (a.signal != c.signal).any()


def test_scale_is_true_and_panels_do_not_overlap(crop: NDArray[np.int16]) -> None:
    crop[0, :10] = [-1000, 1000] * 5
    figure = gallery_figure(crop, METADATA, seed=0)
    axes = figure.axes[0]
    pixels_per_mm = figure.dpi / 25.4
    points = axes.transData.transform(np.asarray(axes.lines[0].get_xydata()))
    width, height = np.ptp(points, axis=0) / pixels_per_mm
    assert width == pytest.approx(25 * 2499 / 500)
    assert height == pytest.approx(20)
    sheets = [patch.get_window_extent() for patch in axes.patches]
    assert len(sheets) == len(TITLES)
    assert not any(a.overlaps(b) for i, a in enumerate(sheets) for b in sheets[:i])
    assert all(figure.bbox.x0 <= sheet.x0 and sheet.x1 <= figure.bbox.x1 for sheet in sheets)


def test_texts_stay_on_the_page_and_clear_of_each_other(crop: NDArray[np.int16]) -> None:
    figure = gallery_figure(crop, METADATA | {"labels": ["111975006"] * 40}, seed=0)
    figure.canvas.draw()
    extents = [text.get_window_extent() for text in figure.axes[0].texts if text.get_text()]
    assert all(extent.x0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y0 >= 0 for extent in extents)
    assert not any(a.overlaps(b) for i, a in enumerate(extents) for b in extents[:i])


def test_every_sheet_names_its_leads_and_what_was_drawn(crop: NDArray[np.int16]) -> None:
    figure = gallery_figure(crop, METADATA, seed=5)
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in drawn if text in TITLES] == TITLES
    assert all(drawn.count(lead) == len(TITLES) for lead in LEADS)
    assert "georgia / E07500" in drawn
    assert "25 mm/s   10 mm/mV   recorded at 500 Hz   first 5 s   seed 5" in drawn


def test_a_missing_lead_is_marked_where_nothing_was_added(crop: NDArray[np.int16]) -> None:
    crop[7] = 0
    metadata = METADATA | {"leads": [lead for lead in LEADS if lead != "V2"]}
    drawn = [text.get_text() for text in gallery_figure(crop, metadata, seed=0).axes[0].texts]
    assert drawn.count("missing") in {1, 2}  # the original, and lead masking unless it masked it


def test_neighbors_keep_clear_where_they_come_close() -> None:
    signals = np.zeros((2, 3, 500))
    signals[1, 0, 100:110] = -2.0  # 20 mm down, on the second sheet only
    close, far = signals.copy(), signals.copy()
    close[1, 1, 100:110], far[1, 1, 300:310] = 2.0, 2.0
    np.testing.assert_array_equal(np.diff(baselines(signals)), [25, 15, 10])
    np.testing.assert_array_equal(np.diff(baselines(far)), [25, 15, 10])
    np.testing.assert_array_equal(np.diff(baselines(close)), [45, 15, 10])


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a crop has shape \(12, 5000\), got \(12, 2500\)"):
        gallery_figure(np.zeros((12, 2500), np.int16), METADATA, seed=0)


def test_gallery_from_the_command_line(recordings_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = str(Dataset.open(recordings_dataset).samples("pretrain", ["key"])["key"][0])
    command = ["plot", str(recordings_dataset), key, "--augment", "--out"]
    for name, seed in (("default", []), ("zero", ["--seed", "0"]), ("seven", ["--seed", "7"])):
        assert main([*command, str(tmp_path / f"{name}.svg"), *seed]) == 0
    default, zero, seven = ((tmp_path / f"{name}.svg").read_bytes() for name in ("default", "zero", "seven"))
    assert default == zero != seven
    assert main([*command, str(tmp_path / "gallery.png")]) == 0
    with Image.open(tmp_path / "gallery.png") as image:
        assert image.width == 624 * 8  # millimeters, pixels to each
        assert sum(image.convert("L").histogram()[:77]) > 0.01 * image.width * image.height  # ink


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--seed", "1"], "give --augment too"), (["--augment", "--seed", "-1"], "0 or more")]
)
def test_mistakes_are_one_line(
    recordings_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plot", str(recordings_dataset), "key", "--out", str(tmp_path / "x.png"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
