import os
from pathlib import Path

import pytest

from engine.config import PretrainConfig, load_config
from engine.config.strict_yaml import parse_yaml
from engine.options import UserError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3", -3),
        ("1e-3", 0.001),
        ("5.0e-5", 5e-5),
        (".5", 0.5),
        ("010", 10),  # 8 in YAML 1.1
        ("1:30", "1:30"),  # 90 in YAML 1.1
        ("0x10", "0x10"),
        ("[I, II]", ["I", "II"]),
        ("{}", {}),
    ],
)
def test_scalars_have_one_meaning(text: str, value: object) -> None:
    parsed = parse_yaml(text, "text")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("a: &x [1, 2]\nb: [*x, *x]", r"write the value instead of \*x"),
        ("a: " + "9" * 400, "does not fit into 64 bits"),
        ("a: 9223372036854775808", "does not fit into 64 bits"),
        ("a: " + "[" * 100_000, "nested deeper than 50 levels"),
        ("a: " + "{b: " * 60 + "1" + "}" * 60, "nested deeper than 50 levels"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: 1\na: 2", "duplicate key 'a'"),
        ("1: a", "the key 1 is not a string"),
    ],
)
def test_what_is_refused_is_named_in_one_line(text: str, fragment: str) -> None:
    with pytest.raises(UserError, match=fragment) as caught:
        parse_yaml(text, "file.yaml")
    assert str(caught.value).startswith("file.yaml: not valid YAML: ")
    assert "\n" not in str(caught.value)


def test_large_files_and_pipes_are_refused(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large.yaml", tmp_path / "pipe.yaml"
    large.write_text("# " + "x" * 1_000_000)
    os.mkfifo(pipe)
    for file, fragment in (
        (large, "larger than 1,000,000 bytes"),
        (pipe, "not a regular file"),
        (Path("/dev/zero"), "not a regular"),
    ):
        with pytest.raises(UserError, match=fragment):
            load_config(PretrainConfig, [file])
