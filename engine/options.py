"""The base of every component's options: typed, frozen, and strict about unknown keys."""

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

# Which two 5-s segments of a crop a pair holds: its "adjacent" halves in order, or the "same" half twice, as two views that
# are augmented independently. An objective says which; a loader serves it.
SegmentPair = Literal["adjacent", "same"]


class Options(BaseModel):
    """Options of one component, declared in the component's own file and composed by :mod:`engine.config`.

    An unknown key is an error, values are validated on construction, and an instance cannot be changed afterwards.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_value(cls, value: object, info: ValidationInfo) -> object:
        """Python's True is a number, 1; but whoever writes ``p: yes``, which YAML takes for True, means something else."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in {annotation, *get_args(annotation)}:
            raise ValueError(
                f"'{str(value).lower()}' is a truth value (in YAML yes, no, on and off are too), which is not asked for"
            )
        return value


class UserError(ValueError):
    """A mistake in what the user asked for; the message is one line that says what, where, and what to do.

    In a run of several ranks all of them raise it together, and the first one tells the user.
    """


class RankError(UserError):
    """The same, where it may show on some ranks only, such as a shard that can no longer be read: each of them tells."""
