"""Applying trained models to recordings: embeddings and predictions.

inputs.py       crops of a dataset, or of any folder of WFDB recordings
crop_models.py  crops -> embeddings or predictions of their segments
store.py        embeddings on disk, and the output file sorted by key
predictions.py  predictions on disk, and the output table of recordings
run.py          embeds or predicts an input into a file
"""

from engine.inference.crop_models import CropModel, Embedder, Predictor
from engine.inference.run import Runner, Summary, embed_input, predict_input

__all__ = ["CropModel", "Embedder", "Predictor", "Runner", "Summary", "embed_input", "predict_input"]
