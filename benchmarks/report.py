"""Writes the recorded results in benchmarks/results to the pages, as tables and plots.

    python benchmarks/report.py            writes the pages; run it after recording
    python benchmarks/report.py --check    writes nothing; exit status 1 if a page or plot is out of date

In README.md, benchmarks/README.md and docs/choosing.md it replaces the text between the lines ``<!-- results -->`` and
``<!-- end of results -->``; SCALING.md and the plots are written as a whole.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from _choosing import choosing
from _plots import digest_of, plots
from _results import Result, describe_environment
from _scaling_model import scaling_page
from _tables import headline, tables

from data_tools.files import atomic_write, write_text

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
BENCHMARKS = Path(__file__).parent


class ReportError(ValueError):
    """A page or a result cannot be used."""


def main() -> int:
    """Writes or checks the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--root", type=Path, default=BENCHMARKS.parent, metavar="DIR", help="root of the checkout")
    arguments = parser.parse_args()
    try:
        results = read_results(arguments.root / "benchmarks" / "results")
        if arguments.check:
            stale = find_stale(arguments.root, results)
            for path in stale:
                print(f"{path}: out of date: run `python benchmarks/report.py`")
            return int(bool(stale))
        write(arguments.root, results)
    except ReportError as error:
        sys.stderr.write(f"report: {error}\n")
        return 2
    return 0


def read_results(folder: Path) -> dict[str, Result]:
    """Returns every results file by its name without extension, sorted by name."""
    results: dict[str, Result] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "date" not in content["environment"]:
            raise ReportError(f"{path}: no date: recorded with an older version; record it again")
        results[path.stem] = content
    if not results:
        raise ReportError(f"{folder}: contains no results")
    return results


def pages(root: Path, results: Mapping[str, Result]) -> dict[Path, str]:
    """Returns the up-to-date text of every page.

    Raises:
        ReportError: a page lacks the two marker lines, or a result has no table.
    """
    readme, benchmarks, guide = root / "README.md", root / "benchmarks" / "README.md", root / "docs" / "choosing.md"
    try:
        return {
            readme: _filled(readme, _headline_text(results)),
            benchmarks: _filled(benchmarks, _results_text(results)),
            guide: _filled(guide, choosing(results)),
            root / "benchmarks" / "SCALING.md": scaling_page(results) + "\n",
        }
    except ReportError:
        raise
    except ValueError as error:
        raise ReportError(str(error)) from None


def write(root: Path, results: Mapping[str, Result]) -> None:
    """Writes every page and plot that is out of date, and removes plots without results."""
    texts = pages(root, results)
    folder = root / "benchmarks" / "plots"
    drawings = plots(results)
    for path in find_stale(root, results):
        if path in texts:
            write_text(path, texts[path])
        elif path.name in drawings:
            folder.mkdir(exist_ok=True)
            with atomic_write(path) as file:
                file.write(drawings[path.name][1]())
        else:
            path.unlink()
        print(f"wrote {path}" if path.exists() else f"removed {path}")


def find_stale(root: Path, results: Mapping[str, Result]) -> list[Path]:
    """Returns pages and plots that are out of date, and plots whose results no longer exist."""
    stale = [
        path for path, text in pages(root, results).items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    folder = root / "benchmarks" / "plots"
    drawings = plots(results)
    for name, (digest, _) in drawings.items():
        path = folder / name
        if not path.exists() or digest_of(path.read_bytes()) != digest:
            stale.append(path)
    return stale + [path for path in sorted(folder.glob("*.png")) if path.name not in drawings]


def _filled(path: Path, text: str) -> str:
    """Returns a page with ``text`` between its marker lines."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{path}: the lines '{BEGIN}' and '{END}' are missing")
    return f"{before}{begin}{text}\n{end}{after}"


def _headline_text(results: Mapping[str, Result]) -> str:
    table = headline(results)
    machines = dict.fromkeys(describe_environment(result, commit=False) for result in results.values())
    return "\n".join([table.markdown(), "", "Values are medians, recorded on:", "", *(f"- {line}" for line in machines)])


def _results_text(results: Mapping[str, Result]) -> str:
    parts: list[str] = []
    drawings = plots(results)
    for name, result in results.items():
        parts += [f"### {name}", f"{describe_environment(result)}."]
        parts += [table.markdown() for table in tables(result)]
        if f"{name}.png" in drawings:
            parts.append(f"![{name}](plots/{name}.png)")
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
