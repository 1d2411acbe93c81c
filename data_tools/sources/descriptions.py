"""Descriptions of recordings: age, sex, labels and patient, from headers or tables."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Self

from data_tools.recording import RecordingError

# SNOMED CT identifiers have 6 to 18 digits.
_SNOMED = re.compile(r"[1-9]\d{5,17}")
_UNKNOWN = {"", "unknown", "nan", "none", "n/a"}
_SEXES = {"female": "female", "f": "female", "male": "male", "m": "male"}
_MAX_AGE = 120


@dataclass(frozen=True)
class Description:
    """The description of a recording.

    Attributes:
        age: age in years.
        sex: "female" or "male".
        labels: codes, each once.
        patient: name of the patient.
        notes: parts of the description that could not be used, each as "reason: detail".
        problem: why the recording cannot be used, as "reason: detail".
        row: index of the recording in its file, if the file contains several.
    """

    age: float | None = None
    sex: str | None = None
    labels: tuple[str, ...] = ()
    patient: str | None = None
    notes: tuple[str, ...] = ()
    problem: str | None = None
    row: int | None = None

    def encode(self, row: int | None = None) -> str:
        """Returns the known fields as JSON; ``row`` is the index of the recording in its file."""
        fields = asdict(self) | {"row": row}
        return json.dumps({name: value for name, value in fields.items() if value not in (None, ())})

    def check(self) -> None:
        """Checks that the recording can be used.

        Raises:
            RecordingError: there is a problem.
        """
        if self.problem is not None:
            raise RecordingError(self.problem)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Restores a description from :meth:`encode`; an empty string gives an empty description."""
        fields: dict[str, Any] = json.loads(text) if text else {}
        return cls(**{**fields, **{name: tuple(value) for name, value in fields.items() if isinstance(value, list)}})


def parse_comments(comments: Iterable[str]) -> Description:
    """Parses comment lines such as ``Age: 77``, ``Sex: Female``, ``Dx: 253352002,427084000`` and ``Patient: P0001``.

    Invalid values are left out and noted. "Unknown" and "NaN" are valid: they mean that the value is not known.
    """
    fields: dict[str, str] = {}
    for comment in comments:
        name, colon, value = comment.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    notes: list[str] = []
    labels: dict[str, None] = {}
    for token in map(str.strip, re.split(r"[,;]", fields.get("dx", ""))):
        if _SNOMED.fullmatch(token):
            labels[token] = None
        elif token.lower() not in _UNKNOWN:
            notes.append(f"invalid Dx: '{token[:40]}'")
    age = parse_age(fields.get("age"), notes)
    sex = parse_sex(fields.get("sex"), notes)
    return Description(age, sex, tuple(labels), fields.get("patient") or None, tuple(notes))


def parse_age(text: str | None, notes: list[str]) -> float | None:
    """Parses an age in years; appends a note if it is invalid."""
    text = (text or "").strip()
    if text.lower() in _UNKNOWN:
        return None
    try:
        age = float(text)
    except ValueError:
        age = -1
    if 0 <= age <= _MAX_AGE:
        return age
    notes.append(f"invalid Age: '{text[:40]}'")
    return None


def parse_sex(text: str | None, notes: list[str]) -> str | None:
    """Parses a sex; appends a note if it is invalid."""
    text = (text or "").strip().lower()
    if text in _UNKNOWN:
        return None
    sex = _SEXES.get(text)
    if sex is None:
        notes.append(f"invalid Sex: '{text[:40]}'")
    return sex
