"""Hooks of MkDocs: pages that lie elsewhere in the repository, and the configuration reference.

Links are written as they work in the repository, relative to the page's file; here they become those of the site, where the
pages of docs/ lie at the top level.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from engine.config.reference import reference

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(f"benchmarks/{path.name}" for path in sorted((ROOT / "benchmarks").glob("*.md"))),
)
REFERENCE = "<!-- reference -->"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/, and their plots."""
    for path in (*PAGES, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "benchmarks/plots").glob("*.png")))):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translates the links of a page, and fills in the reference."""
    del config, files
    own = page.file.src_uri if page.file.src_uri in PAGES else f"docs/{page.file.src_uri}"
    folder = posixpath.dirname(page.file.src_uri)

    def translate(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(own), link[1])).removeprefix("docs/")
        return posixpath.relpath(target, folder or ".")

    return _LINK.sub(translate, markdown).replace(REFERENCE, reference() if REFERENCE in markdown else "")
