"""Reports of pydantic as one line, and numbers with their nouns."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from data_tools.validation import count, describe_validation_error, first_line, shorten


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = 1

    @field_validator("size")
    @classmethod
    def _check(cls, size: int) -> int:
        if size == 13:
            raise ValueError("13 is not allowed")
        return size


class Outer(BaseModel):
    inner: Inner


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "config.inner: is missing"),
        ({"inner": {"size": 13}}, "config.inner.size: 13 is not allowed"),
        ({"inner": {"sise": 1}}, "config.inner.sise: no such key"),
        ({"inner": {"size": "x", "sise": 1}}, " (and 1 more)"),
        ({"inner": {"size": "x" * 10**6}}, "got 'xxx"),
    ],
)
def test_the_first_mistake_is_named(content: object, expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(content)
    line = describe_validation_error(caught.value, "config")
    assert expected in line
    assert "\n" not in line
    assert len(line) < 250


def test_without_a_prefix_the_key_comes_first() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"inner": {"size": 13}})
    assert describe_validation_error(caught.value) == "inner.size: 13 is not allowed"


def test_values_that_contain_themselves_many_times_are_shortened_at_once() -> None:
    bomb: object = "x"
    for _ in range(100):
        bomb = [bomb, bomb]
    assert shorten(bomb).startswith("[[[[[...], [...]]")
    assert shorten(10**9999) == "a value that cannot be printed"
    assert shorten({"a": list(range(50))}).startswith("{'a': [0, 1, 2,")


@pytest.mark.parametrize(
    ("message", "expected"),
    [("", "RuntimeError"), (" \n", "RuntimeError"), ("disk full", "disk full"), ("\ndisk full \r\nat line 3", "disk full")],
)
def test_the_first_line_of_an_error_is_never_empty(message: str, expected: str) -> None:
    assert first_line(RuntimeError(message)) == expected


def test_one_is_singular() -> None:
    assert [count(number, "crop") for number in (0, 1, 2, 12345)] == ["0 crops", "1 crop", "2 crops", "12,345 crops"]
    assert [count(number, "class", "classes") for number in (1, 2)] == ["1 class", "2 classes"]
