"""Embedding recordings with a trained model.

inputs.py       crops of a dataset, or of any folder of WFDB recordings
embedder.py     crops -> embeddings of their segments
store.py        embeddings on disk, and the output file sorted by key
run.py          embeds an input into a file
"""

from engine.inference.embedder import Embedder
from engine.inference.inputs import Crop, Input, Progress, Skipped, open_input
from engine.inference.run import Summary, check_output, embed_input
from engine.inference.store import EmbeddingStore

__all__ = [
    "Crop",
    "Embedder",
    "EmbeddingStore",
    "Input",
    "Progress",
    "Skipped",
    "Summary",
    "check_output",
    "embed_input",
    "open_input",
]
