"""The command line shared by the scripts that apply models."""

import pytest
import torch

from engine.inference.command_line import explain_errors
from engine.options import UserError


@pytest.mark.parametrize(
    ("message", "expected"), [("CUDA out of memory.\nTried", "CUDA out of memory."), ("", "OutOfMemoryError")]
)
def test_a_batch_that_does_not_fit_in_memory_is_one_line(message: str, expected: str) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError(message)

    with pytest.raises(UserError, match=f"^{expected}: use a smaller --batch-size$"):
        explain_errors(fail, "out")
