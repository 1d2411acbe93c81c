"""Errors as one line, and numbers with their nouns."""

import difflib
import reprlib
from collections.abc import Iterable, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

_MAX_LENGTH = 80
# A value from a file may contain itself many times over; in full, its representation could fill the memory.
_REPR = reprlib.Repr()
_REPR.maxlevel = 4
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = _REPR.maxset = 20
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 2 * _MAX_LENGTH


def one_line(error: Exception) -> str:
    """Returns the message of an error with line breaks replaced by spaces."""
    return " ".join(str(error).split())


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, without the details that follow; its type if there is no message."""
    return str(error).strip().partition("\n")[0].rstrip() or type(error).__name__


def describe_validation_error(error: ValidationError, prefix: str = "") -> str:
    """Describes the first of pydantic's errors, with its key, and counts the others.

    Args:
        error: the errors.
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


def suggest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns the end of a message on an unknown name: the known one that was probably meant, or else all of them.

    Args:
        name: the unknown name.
        known: the known names.
        prefix: what stands before a known name in the suggestion.
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean '{prefix}{near[0]}'?"
    return f"; known: {', '.join(known)}" if known else ""


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun: "1 crop", "2,000 crops".

    Args:
        number: the number.
        noun: the noun in the singular.
        plural: its plural; None for the singular with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def first_names(names: Sequence[str], limit: int = 5) -> str:
    """Joins the first names of a list, and says how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def shorten(value: object) -> str:
    """Returns the value's representation, cut after 80 characters."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        text = "a value that cannot be printed"
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
