"""Reports: one HTML page without scripts, and without anything loaded from elsewhere, about runs and evaluations.

inputs.py          what a command line names: runs and evaluations
runs.py            a training run: learning curves, throughput, configuration
evaluations.py     an evaluation: scores by model, leads and class
outputs.py         predictions by recording
curves.py          ROC, precision-recall and reliability
decisions.py       confusion matrix
identification.py  similarities, ranks and verification
examples.py        the ECGs with the most confident right and wrong predictions
projection.py      embeddings in two dimensions

data_tools/pages has the page and its figures.
"""

from engine.reporting.report import make_report

__all__ = ["make_report"]
