import json
from pathlib import Path
from typing import Any

import pytest
from report import BEGIN, BENCHMARKS, END, ReportError, find_stale, read_results, write

ROOT = BENCHMARKS.parent


def make_root(folder: Path) -> Path:
    """Creates a checkout's pages with the results of this checkout."""
    results = folder / "benchmarks" / "results"
    results.mkdir(parents=True)
    for path in (BENCHMARKS / "results").glob("*.json"):
        (results / path.name).write_text(path.read_text())
    (folder / "docs").mkdir()
    for page in (folder / "README.md", folder / "benchmarks" / "README.md", folder / "docs" / "choosing.md"):
        page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    return folder


def change(root: Path, name: str, **metrics: Any) -> None:
    path = root / "benchmarks" / "results" / f"{name}.json"
    content = json.loads(path.read_text())
    content["metrics"] |= metrics
    path.write_text(json.dumps(content))


def test_pages_of_this_checkout_are_up_to_date() -> None:
    assert find_stale(ROOT, read_results(BENCHMARKS / "results")) == []


def test_writing_updates_the_marked_block_only(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    results = read_results(root / "benchmarks" / "results")
    assert find_stale(root, results)
    write(root, results)
    assert find_stale(root, results) == []
    text = (root / "README.md").read_text()
    assert text.startswith(f"before\n\n{BEGIN}\n|")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "old" not in text.split()


def test_a_changed_metric_makes_page_and_plot_stale(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    write(root, read_results(root / "benchmarks" / "results"))
    rates = json.loads((root / "benchmarks" / "results" / "loader-cpu.json").read_text())["metrics"]["rates"]
    rates[0]["crops_per_second"]["median"] += 1000
    change(root, "loader-cpu", rates=rates)
    stale = {path.name for path in find_stale(root, read_results(root / "benchmarks" / "results"))}
    assert stale == {"README.md", "loader-cpu.png"}


def test_plots_of_removed_results_are_removed(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    write(root, read_results(root / "benchmarks" / "results"))
    (root / "benchmarks" / "results" / "loader-cpu.json").unlink()
    write(root, read_results(root / "benchmarks" / "results"))
    assert not (root / "benchmarks" / "plots" / "loader-cpu.png").exists()


def test_a_page_without_markers_is_an_error(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (root / "README.md").write_text("no markers\n")
    with pytest.raises(ReportError, match=r"README\.md: the lines .* are missing"):
        write(root, read_results(root / "benchmarks" / "results"))


def test_an_unknown_benchmark_is_an_error(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    content = {"benchmark": "new", "config": {}, "metrics": {}}
    environment = json.loads((BENCHMARKS / "results" / "loader-cpu.json").read_text())["environment"]
    (root / "benchmarks" / "results" / "new.json").write_text(json.dumps(content | {"environment": environment}))
    with pytest.raises(ReportError, match="unknown benchmark 'new'"):
        write(root, read_results(root / "benchmarks" / "results"))


def test_a_folder_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="contains no results"):
        read_results(tmp_path)
