"""Opening the datasets of a run."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from recording_files import random_signal, write_recording

from data_tools.build.options import BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.shards.dataset import Dataset
from engine.config import PretrainConfig
from engine.options import UserError
from engine.training.data import Source, check_leads

Open = Callable[[Sequence[str] | int], Source]


@pytest.fixture
def open_source(tmp_path: Path) -> Open:
    """Opens a dataset in which one recording has I and II, another V2."""
    for name, leads in (("A", ("I", "II")), ("B", ("V2",))):
        write_recording(tmp_path / "in", name, random_signal(len(name))[: len(leads)], leads=leads)
    build_dataset(BuildOptions("physionet2021", (tmp_path / "in",)), tmp_path / "set", num_workers=1)

    def open_with(leads: Sequence[str] | int) -> Source:
        config = PretrainConfig.model_validate(
            {
                "objective": {"name": "cmsc"},
                "leads": leads,
                "output_dir": "run",
                "data": {},
                "train": {"steps": 1, "batch_size": 2},
            }
        )
        return Source(Dataset.open(tmp_path / "set"), 1, config)

    return open_with


def test_leads_of_any_recording_are_enough(open_source: Open) -> None:
    assert check_leads([open_source(["I", "V2"])]) == []


def test_leads_that_no_recording_has_are_zeros(open_source: Open) -> None:
    source = open_source(12)
    absent = "III, aVR, aVL, aVF, V1, V3, V4, V5, V6"
    assert check_leads([source, open_source(1)]) == [
        f"no recording in {source.dataset.location} has {absent}: zeros are used instead"
    ]


def test_a_dataset_without_any_of_the_leads_is_refused(open_source: Open) -> None:
    with pytest.raises(UserError, match=r"leads: no recording in .*/set has V1, V6; available: I, II, V2$"):
        check_leads([open_source(["V1", "V6"])])
