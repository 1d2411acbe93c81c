"""The encoder and its parts, independent of objectives and training.

functional.py               linear maps, attention and dropout, by device
layers.py                   layers with fp32 weights that compute in the dtype of their input
feature_encoder.py          convolution blocks, samples to tokens
positional.py               convolutional positional encoding
positional_implementations.py  ways to compute its convolution; positional_triton.py, one with Triton kernels
transformer.py              post-LN transformer blocks
quantizer.py                Gumbel vector quantizer
encoder.py                  the whole encoder and its options
heads.py                    the classification head
arcface.py                  ArcFace, which learns patients as directions
lora.py                     low-rank updates of an encoder's matrices
pretrained.py               a trained model: load, embed, predict
signal_input.py             signals with any leads, sampling rate and length -> segments of a model
plausibility.py             amplitudes that are too small or too large for ECGs
normalization.py            z-scores of leads
create.py                   a new model with random weights
model_folder.py             reads and writes a model's folder; model_config.py, its config.json; model_card.py, its README.md
model_weights.py            checks of its tensors
scikit.py                   a transformer of scikit-learn (not imported here: scikit-learn is slow to import)
hub.py                      download from and upload to the Hugging Face Hub
"""

from engine.models.arcface import ArcFace, ArcFaceOutput
from engine.models.create import create
from engine.models.encoder import ComputeOptions, Encoder, EncoderOptions, EncoderOutput, flops_per_segment
from engine.models.heads import ClassificationHead
from engine.models.model_config import ModelConfig
from engine.models.model_folder import save
from engine.models.pretrained import PretrainedModel, load
from engine.models.quantizer import GumbelQuantizer, Quantized

__all__ = [
    "ArcFace",
    "ArcFaceOutput",
    "ClassificationHead",
    "ComputeOptions",
    "Encoder",
    "EncoderOptions",
    "EncoderOutput",
    "GumbelQuantizer",
    "ModelConfig",
    "PretrainedModel",
    "Quantized",
    "create",
    "flops_per_segment",
    "load",
    "save",
]
