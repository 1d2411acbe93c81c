"""Options of the data."""

import pytest
from pydantic import ValidationError

from data_tools.augmentations import AugmentationOptions, make_augmentations
from data_tools.augmentations.base import Augmentation
from data_tools.leads import LEAD_COMBINATIONS, LEADS
from engine.data import DataOptions, find_leads
from engine.options import UserError


@pytest.mark.parametrize("num_leads", LEAD_COMBINATIONS)
def test_a_number_means_the_combination(num_leads: int) -> None:
    assert tuple(LEADS[row] for row in find_leads(num_leads)) == LEAD_COMBINATIONS[num_leads]


def test_names_come_out_in_canonical_order_whatever_their_spelling() -> None:
    assert find_leads(["v6", "I", " AVF "]) == (0, 5, 11)


@pytest.mark.parametrize(
    ("leads", "message"),
    [(5, "use 12, 6, 3, 2, 1"), (["I", "X"], "unknown lead 'X'"), (["I", "i"], "distinct leads"), ([], "distinct leads")],
)
def test_unknown_leads_are_named(leads: int | list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_leads(leads)


def test_every_field_is_an_augmentation_and_masks_are_applied_last() -> None:
    everything = AugmentationOptions.model_validate({name: {} for name in reversed(AugmentationOptions.model_fields)})
    assert list(everything.chosen()) == list(AugmentationOptions.model_fields)
    assert all(isinstance(options, Augmentation) for options in everything.chosen().values())
    assert [type(augmentation).__name__ for augmentation in make_augmentations(everything, 1, range(12))] == [
        "VcgTransform", "Powerline", "Electromyographic", "BaselineWander", "BaselineShift", "RandomLeadMasking", "TimeMask"
    ]  # fmt: skip


@pytest.mark.parametrize(("named", "number"), [({}, 0), ({"random_lead_masking": None}, 0), ({"random_lead_masking": {}}, 1)])
def test_augmentations_that_are_named_are_on(named: dict[str, dict[str, float] | None], number: int) -> None:
    assert len(make_augmentations(AugmentationOptions.model_validate(named), 1, range(12))) == number


def test_the_defaults_are_the_paper_s() -> None:
    noise = {"p": 1, "amplitude_mv": [0, 0.5], "consistent_limb_leads": True}
    expected = {
        "vcg_transform": {"p": 1, "angle_deg": [-45, 45], "scale": [1, 1.5]},
        "powerline": {**noise, "amplitude_per": "lead", "frequencies_hz": [50], "num_harmonics": 1},
        "electromyographic": {**noise, "amplitude_per": "sample"},
        "baseline_wander": {
            **noise,
            "num_components": 3,
            "frequencies": "harmonic",
            "frequency_step_hz": [0.01, 0.2],
            "scale_mean": 1,
            "scale_std": 0.5,
        },
        "baseline_shift": {
            "p": 1,
            "offset_mv": [-0.5, 0.5],
            "offset_per": "lead",
            "jump_mv": 0,
            "span": [0, 1],
            "span_normal": None,
            "consistent_limb_leads": False,
        },
        "random_lead_masking": {"p": 0.5},
        "time_mask": {"p": 1, "fraction": 0.5},
    }
    assert AugmentationOptions.model_validate({name: {} for name in expected}).model_dump(mode="json") == expected
    assert not DataOptions().augmentations.chosen()


@pytest.mark.parametrize(
    ("name", "num_leads", "reason"),
    [("random_lead_masking", 1, "two or more leads"), ("vcg_transform", 6, "all 12 leads, got 6")],
)
def test_too_few_leads_are_refused_with_the_reason_and_a_remedy(name: str, num_leads: int, reason: str) -> None:
    options = AugmentationOptions.model_validate({name: {}, "powerline": {}})
    key = rf"data\.augmentations\.{name}"
    with pytest.raises(ValueError, match=rf"^{key} needs {reason}: .* or set {key}=null$"):
        make_augmentations(options, 1, range(num_leads))
    make_augmentations(options, 1, range(12))


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="random_led_masking"):
        DataOptions.model_validate({"augmentations": {"random_led_masking": None}})
