"""The gallery of augmentations."""

from pathlib import Path

import numpy as np
import pytest
from dataset_fixtures import write_dataset
from numpy.typing import NDArray
from PIL import Image

from data_tools.augmentations import AugmentationOptions
from data_tools.cli import main
from data_tools.leads import LEADS
from data_tools.plot.ecg_paper import baselines
from data_tools.plot.gallery import gallery_figure, make_panels
from data_tools.shards.dataset import Dataset
from engine.data import CropStore, DataOptions, SampleOrder, make_loader

METADATA: dict[str, object] = {
    "source": "georgia",
    "recording": "E07500",
    "patient": "E07500",
    "start": 0,
    "age": None,
    "sex": None,
    "labels": [],
    "leads": list(LEADS),
    "num_valid_samples": 5000,
    "sampling_rate": 500.0,
}
TITLES = [
    "Original",
    "VCG transform",
    "Powerline noise",
    "Electromyographic noise",
    "Baseline wander",
    "Baseline shift",
    "Random lead masking",
    "Time mask",
    "All combined",
]


@pytest.fixture
def crop() -> NDArray[np.int16]:
    """Limb leads that follow from I and II, as in a real ECG."""
    signal = np.random.default_rng(0).integers(-400, 400, (12, 5000)) * 2
    i, ii = signal[:2]
    signal[2:6] = [ii - i, -(i + ii) // 2, i - ii // 2, ii - i // 2]
    return signal.astype(np.int16)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.open(write_dataset(tmp_path / "dataset", {"pretrain": 20}))


@pytest.fixture
def segment(crop: NDArray[np.int16]) -> NDArray[np.int16]:
    return crop[:, :2500]


def test_panels_are_every_augmentation_in_the_order_of_application(segment: NDArray[np.int16]) -> None:
    panels = make_panels(segment, seed=0)
    assert [panel.title for panel in panels] == TITLES
    np.testing.assert_allclose(panels[0].signal, segment / 1000, rtol=1e-6)
    for panel in panels[1:]:
        assert panel.signal.shape == segment.shape
        assert (panel.signal != panels[0].signal).any()
    assert panels[1].options == "angle_deg -45..45, scale 1..1.5"
    assert panels[6].options == "p 0.5"


@pytest.mark.parametrize("seed", [0, 3])
def test_panels_are_what_training_sees(dataset: Dataset, seed: int) -> None:
    store = CropStore(dataset, "pretrain")
    order = SampleOrder(store.num_samples, seed)
    crops = np.empty((1, 12, 5000), np.int16)
    store.read(order.indices(0, 1), crops)
    panels = {panel.title: panel.signal for panel in make_panels(crops[0, :, :2500], seed)}
    fields = AugmentationOptions.model_fields
    choices: dict[str, list[str]] = {"Original": [], "All combined": list(fields)}
    choices |= {title: [name] for title, name in zip(TITLES[1:-1], fields, strict=True)}
    for title, names in choices.items():
        options = DataOptions.model_validate({"loader": "torch", "augmentations": {name: {} for name in names}})
        with make_loader(options, store, order, leads=12, batch_size=3) as loader:
            np.testing.assert_array_equal(panels[title], next(loader).segments[0, 0], err_msg=title)


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


def test_missing_and_flat_leads_are_marked_where_nothing_was_added(crop: NDArray[np.int16]) -> None:
    crop[7] = crop[9] = 0
    metadata = METADATA | {"leads": [lead for lead in LEADS if lead != "V2"]}
    drawn = [text.get_text() for text in gallery_figure(crop, metadata, seed=0).axes[0].texts]
    num_unchanged = 3  # the original, lead masking and the time mask
    assert drawn.count("missing") in {num_unchanged, num_unchanged + 1}  # all of these, if lead masking masks it
    assert drawn.count("flat") in {num_unchanged, num_unchanged + 1}
    assert drawn.count("masked") > 0


def test_neighbors_keep_clear_where_they_come_close() -> None:
    signals = np.zeros((2, 3, 500))
    signals[1, 0, 100:110] = -2.0  # 20 mm down, on the second sheet only
    close, far = signals.copy(), signals.copy()
    close[1, 1, 100:110], far[1, 1, 300:310] = 2.0, 2.0
    np.testing.assert_array_equal(np.diff(baselines(signals)), [25, 15, 10])
    np.testing.assert_array_equal(np.diff(baselines(far)), [25, 15, 10])
    np.testing.assert_array_equal(np.diff(baselines(close)), [45, 15, 10])


def test_gallery_from_the_command_line(recordings_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = str(Dataset.open(recordings_dataset).samples("pretrain", ["key"])["key"][0])
    command = ["plot", str(recordings_dataset), key, "--augment", "--out"]
    for name, seed in (("default", []), ("zero", ["--seed", "0"]), ("seven", ["--seed", "7"])):
        assert main([*command, str(tmp_path / f"{name}.svg"), *seed]) == 0
    default, zero, seven = ((tmp_path / f"{name}.svg").read_bytes() for name in ("default", "zero", "seven"))
    assert default == zero != seven
    assert main([*command, str(tmp_path / "gallery.png")]) == 0
    with Image.open(tmp_path / "gallery.png") as image:
        assert image.width == 471 * 4  # millimeters, pixels to each
        assert sum(image.convert("L").histogram()[:77]) > 0.01 * image.width * image.height  # ink


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--seed", "1"], "applies only with --augment"), (["--augment", "--seed", "-1"], "0 or more")]
)
def test_mistakes_are_one_line(
    recordings_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["plot", str(recordings_dataset), "key", "--out", str(tmp_path / "x.png"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
