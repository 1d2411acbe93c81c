"""Options chosen by name, and the errors that users see."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import Discriminator, Field, Tag, create_model

from data_tools.options import Options

__all__ = ["NamedOptions", "Options", "RankError", "SampleUnit", "SegmentPair", "UserError", "tagged_choice"]

# Which 5-s segments of a crop a sample holds: its two halves in order ("adjacent"); one half twice ("same"), as two views that
# are augmented independently; or one half ("single"). A task or an objective chooses, and the loader delivers it.
SegmentPair = Literal["adjacent", "same", "single"]

# The unit of a sample: a crop of two complete segments, or each complete segment of any crop.
SampleUnit = Literal["crop", "segment"]


class NamedOptions(Options):
    """Options of one entry of a table, chosen by ``name``. In YAML: ``objective: {name: w2v_cmsc, <its options>}``."""

    name: str


def tagged_choice(table: Mapping[str, type[Options]]) -> Any:
    """Returns the type of a field that holds the options of one entry of a table, told apart by their ``name``.

    Args:
        table: name -> options class.
    """
    members: list[Any] = []
    for name, options in table.items():
        annotation: Any = Literal[name]
        base = (NamedOptions, options)
        field = Field(name, description=f"One of {', '.join(table)}")
        member = create_model(options.__name__, __base__=base, __doc__=options.__doc__, name=(annotation, field))
        members.append(Annotated[member, Tag(name)])
    return Annotated[Union[tuple(members)], Discriminator(_get_name)]  # noqa: UP007 -- made at run time


def _get_name(value: object) -> Any:
    return value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)


class UserError(ValueError):
    """A user's mistake; the message is one line that says what is wrong, where, and what to do.

    In a run of several ranks all of them raise it together, and rank 0 reports it.
    """


class RankError(UserError):
    """A :class:`UserError` that may occur on some ranks only, such as an unreadable shard; each rank reports its own."""
