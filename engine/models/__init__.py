"""The encoder and its parts; they know nothing of objectives or of training.

layers.py           layers with fp32 weights that compute in the dtype of their input
feature_encoder.py  convolution blocks, samples to tokens
positional.py       convolutional positional encoding
transformer.py      post-LN transformer blocks
quantizer.py        Gumbel vector quantizer
encoder.py          the whole encoder and its options
"""

from engine.models.encoder import Encoder, EncoderOptions, EncoderOutput, flops_per_segment
from engine.models.quantizer import GumbelQuantizer, Quantized

__all__ = ["Encoder", "EncoderOptions", "EncoderOutput", "GumbelQuantizer", "Quantized", "flops_per_segment"]
