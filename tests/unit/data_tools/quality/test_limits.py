from pathlib import Path

import numpy as np
import pytest

from data_tools.quality.limits import CATEGORIES, QualityLimits, read_limits
from data_tools.quality.measures import MEASURES


def measured(**values: dict[int, float]) -> np.ndarray:
    """Returns measures [6, 12] that are 0 except for some: name={lead: value}."""
    array = np.zeros((len(MEASURES), 12), np.float32)
    for name, leads in values.items():
        for lead, value in leads.items():
            array[MEASURES.index(name), lead] = value
    return array


def test_every_measure_but_nan_has_a_limit_and_a_category() -> None:
    assert {"nan", *CATEGORIES} == set(MEASURES)
    assert set(CATEGORIES) == set(QualityLimits.model_fields) - {"max_bad_leads"}
    assert all(value is not None for value in read_limits("default").model_dump().values())


def test_the_reason_names_values_leads_and_limits() -> None:
    limits = QualityLimits(noise=0.3, baseline=5)
    assert limits.judge(measured()) == ("", "")
    assert limits.judge(measured(noise={6: 0.3, 7: 0.299}, flat={0: 10})) == ("", "")
    values = measured(noise={6: 0.31, 7: 0.9, 8: 0.4, 9: 0.5}, baseline={0: 6})
    assert limits.judge(values) == (
        "baseline far from zero",
        "baseline 6 mV in I (limit 5 mV); noise 0.9 mV in V2, 0.5 mV in V4, 0.4 mV in V3 and 1 more lead (limit 0.3 mV)",
    )


def test_some_bad_leads_may_be_tolerated() -> None:
    limits = QualityLimits(flat=5, noise=0.3, max_bad_leads=2)
    assert limits.judge(measured(flat={0: 6, 1: 6}, noise={1: 1})) == ("", "")
    assert limits.judge(measured(flat={0: 6, 1: 6}, noise={2: 1}))[0] == "flat lead"


def test_missing_measures_are_within_any_limit() -> None:
    assert read_limits("default").judge(np.full((len(MEASURES), 12), np.nan, np.float32)) == ("", "")


def test_limits_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("noise: 0.2\nflat: null\nmax_bad_leads: 3\n")
    assert read_limits(str(file)) == QualityLimits(noise=0.2, max_bad_leads=3)
    file.write_text("")
    assert read_limits(str(file)) == QualityLimits()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nois: 0.2", "nois: no such key; the keys are flat, clipped, baseline, noise, limb_error, max_bad_leads"),
        ("noise: -1", "noise: input should be greater than or equal to 0, got -1"),
        ("noise: yes", "noise: expected a number, got the boolean 'true'"),
        ("noise: .nan", "noise: "),
        ("- noise", "input should be a valid dictionary"),
        ("noise: [", "is not YAML"),
        ("\0", "is not YAML"),
        ("a: " + "x" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_mistakes_in_a_file_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"limits\.yaml: ") as caught:
        read_limits(str(file))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .*or 'default'"):
        read_limits(str(tmp_path / "none.yaml"))
