"""Embedding recordings with a trained model.

inputs.py       crops of a dataset, or of any folder of WFDB recordings
embedder.py     crops -> embeddings of their segments
store.py        embeddings on disk, and the file of them in the order of their keys
run.py          all of it together
"""

from engine.inference.embedder import Embedder
from engine.inference.inputs import Crop, Done, Input, Skipped, open_input
from engine.inference.run import Summary, check_output, embed_input
from engine.inference.store import EmbeddingStore

__all__ = [
    "Crop",
    "Done",
    "Embedder",
    "EmbeddingStore",
    "Input",
    "Skipped",
    "Summary",
    "check_output",
    "embed_input",
    "open_input",
]
