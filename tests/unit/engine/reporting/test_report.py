"""The command line of report.py, on results of evaluate.py and on metrics of runs."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_runs import run_main
from paper_cohort import build_paper_cohort
from saved_model import save_tiny_classifier, save_tiny_encoder

from data_tools.labels import LabelDefinition, cinc2021
from data_tools.shards.dataset import Dataset
from engine import evaluate
from engine.report import main

Run = Callable[..., tuple[int, str, list[str]]]
HOSTILE = '<script>alert("x")</script> & $y$'
VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that elements nest, and collects what a page would load or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.images_without_text = 0
        self.feed(html)
        self.close()
        assert self.open == [], f"unclosed {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        assert not [name for name in named if name.startswith("on")], named
        self.images_without_text += named.get("role") == "img" and not named.get("aria-label")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def check_page(path: Path) -> str:
    """Checks that a page is well-formed, contains all that it shows, and describes its figures; returns it."""
    html = path.read_text()
    page = Page(html)
    assert page.tags.isdisjoint({"script", "iframe", "object", "embed", "link"})
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "url(http" not in html
    assert page.images_without_text == 0
    return html


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a dataset, models and evaluations of them."""
    folder = tmp_path_factory.mktemp("work")
    build_paper_cohort(folder, 24)
    save_tiny_encoder(folder / "encoder")
    save_tiny_classifier(folder / "model", cinc2021().with_thresholds(np.linspace(0.2, 0.8, 26)), seed=1)
    _evaluate(folder, "labels", "model", "--plan", "random", "--leads", "12,2")
    _evaluate(folder, "patients", "encoder", "--identify")
    for kind in ("multiclass", "regression", "binary"):
        _evaluate_table(folder, kind)
    return folder


def _evaluate(folder: Path, name: str, model: str, *options: str) -> None:
    words = [str(folder / model), "--data", str(folder / "set"), "--device", "cpu", "--bootstrap", "10"]
    assert evaluate.main([*words, *options, "-o", str(folder / name)]) == 0


def _evaluate_table(folder: Path, kind: str) -> None:
    opened = Dataset.open(folder / "set")
    names = sorted({name for split in opened.splits for name in opened.samples(split, ["recording"])["recording"].to_pylist()})
    values = {"multiclass": (HOSTILE, "b"), "regression": ("3.5", "4.5"), "binary": ("0", "1")}[kind]
    quoted = ['"' + value.replace('"', '""') + '"' for value in values]
    table = folder / f"{kind}.csv"
    table.write_text("recording,y\n" + "".join(f"{name},{quoted[number % 2]}\n" for number, name in enumerate(names)))
    classes = (HOSTILE, "b") if kind == "multiclass" else ("y",)
    save_tiny_classifier(
        folder / f"{kind}-model", LabelDefinition.model_validate({"name": "y", "kind": kind, "classes": classes})
    )
    _evaluate(folder, kind, f"{kind}-model", "--plan", "random", "--label-table", str(table))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the script; returns exit status, standard output and lines of standard error."""

    def run_script(*arguments: object) -> tuple[int, str, list[str]]:
        return run_main(main, arguments, capsys)

    return run_script


def write_run(folder: Path, num_steps: int = 40, **more: float) -> Path:
    """Writes what a run of pre-training writes."""
    folder.mkdir()
    (folder / "config.yaml").write_text(f"seed: 1 # {HOSTILE}\nobjective:\n  name: w2v_cmsc\ndata:\n  path: a&b<c>\n")
    rows: list[dict[str, Any]] = []
    for step in range(1, num_steps + 1):
        values = {"loss": 5 / step, "accuracy_local": step / 100, "chance_local": 0.01, "crops_per_second": 50.0, **more}
        rows.append({"kind": "train", "step": step, "mfu": None, "learning_rate": 1e-3, **values})
        if step % 20 == 0:
            rows.append({"kind": "valid", "step": step, "loss": 6 / step, "accuracy_local": step / 120})
    rows.append({"kind": "valid", "step": num_steps, "loss": 99.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "tra')
    return folder


def test_the_overview_gives_the_metrics_of_the_exported_step(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "summary.json").write_text(json.dumps({"exported_step": 20}))
    assert run(folder, write_run(tmp_path / "other"), "-o", tmp_path / "out.html")[0] == 0
    assert "step 20 (exported), validation: loss 0.300" in (tmp_path / "out.html").read_text()


def test_a_run_names_the_run_that_it_started_from(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "init_model").mkdir()
    (folder / "init_model" / "config.json").write_text(json.dumps({"provenance": {"run": "first", "step": 400}}))
    assert run(folder, "-o", tmp_path / "out.html")[0] == 0
    assert "first, step 400" in (tmp_path / "out.html").read_text()


def test_a_run(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    status, out, err = run(folder, "-o", tmp_path / "out.html")
    assert (status, err) == (0, [])
    assert out.startswith(str(tmp_path / "out.html"))
    html = check_page(tmp_path / "out.html")
    assert "This run has not ended: its last recorded step is 40." in html
    assert "Curve of accuracy local: training from 0.01 to 0.4; validation from 0.1667 to 0.3333" in html
    assert "99.0" not in html, "the exported checkpoint was validated again"
    assert "chance" in html
    assert "a&amp;b&lt;c&gt;" in html
    assert run(folder, "-o", tmp_path / "again.html")[0] == 0
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "out.html").read_bytes()


def test_a_run_on_a_mixture_names_its_datasets(run: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "config.yaml").write_text("data:\n  datasets: [{path: datasets/a, weight: 1}, {path: datasets/b}]\n")
    assert run(folder, "-o", tmp_path / "report.html")[0] == 0
    assert "datasets/a, datasets/b" in check_page(tmp_path / "report.html")


def test_labels(run: Run, work: Path, tmp_path: Path) -> None:
    status, _, err = run(work / "labels", "-o", tmp_path / "out.html", "--title", HOSTILE)
    assert (status, err) == (0, [])
    html = check_page(tmp_path / "out.html")
    results = json.loads((work / "labels" / "evaluation.json").read_text())
    row = results["rows"][0]
    score = row["overall"]["auroc_macro"]
    assert f"<td>{score['value']:.3f} <small>[{score['low']:.3f}, {score['high']:.3f}]</small></td>" in html
    assert "the scores show that everything runs, not how good the model is" in html
    for part in ("ROC curves; areas: sinus rhythm", "Reliability diagram", "percentages of each row", "principal components"):
        assert part in html
    assert html.count('aria-label="12-lead ECG of ') == 4
    with np.load(work / "labels" / row["predictions"], allow_pickle=False) as arrays:
        assert arrays["embedding"].shape == (len(arrays["key"]), 32)


def test_identification(run: Run, work: Path, tmp_path: Path) -> None:
    status, _, err = run(work / "patients", "-o", tmp_path / "out.html")
    assert (status, err) == (0, [])
    html = check_page(tmp_path / "out.html")
    rank_1 = json.loads((work / "patients" / "evaluation.json").read_text())["rows"][0]["overall"]["rank_1_accuracy"]["value"]
    assert f"CMC curve: rank-1 {rank_1:.3f}" in html
    for part in ("Histograms of similarities: mean", "Verification ROC curve; area", "Most confident wrong match: a probe"):
        assert part in html


def test_undefined_verification_metrics_are_left_out(run: Run, work: Path, tmp_path: Path) -> None:
    content = json.loads((work / "patients" / "evaluation.json").read_text())
    for row in content["rows"]:
        row["verification"] |= {"auroc": None, "equal_error_rate": None}
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert run(tmp_path / "results.json", "-o", tmp_path / "out.html")[0] == 0
    html = check_page(tmp_path / "out.html")
    assert "true acceptance rate at 1% false acceptance" in html
    assert "equal error rate" not in html


@pytest.mark.parametrize("kind", ["multiclass", "regression", "binary"])
def test_labels_of_a_table(run: Run, work: Path, tmp_path: Path, kind: str) -> None:
    assert run(work / kind, "-o", tmp_path / "out.html", "--examples", 1)[0] == 0
    html = check_page(tmp_path / "out.html")
    part = {"multiclass": "probability of the predicted class", "regression": "Predicted against true y", "binary": "no class"}
    assert part[kind] in html
    if kind == "multiclass":
        assert "&lt;script&gt;alert(" in html
        assert "$y$" in html


def test_several_inputs_and_a_file_of_results(run: Run, work: Path, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    file = shutil.copy(work / "labels" / "evaluation.json", tmp_path / "results.json")
    assert run(folder, work / "labels", file, "-o", tmp_path / "out.html", "--examples", 0)[0] == 0
    html = check_page(tmp_path / "out.html")
    assert re.findall(r"<h2 [^>]*>(\w+)", html) == ["Overview", "Run", "Evaluation", "Evaluation"]
    assert "12-lead ECG" not in html
    assert "Without predictions (evaluate.py -o FOLDER writes them) there are no curves" in html


def test_a_dataset_that_has_moved(run: Run, work: Path, tmp_path: Path) -> None:
    content = json.loads((work / "labels" / "evaluation.json").read_text())
    shutil.copytree(work / "labels", tmp_path / "moved")
    (tmp_path / "moved" / "evaluation.json").write_text(json.dumps(content | {"dataset": "nowhere"}))
    assert run(tmp_path / "moved", "-o", tmp_path / "out.html")[0] == 0
    assert "ECGs are not drawn, because the dataset cannot be opened" in (tmp_path / "out.html").read_text()
    assert run(tmp_path / "moved", "-o", tmp_path / "out.html", "--data", work / "set", "--examples", 1)[0] == 0
    assert "12-lead ECG" in (tmp_path / "out.html").read_text()
    (tmp_path / "moved" / "evaluation.json").write_text(json.dumps(content | {"dataset_fingerprint": "0" * 64}))
    status, _, err = run(tmp_path / "moved", "-o", tmp_path / "out.html", "--data", work / "set")
    assert (status, len(err)) == (2, 1)
    assert "not the dataset of" in err[0]


def damage_json(folder: Path, **changes: Any) -> None:
    file = folder / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (lambda f: (f / "evaluation.json").write_text("{"), "evaluation.json: not valid JSON"),
    "other JSON": (lambda f: (f / "evaluation.json").write_text("{}"), "not results of engine/evaluate.py"),
    "later format": (lambda f: damage_json(f, format_version=9), "evaluation.json: is damaged ("),
    "rows": (lambda f: damage_json(f, rows=[{"model": 3}]), "evaluation.json: is damaged ("),
    "no rows": (lambda f: damage_json(f, rows=[]), "evaluation.json: is damaged ("),
    "difference": (
        lambda f: damage_json(f, differences=[{"first": 99, "second": 0, "overall": {}}]),
        "it compares missing rows",
    ),
    "missing": (lambda f: (f / "predictions-000.npz").unlink(), "predictions-000.npz: is missing"),
    "truncated": (lambda f: (f / "predictions-000.npz").write_bytes(b"PK\3\4 cut"), "predictions-000.npz: is damaged"),
    "empty": (lambda f: np.savez(f / "predictions-000.npz", key=np.array(["a"])), "no array 'segment'"),
    "pickle": (lambda f: np.savez(f / "predictions-000.npz", key=np.array([{}], dtype=object)), "is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_evaluations_are_one_line(run: Run, work: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(work / "labels", tmp_path / "copy")
    spoil, message = DAMAGES[damage]
    spoil(tmp_path / "copy")
    status, out, err = run(tmp_path / "copy", "-o", tmp_path / "out.html")
    assert (status, out, len(err)) == (2, "", 1)
    assert message in err[0]
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("metrics.jsonl", "", "contains no training steps"),
        ("metrics.jsonl", '{"kind": "train", "step": 1, "loss": 2.0}\nx\n', "metrics.jsonl: line 2 is damaged"),
        ("metrics.jsonl", '{"kind": "train", "step": 1, "loss": "low"}\n', "metrics.jsonl: line 1 is damaged"),
        ("config.yaml", "a: [", "config.yaml: not valid YAML"),
        ("config.yaml", "- 1", "config.yaml: not the configuration of a run"),
        ("summary.json", "[1]", "summary.json: not a JSON object"),
    ],
)
def test_damaged_runs_are_one_line(run: Run, tmp_path: Path, file: str, text: str, message: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / file).write_text(text)
    status, out, err = run(folder, "-o", tmp_path / "out.html")
    assert (status, out, len(err)) == (2, "", 1)
    assert message in err[0]


def test_wrong_arguments_are_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ((tmp_path / "none", "-o", tmp_path / "out.html"), "none: does not exist: choose the folder of a run"),
        ((tmp_path / "empty", "-o", tmp_path / "out.html"), "empty: not a run or an evaluation"),
        ((write_run(tmp_path / "run"), "-o", tmp_path / "out.pdf"), "out.pdf: the file name must end in .html"),
    ):
        status, out, err = run(*arguments)
        assert (status, out, len(err)) == (2, "", 1)
        assert message in err[0]
