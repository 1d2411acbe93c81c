"""Options of the data."""

import pytest
from pydantic import ValidationError

from data_tools.leads import LEAD_COMBINATIONS, LEADS
from engine.data import DataOptions, find_leads
from engine.data.augmentations import (
    AugmentationOptions,
    BaselineShiftOptions,
    BaselineWanderOptions,
    ElectromyographicOptions,
    PowerlineOptions,
    RandomLeadMaskingOptions,
    make_augmentations,
)
from engine.data.augmentations.base import AugmentationChoice, LeadFactor
from engine.options import UserError


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
    with pytest.raises(UserError, match=message):
        find_leads(leads)


def test_every_field_is_an_augmentation_and_masking_is_applied_last() -> None:
    everything = AugmentationOptions.model_validate({name: {} for name in AugmentationOptions.model_fields})
    chosen = [getattr(everything, name) for name in AugmentationOptions.model_fields]
    assert all(isinstance(options, AugmentationChoice) for options in chosen)
    made = make_augmentations(everything, 1, range(12))
    assert [type(augmentation).__name__ for augmentation in made] == [
        "Powerline", "Electromyographic", "BaselineWander", "BaselineShift", "RandomLeadMasking"
    ]  # fmt: skip
    assert [isinstance(augmentation, LeadFactor) for augmentation in made] == [False] * 4 + [True]


@pytest.mark.parametrize(("named", "number"), [({}, 0), ({"random_lead_masking": None}, 0), ({"random_lead_masking": {}}, 1)])
def test_augmentations_that_are_named_are_on(named: dict[str, dict[str, float] | None], number: int) -> None:
    assert len(make_augmentations(AugmentationOptions.model_validate(named), 1, range(12))) == number


def test_the_defaults_are_the_paper_s() -> None:
    assert RandomLeadMaskingOptions() == RandomLeadMaskingOptions(p=0.5)
    assert PowerlineOptions() == PowerlineOptions(p=1, amplitude_mv=(0, 0.5), frequencies_hz=(50,), num_harmonics=1)
    assert ElectromyographicOptions() == ElectromyographicOptions(p=1, amplitude_mv=(0, 0.5))
    assert BaselineWanderOptions() == BaselineWanderOptions(
        p=1, num_components=3, amplitude_mv=(0, 0.5), frequency_step_hz=(0.01, 0.2), scale_mean=1, scale_std=0.5
    )
    assert BaselineShiftOptions() == BaselineShiftOptions(p=1, offset_mv=(-0.5, 0.5), span=(0, 1))
    for options in (PowerlineOptions(), ElectromyographicOptions(), BaselineWanderOptions()):
        assert options.consistent_limb_leads
    assert DataOptions().leads == 12


@pytest.mark.parametrize("leads", [1, ["aVF"]])
def test_masking_a_single_lead_is_refused_with_the_reason(leads: int | list[str]) -> None:
    with pytest.raises(ValidationError, match=r"needs two leads or more.*random_lead_masking=null"):
        DataOptions.model_validate({"leads": leads, "augmentations": {"random_lead_masking": {}}})
    DataOptions.model_validate({"leads": leads, "augmentations": {"powerline": {}}})


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="random_led_masking"):
        DataOptions.model_validate({"augmentations": {"random_led_masking": None}})
