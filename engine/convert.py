"""Converts trained models from other formats to this engine's, and back.

python engine/convert.py fairseq CHECKPOINT.pt OUT_DIR       from the official implementation, or ECG-FM
python engine/convert.py deepspeed CHECKPOINT_DIR OUT_DIR    from a checkpoint of a run
python engine/convert.py checkpoint OLD_DIR NEW_DIR          a checkpoint of an older release, to resume from
python engine/convert.py to-fairseq MODEL_DIR OUT.pt         to the official implementation
python engine/convert.py onnx MODEL_DIR OUT.onnx             to ONNX
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from data_tools.command_line import Parser, run_script

_Converter = Callable[[argparse.Namespace], list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; returns 0 if the model was converted, 2 after an error."""
    options = _make_parser().parse_args(arguments)
    return run_script("convert", partial(_run, options), options.output)


def _run(options: argparse.Namespace) -> int:
    convert: _Converter = options.convert
    for note in convert(options):
        sys.stderr.write(f"{note}\n")
    sys.stdout.write(f"written: {options.output}\n")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="convert.py",
        description="Converts trained models.",
        epilog="example:\n  python engine/convert.py fairseq mimic_iv_ecg_physionet_pretrained.pt models/ecg-fm "
        "--normalization zscore_per_lead",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    fairseq = _add(
        commands,
        "fairseq",
        "from a checkpoint of the official implementation (fairseq-signals, ECG-FM), pre-trained or fine-tuned",
        ("checkpoint", "CHECKPOINT.pt", "the checkpoint; no code in it is run"),
        ("output", "OUT_DIR", "folder for the model"),
        "python engine/convert.py fairseq checkpoint_best.pt models/dx --labels labels.txt",
        _fairseq,
    )
    fairseq.add_argument(
        "--normalization",
        choices=("none", "zscore_per_lead"),
        help="normalization of the input in training, which a checkpoint does not state: none (as in the paper; default) or "
        "zscore_per_lead (ECG-FM)",
    )
    fairseq.add_argument("--leads", metavar="I,II,...", help="leads of the input, in order; required for fewer than 12")
    fairseq.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="names of a classifier's labels, in order: one per line, or a CSV file with a column 'name'",
    )
    _add(
        commands,
        "deepspeed",
        "from a checkpoint of a pre-training run, of any number of ranks",
        ("checkpoint", "CHECKPOINT_DIR", "folder of the checkpoint, RUN/checkpoints/step-..."),
        ("output", "OUT_DIR", "folder for the model"),
        "python engine/convert.py deepspeed runs/first/checkpoints/step-00010000 models/first",
        _deepspeed,
    )
    _add(
        commands,
        "checkpoint",
        "in a checkpoint of an older release to the format that runs resume from",
        ("checkpoint", "OLD_DIR", "folder of the checkpoint, RUN/checkpoints/step-...; no code in it is run"),
        ("output", "NEW_DIR", "folder for the converted checkpoint"),
        "python engine/convert.py checkpoint runs/first/checkpoints/step-00010000 converted/step-00010000",
        _checkpoint,
    )
    _add(
        commands,
        "to-fairseq",
        "to a checkpoint that the official implementation loads",
        ("model", "MODEL_DIR", "folder of the model"),
        ("output", "OUT.pt", "checkpoint to write"),
        "python engine/convert.py to-fairseq models/first first.pt",
        _to_fairseq,
    )
    _add(
        commands,
        "onnx",
        "to ONNX, for any batch size and length; checked with onnxruntime before it is written",
        ("model", "MODEL_DIR", "folder of the model"),
        ("output", "OUT.onnx", "file to write"),
        "python engine/convert.py onnx models/first first.onnx",
        _onnx,
    )
    return parser


def _add(
    commands: "argparse._SubParsersAction[Parser]",
    name: str,
    purpose: str,
    source: tuple[str, str, str],
    output: tuple[str, str, str],
    example: str,
    convert: _Converter,
) -> argparse.ArgumentParser:
    """Adds a command whose source and output are paths, given as (attribute, metavar, help)."""
    command = commands.add_parser(
        name,
        help=purpose,
        description=f"Converts a model {purpose}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for attribute, metavar, text in (source, output):
        command.add_argument(attribute, type=Path, metavar=metavar, help=text)
    command.set_defaults(convert=convert)
    return command


def _fairseq(options: argparse.Namespace) -> list[str]:
    from engine.interop.fairseq import import_fairseq

    leads = None if options.leads is None else options.leads.split(",")
    return import_fairseq(
        options.checkpoint, options.output, normalization=options.normalization, leads=leads, labels=options.labels
    )


def _deepspeed(options: argparse.Namespace) -> list[str]:
    from engine.interop.zero_checkpoint import import_checkpoint

    return import_checkpoint(options.checkpoint, options.output)


def _checkpoint(options: argparse.Namespace) -> list[str]:
    from engine.interop.deepspeed_files import convert_checkpoint

    return convert_checkpoint(options.checkpoint, options.output)


def _to_fairseq(options: argparse.Namespace) -> list[str]:
    from engine.interop.fairseq import export_fairseq

    return export_fairseq(options.model, options.output)


def _onnx(options: argparse.Namespace) -> list[str]:
    from engine.interop.onnx_export import export_onnx

    return export_onnx(options.model, options.output)


if __name__ == "__main__":
    sys.exit(main())
