import json
from pathlib import Path
from typing import Any

import pytest
from report import BEGIN, BENCHMARKS, END, ReportError, find_stale, read_results, write

ROOT = BENCHMARKS.parent


def make_root(folder: Path) -> Path:
    """A checkout's pages with this checkout's results."""
    results = folder / "benchmarks" / "results"
    results.mkdir(parents=True)
    for path in (BENCHMARKS / "results").glob("*.json"):
        (results / path.name).write_text(path.read_text())
    for page in (folder / "README.md", folder / "benchmarks" / "README.md"):
        page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    return folder


def change(root: Path, name: str, **figures: Any) -> None:
    path = root / "benchmarks" / "results" / f"{name}.json"
    content = json.loads(path.read_text())
    content["figures"] |= figures
    path.write_text(json.dumps(content))


def test_the_pages_of_this_checkout_are_what_its_results_say() -> None:
    assert find_stale(ROOT, read_results(BENCHMARKS / "results")) == []


def test_what_was_written_is_up_to_date_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    results = read_results(root / "benchmarks" / "results")
    assert find_stale(root, results)
    write(root, results)
    assert find_stale(root, results) == []
    text = (root / "README.md").read_text()
    assert text.startswith(f"before\n\n{BEGIN}\n|")
    assert text.endswith(f"{END}\n\nafter\n")
    assert "old" not in text.split()


def test_a_changed_figure_makes_page_and_picture_stale(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    write(root, read_results(root / "benchmarks" / "results"))
    rates = json.loads((root / "benchmarks" / "results" / "loader-cpu.json").read_text())["figures"]["rates"]
    rates[0]["crops_per_second"]["median"] += 1000
    change(root, "loader-cpu", rates=rates)
    stale = {path.name for path in find_stale(root, read_results(root / "benchmarks" / "results"))}
    assert stale == {"README.md", "loader-cpu.png"}


def test_the_picture_of_a_result_that_is_gone_is_removed(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    write(root, read_results(root / "benchmarks" / "results"))
    (root / "benchmarks" / "results" / "loader-cpu.json").unlink()
    write(root, read_results(root / "benchmarks" / "results"))
    assert not (root / "benchmarks" / "plots" / "loader-cpu.png").exists()


def test_a_page_without_a_place_for_the_figures_is_told_of(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (root / "README.md").write_text("no place\n")
    with pytest.raises(ReportError, match=r"README\.md: has no lines"):
        write(root, read_results(root / "benchmarks" / "results"))


def test_a_result_that_no_table_is_known_for_is_told_of(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    content = {"benchmark": "new", "config": {}, "figures": {}}
    environment = json.loads((BENCHMARKS / "results" / "loader-cpu.json").read_text())["environment"]
    (root / "benchmarks" / "results" / "new.json").write_text(json.dumps(content | {"environment": environment}))
    with pytest.raises(ReportError, match="benchmark 'new' has no table"):
        write(root, read_results(root / "benchmarks" / "results"))


def test_a_folder_without_results_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no results"):
        read_results(tmp_path)
