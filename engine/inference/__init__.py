"""Applying trained models to recordings: embeddings, predictions and scores.

inputs.py          crops of a dataset, or of any folder of WFDB recordings
crop_models.py     crops -> embeddings or predictions of their segments
store.py           embeddings on disk, and the output file sorted by key
predictions.py     predictions on disk, and the output table of recordings
run.py             embeds or predicts an input into a file
segments.py        the segments of a split on which models are evaluated
label_source.py    the labels that they are evaluated with
scoring.py         predictions of segments by models and probes, and their metrics
identification.py  gallery and probes
evaluation.py      the results of an evaluation, printed and written
model_folder.py    the model that a command line names
command_line.py    shared by the scripts' command lines
"""

from engine.inference.crop_models import CropModel, Embedder, Predictor
from engine.inference.run import Runner, Summary, embed_input, predict_input

__all__ = ["CropModel", "Embedder", "Predictor", "Runner", "Summary", "embed_input", "predict_input"]
