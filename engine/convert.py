"""Converts trained models from other formats to this engine's, and back.

python engine/convert.py fairseq CHECKPOINT.pt OUT_DIR       from the official implementation, or ECG-FM
python engine/convert.py deepspeed CHECKPOINT_DIR OUT_DIR    the model of a run's checkpoint
python engine/convert.py checkpoint OLD_DIR NEW_DIR          a checkpoint of an older release, to resume from
python engine/convert.py to-fairseq MODEL_DIR OUT.pt         to the official implementation
python engine/convert.py onnx MODEL_DIR OUT.onnx             to ONNX
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_tools.command_line import Parser, run_script


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; returns 0 if the model was converted, 2 after an error."""
    options = _make_parser().parse_args(arguments)
    return run_script("convert", partial(_run, options), options.output)


def _run(options: argparse.Namespace) -> int:
    for note in options.convert(options):
        sys.stderr.write(f"{note}\n")
    sys.stdout.write(f"wrote {options.output}\n")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    example = "fairseq mimic_iv_ecg_physionet_pretrained.pt models/ecg-fm --normalization zscore_per_lead"
    parser = Parser("convert.py", description="Converts trained models.", epilog=_EXAMPLE + example, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (convert, purpose, source, output, example) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=purpose,
            description=f"Converts a model {purpose}.",
            epilog=f"{_EXAMPLE}{name} {example}",
            formatter_class=formatter,
        )
        for attribute, (metavar, text) in (("source", source), ("output", output)):
            command.add_argument(attribute, type=Path, metavar=metavar, help=text)
        command.set_defaults(convert=convert)
        if name == "fairseq":
            command.add_argument(
                "--normalization",
                choices=("none", "zscore_per_lead"),
                help="normalization of the training inputs, which a checkpoint does not record: none (the paper; default) or "
                "zscore_per_lead (ECG-FM)",
            )
            command.add_argument("--leads", metavar="I,II,...", help="the model's leads in order; required for fewer than 12")
            command.add_argument(
                "--labels",
                type=Path,
                metavar="FILE",
                help="label names of a classifier in order: a text file with one per line, or a CSV file with a column 'name'",
            )
    return parser


# What a command needs is imported when it runs.


def _fairseq(options: argparse.Namespace) -> list[str]:
    from engine.interop.fairseq import import_fairseq

    leads = None if options.leads is None else options.leads.split(",")
    return import_fairseq(
        options.source, options.output, normalization=options.normalization, leads=leads, labels=options.labels
    )


def _call(module: str, function: str, options: argparse.Namespace) -> list[str]:
    notes: list[str] = getattr(importlib.import_module(f"engine.interop.{module}"), function)(options.source, options.output)
    return notes


_EXAMPLE = "example:\n  python engine/convert.py "
_COMMANDS = {
    "fairseq": (
        _fairseq,
        "from a checkpoint of the official implementation (fairseq-signals, ECG-FM), pre-trained or fine-tuned",
        ("CHECKPOINT.pt", "the checkpoint; no code in it is run"),
        ("OUT_DIR", "folder of the new model"),
        "checkpoint_best.pt models/dx --labels labels.txt",
    ),
    "deepspeed": (
        partial(_call, "zero_checkpoint", "import_checkpoint"),
        "from a checkpoint of a run: exports its model",
        ("CHECKPOINT_DIR", "folder of the checkpoint, RUN/checkpoints/step-..."),
        ("OUT_DIR", "folder of the new model"),
        "runs/first/checkpoints/step-00010000 models/first",
    ),
    "checkpoint": (
        partial(_call, "deepspeed_files", "convert_checkpoint"),
        "from a checkpoint of an older release to a checkpoint that a run can resume from",
        ("OLD_DIR", "folder of the checkpoint, RUN/checkpoints/step-...; no code in it is run"),
        ("NEW_DIR", "folder for the converted checkpoint"),
        "runs/first/checkpoints/step-00010000 converted/step-00010000",
    ),
    "to-fairseq": (
        partial(_call, "fairseq", "export_fairseq"),
        "to a checkpoint that the official implementation loads",
        ("MODEL_DIR", "folder of the model"),
        ("OUT.pt", "output file"),
        "models/first first.pt",
    ),
    "onnx": (
        partial(_call, "onnx_export", "export_onnx"),
        "to ONNX, for any batch size and length; checked with onnxruntime before it is written",
        ("MODEL_DIR", "folder of the model"),
        ("OUT.onnx", "output file"),
        "models/first first.onnx",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
