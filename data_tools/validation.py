"""Errors as one line."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MAX_LENGTH = 80


def one_line(error: Exception) -> str:
    """Returns the message of an error without its line breaks."""
    return " ".join(str(error).split())


def describe_validation_error(error: ValidationError, prefix: str = "") -> str:
    """Returns the first mistake of a report, with its key, and the number of others.

    Args:
        error: the report.
        prefix: dotted key of the validated object, if it is part of a larger one.
    """
    first = error.errors()[0]
    key = ".".join(str(part) for part in (prefix, *first["loc"]) if part != "")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{key}{': ' if key else ''}{explain_mistake(first)}{more}"


def explain_mistake(mistake: ErrorDetails) -> str:
    """Returns what is wrong with a value, without its key."""
    if mistake["type"] == "value_error":
        return str(mistake["ctx"]["error"])
    if mistake["type"] == "extra_forbidden":
        return "no such key"
    if mistake["type"] == "missing":
        return "is missing"
    return f"{mistake['msg'][0].lower()}{mistake['msg'][1:]}, got {shorten(mistake['input'])}"


def shorten(value: object) -> str:
    """Returns the value's representation, cut after 80 characters."""
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
