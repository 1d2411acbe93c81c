"""The progress of a run."""

from dataclasses import dataclass


@dataclass
class RunState:
    """The trainer's state besides weights, optimizer and loader.

    Attributes:
        step: number of finished steps.
        num_steps: the step after which the run ends.
        best_score: best validation score so far, or ``None`` before the first validation.
        saved_step: step of the newest checkpoint; 0: none.
        first_step: the step that this process started from.
    """

    step: int
    num_steps: int
    best_score: float | None = None
    saved_step: int = 0
    first_step: int = 0
