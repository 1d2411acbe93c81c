from pathlib import Path

import numpy as np
import pyarrow.csv

from data_tools.labels import LabelDefinition
from engine.inference.inputs import Crop
from engine.inference.predictions import PredictionStore


def crop(recording: str) -> Crop:
    return Crop(f"{recording}-0", "clinic", recording, np.zeros((12, 5000), np.int16), 5000, ("I",), ())


def test_a_recording_without_a_segment_is_left_out_without_a_warning(tmp_path: Path) -> None:
    """Warnings are errors in tests, such as NumPy's of a mean over no segments."""
    with PredictionStore(tmp_path, LabelDefinition(name="mine", kind="multilabel", classes=("a", "b"))) as store:
        predictions = np.array([[[np.nan, np.nan]], [[0.25, 0.75]]], np.float32)
        store.add([crop("brief"), crop("long")], predictions, np.array([0, 1]))
    assert store.write(tmp_path / "out.csv") == (1, ["clinic/brief"])
    table = pyarrow.csv.read_csv(tmp_path / "out.csv").to_pydict()
    assert table["recording"] == ["long"]
    assert (table["probability_a"], table["probability_b"]) == ([0.25], [0.75])
