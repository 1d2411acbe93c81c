"""Writes the tables and plots of the figures in benchmarks/results, where people read them.

    python benchmarks/report.py            writes; run it after recording
    python benchmarks/report.py --check    writes nothing; 1 if a page or a picture is not what the results say

Of README.md and benchmarks/README.md the text between the lines ``<!-- figures -->`` and ``<!-- end of figures -->`` is
written, SCALING.md whole, and a picture for each result that has one.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from _plots import digest_of, plots
from _prediction import scaling_page
from _tables import Result, describe_environment, headline, tables

from data_tools.files import atomic_write, write_text

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
BENCHMARKS = Path(__file__).parent


class ReportError(ValueError):
    """A page or a result that the report cannot be made from."""


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--root", type=Path, default=BENCHMARKS.parent, metavar="DIR", help="the checkout (default: this one)")
    arguments = parser.parse_args()
    try:
        results = read_results(arguments.root / "benchmarks" / "results")
        if arguments.check:
            stale = find_stale(arguments.root, results)
            for path in stale:
                print(f"{path}: not what benchmarks/results says: run `python benchmarks/report.py`")
            return int(bool(stale))
        write(arguments.root, results)
    except ReportError as error:
        sys.stderr.write(f"report: {error}\n")
        return 2
    return 0


def read_results(folder: Path) -> dict[str, Result]:
    """Every results file by its name without the ending, in the order of names."""
    results: dict[str, Result] = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "date" not in content["environment"]:
            raise ReportError(f"{path}: has no date: it was recorded by an older version; record it again")
        results[path.stem] = content
    if not results:
        raise ReportError(f"{folder}: holds no results")
    return results


def pages(root: Path, results: Mapping[str, Result]) -> dict[Path, str]:
    """Every page with its text as it should be.

    Raises:
        ReportError: a page without the two lines, or a result without a table.
    """
    readme, benchmarks = root / "README.md", root / "benchmarks" / "README.md"
    try:
        return {
            readme: _filled(readme, _headline_text(results)),
            benchmarks: _filled(benchmarks, _results_text(results)),
            root / "benchmarks" / "SCALING.md": scaling_page(results) + "\n",
        }
    except ReportError:
        raise
    except ValueError as error:
        raise ReportError(str(error)) from None


def write(root: Path, results: Mapping[str, Result]) -> None:
    """Writes every page and every picture that is not up to date."""
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
    """Pages and pictures that differ from what the results say; pictures of results that are no more among them."""
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
    """A page with ``text`` between its two lines."""
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{path}: has no lines '{BEGIN}' and '{END}' to write the figures between")
    return f"{before}{begin}{text}\n{end}{after}"


def _headline_text(results: Mapping[str, Result]) -> str:
    table = headline(results)
    where = dict.fromkeys(describe_environment(result, commit=False) for result in results.values())
    return "\n".join([table.markdown(), "", "Medians. Recorded on:", "", *(f"- {line}" for line in where)])


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
