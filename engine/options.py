"""The base class of every component's options, and the errors that users see."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Tag, ValidationInfo, create_model, field_validator

# Which two 5-s segments of a crop form a pair: its two halves in order ("adjacent"), or one half twice ("same"), as two views
# that are augmented independently. An objective chooses; a loader delivers it.
SegmentPair = Literal["adjacent", "same"]


class Options(BaseModel):
    """Options of one component, declared in the component's file and composed by :mod:`engine.config`.

    Unknown keys are errors, values are validated on construction, and instances are immutable. A docstring below a field is
    the field's description, which ``--print-config`` prints.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: object, info: ValidationInfo) -> object:
        """Refuses booleans for other types: True equals 1 in Python, and YAML reads yes, no, on and off as booleans."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in {annotation, *get_args(annotation)}:
            expected = "a number" if {int, float} & {annotation, *get_args(annotation)} else "another type"
            raise ValueError(f"expected {expected}, got the boolean '{str(value).lower()}' (YAML also reads yes, no, on, off)")
        return value


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
        member = create_model(options.__name__, __base__=base, __doc__=options.__doc__, name=(annotation, name))
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
