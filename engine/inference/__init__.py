"""Embedding recordings with a trained model.

inputs.py       crops of a dataset, or of any folder of WFDB recordings
embedder.py     crops -> embeddings of their segments
store.py        embeddings on disk, and the output file sorted by key
run.py          embeds an input into a file
"""

from engine.inference.embedder import Embedder
from engine.inference.run import check_output, embed_input

__all__ = ["Embedder", "check_output", "embed_input"]
