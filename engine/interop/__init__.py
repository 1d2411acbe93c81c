"""Importing and exporting weights.

native.py           the native folder (engine/models/model_folder.py) with the heads of pre-training
torch_files.py      reads files of torch.save without running code from them
fairseq_cfg.py      the cfg of official checkpoints (fairseq-signals, ECG-FM)
fairseq_keys.py     names of tensors in official checkpoints and in this engine
fairseq.py          official checkpoints to the native folder, and back
zero_checkpoint.py  checkpoints of a run to the native folder
deepspeed_files.py  checkpoints of older releases, with DeepSpeed's files, to the current checkpoint format
initial_model.py    the model that a run starts from, in any format, to the native folder
onnx_export.py      the native folder to ONNX, checked with onnxruntime
"""
