"""The encoder and its parts; they know nothing of objectives or of training.

layers.py           layers with fp32 weights that compute in the dtype of their input
feature_encoder.py  convolution blocks, samples to tokens
positional.py       convolutional positional encoding
transformer.py      post-LN transformer blocks
quantizer.py        Gumbel vector quantizer
encoder.py          the whole encoder and its options
heads.py            the classification head
pretrained.py       a trained model as a folder: save and load
"""

from engine.models.encoder import ComputeOptions, Encoder, EncoderOptions, EncoderOutput, flops_per_segment
from engine.models.heads import ClassificationHead
from engine.models.pretrained import ModelConfig, PretrainedModel, load, save
from engine.models.quantizer import GumbelQuantizer, Quantized

__all__ = [
    "ClassificationHead",
    "ComputeOptions",
    "Encoder",
    "EncoderOptions",
    "EncoderOutput",
    "GumbelQuantizer",
    "ModelConfig",
    "PretrainedModel",
    "Quantized",
    "flops_per_segment",
    "load",
    "save",
]
