"""A crop on ECG paper."""

import struct
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from data_tools.leads import LEADS
from data_tools.plot.crop import PIXELS_PER_MM, crop_figure, plot_crop

METADATA: dict[str, object] = {
    "source": "georgia",
    "recording": "E07500",
    "patient": "E07500",
    "start": 5000,
    "age": 78.0,
    "sex": "male",
    "labels": ["426177001", "999000119109"],
    "leads": list(LEADS),
    "num_valid_samples": 5000,
    "sampling_rate": 500.0,
}


@pytest.fixture
def signal() -> NDArray[np.int16]:
    return np.random.default_rng(0).integers(-800, 800, (12, 5000)).astype(np.int16)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.axes[0].texts)


def extent_mm(figure: Figure, line: int) -> tuple[float, float]:
    """Width and height of a line in the finished picture."""
    axes = figure.axes[0]
    points = axes.transData.transform(np.asarray(axes.lines[line].get_xydata()))
    width, height = np.ptp(points, axis=0) / PIXELS_PER_MM
    return float(width), float(height)


def test_scale_is_true(signal: NDArray[np.int16]) -> None:
    signal[0, :10] = [-1000, 1000] * 5
    figure = crop_figure(signal, METADATA)
    width, height = extent_mm(figure, 0)
    assert width == pytest.approx(25 * 4999 / 500)
    assert height == pytest.approx(20)
    # The pulse: 1 mV high, drawn after the 12 leads.
    assert extent_mm(figure, 12)[1] == pytest.approx(10)


def test_every_lead_is_drawn_whole(signal: NDArray[np.int16]) -> None:
    figure = crop_figure(signal, METADATA)
    for row, lead in enumerate(LEADS):
        drawn = np.asarray(figure.axes[0].lines[row].get_ydata())
        np.testing.assert_allclose((drawn - drawn[0]) * 100, signal[row].astype(float) - signal[row, 0], atol=1e-6)
        assert lead in texts(figure).splitlines()


def test_png_says_its_size(signal: NDArray[np.int16], tmp_path: Path) -> None:
    plot_crop(signal, METADATA, tmp_path / "crop.png")
    content = (tmp_path / "crop.png").read_bytes()
    place = content.index(b"pHYs") + 4
    x, y, unit = struct.unpack(">IIB", content[place : place + 9])
    assert (x, y, unit) == (10_000, 10_000, 1)  # pixels to the meter: ten to the millimeter
    image = matplotlib.image.imread(tmp_path / "crop.png")
    assert image.shape[1] == 2900
    assert (image[..., :3].max(axis=2) < 0.3).mean() > 0.01  # ink


def test_header_names_recording_patient_and_labels(signal: NDArray[np.int16]) -> None:
    drawn = texts(crop_figure(signal, METADATA))
    for part in (
        "georgia / E07500, from 10 s",
        "78 years",
        "sex male",
        "sinus bradycardia, SNOMED 999000119109",
        "25 mm/s",
        "10 mm/mV",
    ):
        assert part in drawn


def test_what_is_unknown_is_said_so(signal: NDArray[np.int16]) -> None:
    drawn = texts(crop_figure(signal, METADATA | {"recording": "A$1_$x", "age": None, "sex": None, "labels": []}))
    assert "A$1_$x" in drawn
    assert "age unknown" in drawn
    assert "sex unknown" in drawn
    assert "no labels" in drawn


def test_many_labels_stay_on_the_page(signal: NDArray[np.int16]) -> None:
    figure = crop_figure(signal, METADATA | {"labels": ["111975006"] * 40})
    figure.canvas.draw()
    assert all(text.get_window_extent().x1 < figure.bbox.x1 for text in figure.axes[0].texts)


def test_a_long_prediction_is_wrapped_and_leaves_the_paper_where_it_was(signal: NDArray[np.int16]) -> None:
    classes = [f"left bundle branch block of type {number} 0.{number}" for number in range(10, 18)]
    prediction = f"predicted: {', '.join(classes[:5])}\nnot predicted: {', '.join(classes[5:])}"
    figure = crop_figure(signal, METADATA | {"prediction": prediction})
    lines = [text for text in figure.axes[0].texts if " 0.1" in text.get_text()]
    assert len(lines) == 3
    assert " ".join(line.get_text() for line in lines) == prediction.replace("\n", " ")
    assert lines[2].get_text().startswith("not predicted: ")
    figure.canvas.draw()
    extents = [line.get_window_extent() for line in lines]
    assert all(extent.x1 < figure.bbox.x1 for extent in extents)
    assert extents[0].y0 > extents[1].y1
    assert extents[1].y0 > extents[2].y1
    sheet = figure.axes[0].patches[0].get_window_extent()
    assert extents[2].y0 > sheet.y1
    plain = crop_figure(signal, METADATA)
    assert (figure.get_figheight() - plain.get_figheight()) * 25.4 == pytest.approx(3 * 5)


def test_the_patient_is_named_where_the_corpus_knows_one(signal: NDArray[np.int16]) -> None:
    assert "patient" not in texts(crop_figure(signal, METADATA | {"patient": "georgia/E07500"}))
    assert "patient P1 " in texts(crop_figure(signal, METADATA | {"patient": "georgia/P1"}))


def test_the_clinical_layout_has_short_leads_in_columns_and_a_rhythm_strip(signal: NDArray[np.int16]) -> None:
    figure = crop_figure(signal, METADATA, "3x4")
    lines = figure.axes[0].lines[:13]
    columns = [("I", "aVR", "V1", "V4"), ("II", "aVL", "V2", "V5"), ("III", "aVF", "V3", "V6")]
    for number, lead in enumerate(lead for row in columns for lead in row):
        start = 1250 * (number % 4)
        x, y = (np.asarray(values) for values in lines[number].get_data())
        own = signal[LEADS.index(lead), start : start + 1250] / 100
        np.testing.assert_allclose(y - y[0], own - own[0], atol=1e-6)
        assert x[0] == pytest.approx(25 + start / 20)
    assert len(np.asarray(lines[12].get_xdata())) == 5000
    assert texts(figure).splitlines().count("II") == 2


def test_the_time_axis_has_seconds(signal: NDArray[np.int16]) -> None:
    assert {"0 s", *map(str, range(1, 11))} <= set(texts(crop_figure(signal, METADATA)).splitlines())


def test_padding_is_shaded_and_not_drawn(signal: NDArray[np.int16], tmp_path: Path) -> None:
    signal[:, 3000:] = 0
    whole = crop_figure(signal, METADATA)
    padded = crop_figure(signal, METADATA | {"num_valid_samples": 3000})
    assert "padded" not in texts(whole)
    assert "padded after 6 s" in texts(padded)
    assert all(len(np.asarray(line.get_xdata())) == 3000 for line in padded.axes[0].lines[:12])
    pictures = []
    for figure, name in ((whole, "whole.png"), (padded, "padded.png")):
        figure.savefig(tmp_path / name)
        pictures.append(matplotlib.image.imread(tmp_path / name)[..., :3])
    changed = np.flatnonzero((pictures[0] != pictures[1]).any(axis=(0, 2)))
    edge = (10 + 15 + 6 * 25) * PIXELS_PER_MM
    assert changed.min() == pytest.approx(edge, abs=8)  # half the width of the line that ends there
    assert changed.max() == pytest.approx((10 + 15 + 10 * 25) * PIXELS_PER_MM, abs=8)


def test_missing_leads_are_marked(signal: NDArray[np.int16]) -> None:
    signal[7] = 0
    figure = crop_figure(signal, METADATA | {"leads": [lead for lead in LEADS if lead != "V2"]})
    assert texts(figure).splitlines().count("missing") == 1
    assert len(figure.axes[0].lines) == 12  # eleven leads and the pulse
    assert "missing" not in texts(crop_figure(signal, METADATA))


def test_traces_get_the_room_they_take() -> None:
    quiet = np.zeros((12, 5000), np.int16)
    tall, wild = quiet.copy(), quiet.copy()
    tall[5, 100] = 4000
    wild[5, 100:200] = -32768
    wild[6, 100:200] = 32767
    heights = [crop_figure(signal, METADATA).get_figheight() * 25.4 for signal in (quiet, tall, wild)]
    assert heights[0] < heights[1] < heights[2] < 500


def test_a_wild_trace_stays_on_the_paper(tmp_path: Path) -> None:
    signal = np.zeros((12, 5000), np.int16)
    signal[0, 4500:] = 32767
    signal[11, 4500:] = -32768
    plot_crop(signal, METADATA, tmp_path / "crop.png")
    image = matplotlib.image.imread(tmp_path / "crop.png")[:, 2400:, :3]
    above, below = round(26.5 * PIXELS_PER_MM), round(15.5 * PIXELS_PER_MM)
    assert (image[:above] == 1).all()
    assert (image[-below:] == 1).all()
    assert (image < 0.3).any()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".PNG"])
def test_every_format_is_written_and_always_the_same(signal: NDArray[np.int16], tmp_path: Path, suffix: str) -> None:
    begin = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for file in files:
        plot_crop(signal, METADATA, file)
    assert files[0].read_bytes().startswith(begin)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == files  # nothing temporary is left


@pytest.mark.parametrize("name", ["crop.gif", "crop", "crop.jpeg"])
def test_unknown_suffix_is_refused(signal: NDArray[np.int16], tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg, \.pdf") as caught:
        plot_crop(signal, METADATA, tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_one_clear_line(signal: NDArray[np.int16], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be written .*No such file or directory") as caught:
        plot_crop(signal, METADATA, tmp_path / "none" / "crop.png")
    assert "\n" not in str(caught.value)


def test_a_failed_write_keeps_the_old_picture(
    signal: NDArray[np.int16], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "crop.png").write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(ValueError, match="No space left"):
        plot_crop(signal, METADATA, tmp_path / "crop.png")
    assert [path.name for path in tmp_path.iterdir()] == ["crop.png"]
    assert (tmp_path / "crop.png").read_bytes() == b"old"
