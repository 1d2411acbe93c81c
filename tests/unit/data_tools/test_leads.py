from pathlib import Path

import numpy as np
import pytest

from data_tools.leads import LEAD_COMBINATIONS, LEADS, canonical_lead, derive_limb_leads


@pytest.mark.parametrize(
    ("name", "expected"), [("AVR", "aVR"), (" avf ", "aVF"), ("v6", "V6"), ("i", "I"), ("VX", None), ("", None)]
)
def test_lead_names_are_recognised_in_any_case(name: str, expected: str | None) -> None:
    assert canonical_lead(name) == expected


@pytest.mark.parametrize(
    "prefix", ["", "Lead ", "lead_", "ECG ", "ECG-", "EKG ", "ECG Lead ", "MDC_ECG_LEAD_", "MDC_ECG_", "  "]
)
@pytest.mark.parametrize("lead", LEADS)
def test_lead_names_are_recognized_as_devices_write_them(prefix: str, lead: str) -> None:
    assert canonical_lead(f"{prefix}{lead}") == canonical_lead(f"{prefix}{lead.upper()} (Einthoven)") == lead


@pytest.mark.parametrize(
    ("name", "expected"), [("DI", "I"), ("d2", "II"), ("Lead DIII", "III"), ("C1", "V1"), ("MDC_ECG_LEAD_C6", "V6")]
)
def test_other_names_of_leads_are_recognized(name: str, expected: str) -> None:
    assert canonical_lead(name) == expected


@pytest.mark.parametrize(
    "name", ["-aVR", "MLII", "V", "C7", "Leading", "ECGI", "ECG", "Lead", "IV", "I-II", "(I)", "V1 V2", "MCL1", "lead " * 1000]
)
def test_other_names_are_no_leads(name: str) -> None:
    assert canonical_lead(name) is None


@pytest.mark.parametrize("num_leads", LEAD_COMBINATIONS)
def test_combinations_stand_in_the_order_of_the_leads(num_leads: int) -> None:
    combination = LEAD_COMBINATIONS[num_leads]
    assert len(combination) == num_leads
    assert list(combination) == [lead for lead in LEADS if lead in combination]


def test_limb_leads_fulfil_einthoven_and_goldberger() -> None:
    # From the electrode potentials, by the definitions of the leads.
    right, left, foot = np.random.default_rng(0).normal(size=(3, 100))
    iii, avr, avl, avf = derive_limb_leads(left - right, foot - right)
    np.testing.assert_allclose(iii, foot - left, atol=1e-12)
    np.testing.assert_allclose(avr, right - (left + foot) / 2, atol=1e-12)
    np.testing.assert_allclose(avl, left - (right + foot) / 2, atol=1e-12)
    np.testing.assert_allclose(avf, foot - (right + left) / 2, atol=1e-12)


def test_limb_leads_of_real_recordings_follow_from_the_first_two(shared: Path) -> None:
    from data_tools.sources import make_source

    source = make_source("physionet2021", [shared / "ecg" / "physionet2021"])
    for file in source.find():
        recording = source.open(file)
        signal = recording.read(0, recording.num_samples)
        derived = np.stack(derive_limb_leads(signal[0], signal[1]))
        # Recorders round and filter each lead for itself.
        assert np.abs(derived - signal[2:6]).mean() < 0.02
