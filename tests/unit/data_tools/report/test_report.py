"""The page about a dataset."""

import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_fixtures import describe_file, write_dataset
from recording_files import random_signal, write_recording

from data_tools import cli
from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.leads import LEADS
from data_tools.quality.limits import QualityLimits
from data_tools.quality.measures import MEASURES
from data_tools.quality.table import QUALITY_SCHEMA
from data_tools.report import make_report
from data_tools.report.contents import _limit_sources
from data_tools.report.measures import MeasureCounts
from data_tools.report.page import check_quality
from data_tools.report.rejected import rejected_section
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, read_manifest, write_manifest

VOID = {"meta", "br", "img", "hr"}


class Page(HTMLParser):
    """A page whose elements are closed in order; its headings, the descriptions of its figures, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.figures: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        assert not any(name.startswith("on") for name in values)
        if values.get("role") == "img":
            self.figures.append(values["aria-label"] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())
        if self.open and self.open[-1] in {"h1", "h2", "h3"}:
            self.headings.append(data.strip())


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with one crop of each of some faults, and names that look like HTML."""
    folder = tmp_path_factory.mktemp("faulty")
    time = np.arange(5000) / 500
    for number in range(8):
        signal = np.stack([(1 + lead / 12) * np.sin(2 * np.pi * (1 + (lead + number) / 20) * time) for lead in range(12)])
        signal *= 1000
        signal[2:6] = [signal[1] - signal[0], -signal[:2].sum(0) / 2, signal[0] - signal[1] / 2, signal[1] - signal[0] / 2]
        if number == 1:
            signal[7] = 5
        if number == 2:
            signal += np.random.default_rng(0).normal(0, 900, signal.shape)
        if number == 3:
            signal[9, 1000:2000] = -32768  # invalid in WFDB
        name = f"R{number}<script>alert(1)</script>".replace("/", "∕")
        write_recording(
            folder / "in",
            name,
            np.rint(signal).astype(np.int16),
            comments=["Age: 61", "Sex: Female", "Dx: 426783006,164889003"],
        )
    write_recording(folder / "in", "broken", random_signal(0)).with_suffix(".mat").unlink()
    options = BuildOptions("wfdb", (folder / "in",), valid_fraction=0.3, quality=QualityLimits(flat=5, noise=0.3))
    build_dataset(options, folder / "out", num_workers=1)
    return folder / "out"


@pytest.fixture(scope="module")
def faulty_text(faulty: Path) -> str:
    return make_report(Dataset.open(faulty))


def report(dataset: Path, **options: int) -> Page:
    return Page(make_report(Dataset.open(dataset), None, **options))


def test_a_page_describes_contents_quality_and_what_was_rejected(faulty: Path, faulty_text: str) -> None:
    page = Page(faulty_text)
    sections = ["Contents", "Distributions", "Labels", "Quality", "Rejected recordings"]
    rejected = [f"Rejected: {name}" for name in ("flat lead", "high-frequency noise", "NaN")]
    assert page.headings == [f"Dataset {faulty}", *sections, *rejected, "Examples", "Provenance"]
    assert any(figure == "Age, recordings by years: 60: 5" for figure in page.figures)
    assert any(figure.startswith("Heart rate of 5 crops, crops by beats per minute: ") for figure in page.figures)
    drawn = [figure for figure in page.figures if figure.startswith("12-lead ECG of ")]
    assert [figure.partition("; ")[2] for figure in drawn[:3]] == [
        "rejected: flat 10 s in V2 (limit 5 s)",
        next(figure.partition("; ")[2] for figure in drawn if "noise" in figure),
        "rejected: nan 0.2 in V4 (limit 0)",
    ]
    assert len(drawn) == 5
    text = " ".join(filter(None, page.words))
    assert "ecg-data build --quality default" not in text
    assert re.search(r"Longest flat part in-R1_\S+-0 \(rejected: flat lead\) 10 s V2 ", text)
    for expected in ("missing .mat", "rejected: NaN", "atrial fibrillation", "within the limits", '"noise": 0.3'):
        assert expected in text, expected


def test_sources_beyond_the_first_are_summed() -> None:
    rows = [(f"source-{number:02}", number, 2, 3, 4, 5) for number in range(15)]
    limited = _limit_sources(rows)
    assert limited[:12] == rows[:12]
    assert limited[12:] == [("3 others", 12 + 13 + 14, 6, 9, 12, 15)]
    assert _limit_sources(rows[:12]) == rows[:12]


def test_a_page_contains_everything_and_no_scripts(faulty_text: str) -> None:
    page, text = Page(faulty_text), faulty_text
    assert page.tags & {"script", "link", "iframe", "object", "embed", "form"} == set()
    assert all(address.startswith("#") for address in page.addresses)
    assert "url(http" not in text
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "&lt;script&gt;" in text  # the name is there, escaped


def test_a_build_without_limits_is_measured_in_a_sample(simulated_dataset: Path) -> None:
    page = report(simulated_dataset, num_examples=1)
    text = " ".join(page.words)
    assert "the measures are those of 135 crops from all over the dataset" in text
    assert "Recordings that are not used: none." in text
    assert {f"{name}" for name in ("Contents", "Quality", "Rejected recordings", "Examples")} <= set(page.headings)
    assert any(figure.startswith("High-frequency noise: median 0.00") for figure in page.figures)


def test_real_recordings_are_reported(recordings_dataset: Path) -> None:
    dataset = Dataset.open(recordings_dataset)
    text = " ".join(report(recordings_dataset, num_examples=0).words)
    assert dataset.fingerprint in text
    assert f"{dataset.num_crops:,}" in text


def test_other_text_than_latin_is_drawn(tmp_path: Path) -> None:
    write_recording(tmp_path / "in", "記録-é", random_signal(0))
    build_dataset(BuildOptions("wfdb", (tmp_path / "in",)), tmp_path / "out", num_workers=1)
    page = report(tmp_path / "out")
    assert any("記録-é" in figure for figure in page.figures)
    assert any("記録-é" in word for word in page.words)


def test_empty_splits_and_missing_ages(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "a", {"pretrain": 3, "valid": 0}, partial_every=2)
    page = report(folder)
    assert any(figure.startswith("Age (unknown: 2), recordings by years: none") for figure in page.figures)


def check_and_read(dataset: Dataset) -> None:
    check_quality(dataset)
    rejected_section(dataset, 1, has_quality=True)


def replace_quality(dataset: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(dataset / "quality.parquet")), dataset / "quality.parquet")
    manifest = read_manifest(dataset)
    tables = manifest.tables | {"quality.parquet": describe_file(dataset / "quality.parquet")}
    write_manifest(dataset, manifest.model_copy(update={"tables": tables}))


def replace_column(name: str, values: list[object]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        field = QUALITY_SCHEMA.field(name)
        return table.set_column(place, field, pa.array((values * len(table))[: len(table)], field.type))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_column("example", [b"too short"]), "an example is damaged"),
        (replace_column("num_valid_samples", [-1]), "an example is damaged"),
        (replace_column("leads", [["aVX"]]), "an example is damaged"),
        (replace_column("example", [bytes(65 << 20), *[None] * 99]), "too many examples"),
        (lambda table: table.drop_columns(["reason"]), "unexpected columns"),
    ],
)
def test_tables_of_others_may_be_wrong(
    faulty: Path, tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    shutil.copytree(faulty, tmp_path / "out")
    replace_quality(tmp_path / "out", change)
    with pytest.raises(DatasetError, match=message):
        check_and_read(Dataset.open(tmp_path / "out"))


def test_limits_in_a_manifest_may_be_wrong(faulty: Path) -> None:
    manifest = read_manifest(faulty)
    build = manifest.build.model_copy(update={"options": {"quality": {"noise": "loud"}}})
    with pytest.raises(DatasetError, match=r"manifest\.json: build\.options\.quality\.noise: "):
        check_quality(Dataset(faulty, manifest.model_copy(update={"build": build})))


def test_quantiles_of_measures_are_about_right() -> None:
    random = np.random.default_rng(0)
    measured = 10 ** random.normal(-1, 0.5, (200, len(MEASURES), 12)).astype(np.float32)
    measured[:20, 0] = 0
    measured[:, 2, 3:] = np.nan
    measured[170, 1, 4:6] = measured[20, 1, 3] = 1e4
    counts = MeasureCounts(QualityLimits(flat=0.5))
    for rows in np.array_split(np.arange(200), 7):
        counts.add(measured[rows], [f"crop {row}" for row in rows].__getitem__)
    assert counts.num_crops == 200
    assert counts.num_values("clipped") == 600
    for share in (0.05, 0.5, 0.95):
        expected = np.nanquantile(measured[:, 1], share)
        assert counts.quantile("flat", share) == pytest.approx(expected, rel=0.07)
    assert counts.quantile("nan", 0.05) == 0
    assert counts.maximum("noise") == measured[:, 4].max()
    assert counts.num_bad[1].sum() == (measured[:, 1] > 0.5).sum()
    assert np.isnan(MeasureCounts().quantile("noise", 0.5))
    assert counts.worst["flat"][:2] == [("crop 20", 1e4, (LEADS[3],)), ("crop 170", 1e4, LEADS[4:6])]
    highest = np.nan_to_num(np.fmax.reduce(measured, axis=2))
    for number, measure in enumerate(MEASURES):
        order = np.argsort(-highest[:, number], kind="stable")[:3]
        assert [crop.name for crop in counts.worst[measure]] == [f"crop {row}" for row in order]


def test_crops_with_flat_leads_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        signal = random_signal(number)
        signal[[6, 8][: number % 3]] = 0
        write_recording(tmp_path / "in", f"R{number}", signal)
    build_dataset(BuildOptions("wfdb", (tmp_path / "in",)), tmp_path / "out", num_workers=1)
    text = " ".join(report(tmp_path / "out").words)
    assert "The dataset contains 2 crops with constant leads: in-R2-0 (2 leads), in-R1-0 (1 lead)." in text
    assert "Longest flat part in-R1-0 10 s V1 Longest flat part in-R2-0 10 s V1, V3 " in " ".join(text.split())
    assert "`ecg-data build --quality default` rejects crops" in text
    assert cli.main(["info", str(tmp_path / "out")]) == 0
    assert "\n2 crops with constant leads: in-R2-0 (2 leads), in-R1-0 (1 lead)\n" in capsys.readouterr().out


def test_the_command_writes_the_page(faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    title = "<img src=x onerror=alert(1)>"
    assert cli.main(["report", str(faulty), "-o", str(out), "--title", title, "--examples", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ")
    text = out.read_text()
    assert "<img" not in text
    assert Page(text).headings[0] == title
    assert not any(figure.startswith("12-lead ECG") for figure in Page(text).figures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.pdf"], "the name must end in .html"),
        (["-o", "x.html", "--examples", "-1"], "--examples must be 0 or more, got -1"),
        (["-o", "none/x.html"], "none: no such folder"),
    ],
)
def test_mistakes_are_one_line(faulty: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert cli.main(["report", str(faulty), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
