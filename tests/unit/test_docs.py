"""Facts in docs/: links, messages, and the configuration reference."""

import re
from pathlib import Path

import pytest
import yaml
from list_messages import FOLDERS, find_messages

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
# Written when the documentation is built.
GENERATED = {"configuration.md"}


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and MkDocs name them."""
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_of_the_repository(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        file = page.parent / target if target else page
        is_right = file.exists() and (not anchor or file.name in GENERATED or anchor in anchors(file))
        broken += [] if is_right else [f"{target}#{anchor}"]
    assert broken == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    assert LINK.findall("[a](no.md#b) and [c](https://x.org/y)") == [("no.md", "b")]
    (tmp_path / "page.md").write_text("# `a` is missing: say which\n")
    assert anchors(tmp_path / "page.md") == {"a-is-missing-say-which"}


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w./-]+\.md", str(yaml.safe_load(text)["nav"]))
    assert {f"{page.name}" for page in (ROOT / "docs").glob("*.md")} <= set(listed)


def test_errors_in_the_faq_are_messages_of_the_code() -> None:
    messages = [message.text for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") for message in find_messages(path)]
    titles = re.findall(r"^### `(.*)`$", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)
    assert len(titles) > 20
    unknown = []
    for title in titles:
        # "…" stands for what differs, in the code an expression in braces or a %-format.
        pattern = ".+?".join(re.escape(part.strip()) for part in title.split("…"))
        unknown += [] if any(re.search(pattern, message) for message in messages) else [title]
    assert unknown == []
