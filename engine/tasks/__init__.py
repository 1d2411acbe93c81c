"""Tasks: what a trainer trains. A task turns batches into a loss, metrics and a validation score.

protocol.py     the interface of a task, and how to add one
pretraining.py  self-supervised pre-training with any objective
initial_model.py  the model that a run starts from
finetuning.py   shared by fine-tuning tasks: an encoder with given weights, and a head
labels.py       classification and regression
label_reading.py  their labels, read once per machine
identification.py  identification of patients
evaluators.py   validation metrics: means, or functions of all predictions
"""

from engine.tasks.evaluators import Evaluator, MeanEvaluator, PredictionEvaluator
from engine.tasks.finetuning import FinetuningTask
from engine.tasks.identification import IdentificationTask
from engine.tasks.labels import LabelTask
from engine.tasks.pretraining import PretrainingTask
from engine.tasks.protocol import Score, StepOutput, Task

__all__ = [
    "Evaluator",
    "FinetuningTask",
    "IdentificationTask",
    "LabelTask",
    "MeanEvaluator",
    "PredictionEvaluator",
    "PretrainingTask",
    "Score",
    "StepOutput",
    "Task",
]
