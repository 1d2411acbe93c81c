"""A page of sections, as HTML that contains everything it shows. All texts are escaped."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

_TEMPLATE = "page.html"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Notice:
    """A highlighted paragraph, such as a warning."""

    text: str
    kind: str = "notice"


@dataclass(frozen=True)
class Cell:
    """A cell of a table; ``shade``, from 0 to 1, colors its background."""

    text: str
    shade: float | None = None


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it.

    Attributes:
        caption: what it contains.
        header: titles of the columns.
        rows: texts or cells.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    kind: str = "table"

    @property
    def is_text(self) -> list[bool]:
        """Which columns hold texts, so that they are aligned to the left."""
        columns = zip(*([cell if isinstance(cell, str) else cell.text for cell in row] for row in self.rows), strict=True)
        return [any(text[:1] not in "+-0123456789" for text in column) for column in columns]


@dataclass(frozen=True)
class Panel:
    """A figure, with a description for those who cannot see it."""

    svg: Markup
    description: str


@dataclass(frozen=True)
class Figures:
    """Panels, side by side where there is space.

    Attributes:
        caption: what they show.
        panels: the panels.
        is_wide: whether each takes the page's width, and scrolls on a narrow screen.
    """

    caption: str
    panels: Sequence[Panel]
    is_wide: bool = False
    kind: str = "figures"


@dataclass(frozen=True)
class Details:
    """A text, such as a configuration, that is shown after a click on its title."""

    title: str
    text: str
    kind: str = "details"


Block = Text | Notice | Table | Figures | Details


@dataclass
class Section:
    """A part of the page."""

    title: str
    blocks: list[Block] = field(default_factory=list)
    subsections: list["Section"] = field(default_factory=list)


def render(title: str, sections: Sequence[Section]) -> str:
    """Returns the page as HTML."""
    source = files("data_tools.pages").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Names may be file names that are not valid Unicode.
    text = environment.from_string(source).render(title=title, sections=sections)
    return text.encode(errors="surrogateescape").decode(errors="replace")
