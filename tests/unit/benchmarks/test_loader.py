import itertools

import loader
import pytest
import torch


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_measurement_without_duration_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        loader.parse_arguments(["--seconds", seconds])
    assert "--seconds must be above 0" in capsys.readouterr().err


def test_the_shortest_measurement_has_a_batch() -> None:
    candidate = loader.Candidate("reader", "raw int16", itertools.count(), torch.device("cpu"))
    assert candidate.rate(64, 1e-12) > 0
