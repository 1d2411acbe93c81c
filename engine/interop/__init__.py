"""Weights in and out.

native.py           the native folder (engine/models/pretrained.py) together with the heads of pre-training
torch_files.py      files of torch.save, read without running code from them
fairseq_cfg.py      a checkpoint of the official implementation (fairseq-signals, ECG-FM): what its cfg says
fairseq_keys.py     the official names of tensors and ours
fairseq.py          from such a checkpoint and back to one
zero_checkpoint.py  from a checkpoint of a run, of any ZeRO stage
onnx_export.py      to ONNX, checked in onnxruntime
"""
