"""Options of the data."""

import pytest
from pydantic import ValidationError

from data_tools.leads import LEAD_COMBINATIONS, LEADS
from engine.data import DataOptions, find_leads
from engine.data.augmentations import AUGMENTATIONS, AugmentationOptions, RandomLeadMaskingOptions, make_augmentations
from engine.options import OptionError


@pytest.mark.parametrize("num_leads", LEAD_COMBINATIONS)
def test_a_number_means_the_combination(num_leads: int) -> None:
    assert tuple(LEADS[row] for row in find_leads(num_leads)) == LEAD_COMBINATIONS[num_leads]


def test_names_come_out_in_canonical_order_whatever_their_spelling() -> None:
    assert find_leads(["v6", "I", " AVF "]) == (0, 5, 11)


@pytest.mark.parametrize(
    ("leads", "message"),
    [(5, "there are 12, 6, 3, 2, 1"), (["I", "X"], "no lead 'X'"), (["I", "i"], "each once"), ([], "each once")],
)
def test_unknown_leads_are_named(leads: int | list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        find_leads(leads)
    with pytest.raises(ValidationError, match=message):
        DataOptions(leads=leads)


def test_the_augmentations_of_the_options_are_those_of_the_table_and_masking_is_last() -> None:
    assert list(AugmentationOptions.model_fields) == list(AUGMENTATIONS)
    assert list(AUGMENTATIONS)[-1] == "random_lead_masking"


@pytest.mark.parametrize(("named", "number"), [({}, 0), ({"random_lead_masking": None}, 0), ({"random_lead_masking": {}}, 1)])
def test_augmentations_that_are_named_are_on(named: dict[str, dict[str, float] | None], number: int) -> None:
    assert len(make_augmentations(AugmentationOptions.model_validate(named), seed=1)) == number


def test_the_defaults_are_the_paper_s() -> None:
    assert RandomLeadMaskingOptions() == RandomLeadMaskingOptions(p=0.5)
    assert DataOptions().leads == 12


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="random_led_masking"):
        DataOptions.model_validate({"augmentations": {"random_led_masking": None}})
