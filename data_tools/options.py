"""The base class of options."""

from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Options(BaseModel):
    """Options of one component, declared in the component's file.

    Unknown keys are errors, values are validated on construction, and instances are immutable. A docstring below a field is
    the field's description, which ``--print-config`` prints.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: object, info: ValidationInfo) -> object:
        """Refuses booleans where another type is expected: True equals 1, and YAML reads yes, no, on and off as booleans."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in {annotation, *get_args(annotation)}:
            is_number = bool({int, float} & {annotation, *get_args(annotation)})
            wrong = "expected a number" if is_number else "booleans are not allowed here"
            known = "YAML also reads yes, no, on and off as booleans, unless they are in quotes"
            raise ValueError(f"{wrong}, got the boolean '{str(value).lower()}' ({known})")
        return value
