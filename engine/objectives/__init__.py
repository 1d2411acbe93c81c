"""Pre-training objectives, one file each, behind one protocol.

protocol.py          the interface of an objective, and how to add one
pretraining.py       encoder and objective as one module
w2v.py               local: wav2vec 2.0
cmsc.py              global: contrastive multi-segment coding
w2v_cmsc.py          their sum
simclr.py            global: two augmented views of a segment
three_kg.py          global: two views of a segment; all views of a patient are positives
contrast.py          shared by the global objectives: comparison of segments over all ranks
embedding_cache.py   global losses over all micro-batches of a step
masking.py           span masks
negatives.py         negatives of the local objective, as multiplicities
"""

from engine.objectives.cmsc import CMSC
from engine.objectives.pretraining import PretrainingModel
from engine.objectives.protocol import DrawKeys, Objective
from engine.objectives.simclr import SimCLR
from engine.objectives.three_kg import ThreeKG
from engine.objectives.w2v import W2V, W2VOptions
from engine.objectives.w2v_cmsc import W2VCMSC

OBJECTIVES: dict[str, type[Objective]] = {
    "w2v": W2V,
    "cmsc": CMSC,
    "w2v_cmsc": W2VCMSC,
    "simclr": SimCLR,
    "3kg": ThreeKG,
}
"""Name in a configuration -> class; the class names its options (``options_class``)."""

__all__ = ["OBJECTIVES", "DrawKeys", "Objective", "PretrainingModel", "W2VOptions"]
