"""Imports, exports and converts trained models.

python engine/convert.py fairseq CHECKPOINT.pt OUT_DIR       from the official implementation, or ECG-FM
python engine/convert.py deepspeed RUN_OR_CHECKPOINT OUT_DIR the model of a run, or of one of its checkpoints
python engine/convert.py random base OUT_DIR                 a new model with random weights, as a baseline
python engine/convert.py checkpoint OLD_DIR NEW_DIR          a checkpoint of an older release, to resume from
python engine/convert.py to-fairseq MODEL_DIR OUT.pt         to the official implementation
python engine/convert.py onnx MODEL_DIR OUT.onnx             to ONNX
"""

import argparse
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
    for note in _convert(options):
        sys.stderr.write(f"{note}\n")
    sys.stdout.write(f"wrote {options.output}\n")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    example = "fairseq mimic_iv_ecg_physionet_pretrained.pt models/ecg-fm --normalization zscore_per_lead"
    description = "Import, export and convert trained models."
    parser = Parser("convert.py", description=description, epilog=_EXAMPLE + example, formatter_class=formatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (purpose, source, output, example) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=purpose,
            description=f"{purpose[0].upper()}{purpose[1:]}.",
            epilog=f"{_EXAMPLE}{name} {example}",
            formatter_class=formatter,
        )
        command.add_argument("source", type=Path, metavar=source[0], help=source[1])
        command.add_argument("output", type=Path, metavar=output[0], help=output[1])
        if name == "random":
            command.add_argument("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")
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


def _convert(options: argparse.Namespace) -> list[str]:
    """Runs a command, importing only the modules that it needs, and returns its notes."""
    if options.command == "fairseq":
        from engine.interop.fairseq import import_fairseq

        leads = None if options.leads is None else options.leads.split(",")
        normalization, labels = options.normalization, options.labels
        return import_fairseq(options.source, options.output, normalization=normalization, leads=leads, labels=labels)
    if options.command == "random":
        from engine.models import create

        create(str(options.source), seed=options.seed).save(options.output)
        return []
    if options.command == "deepspeed":
        from engine.interop.zero_checkpoint import import_checkpoint

        return import_checkpoint(options.source, options.output)
    if options.command == "checkpoint":
        from engine.interop.deepspeed_files import convert_checkpoint

        return convert_checkpoint(options.source, options.output)
    if options.command == "to-fairseq":
        from engine.interop.fairseq import export_fairseq

        return export_fairseq(options.source, options.output)
    from engine.interop.onnx_export import export_onnx

    return export_onnx(options.source, options.output)


_EXAMPLE = "example:\n  python engine/convert.py "
_COMMANDS = {
    "fairseq": (
        "import a checkpoint of the official implementation (fairseq-signals, ECG-FM), pre-trained or fine-tuned",
        ("CHECKPOINT.pt", "the checkpoint; no code in it is run"),
        ("OUT_DIR", "folder of the new model"),
        "checkpoint_best.pt models/dx --labels labels.txt",
    ),
    "deepspeed": (
        "export the model of a run's best checkpoint, or of a given checkpoint",
        ("RUN", "folder of the run, or of a checkpoint, RUN/checkpoints/step-..."),
        ("OUT_DIR", "folder of the new model"),
        "runs/first models/first",
    ),
    "random": (
        "create a model with random weights, as a baseline",
        ("ARCHITECTURE", "base (the paper's)"),
        ("OUT_DIR", "folder of the new model"),
        "base models/random --seed 0",
    ),
    "checkpoint": (
        "convert a checkpoint of an older release to one that a run can resume from",
        ("OLD_DIR", "folder of the checkpoint, RUN/checkpoints/step-...; no code in it is run"),
        ("NEW_DIR", "folder for the converted checkpoint"),
        "runs/first/checkpoints/step-00010000 converted/step-00010000",
    ),
    "to-fairseq": (
        "export a model as a checkpoint that the official implementation loads",
        ("MODEL_DIR", "folder of the model"),
        ("OUT.pt", "output file"),
        "models/first first.pt",
    ),
    "onnx": (
        "export a model to ONNX, for any batch size and length; it is checked with onnxruntime before it is written",
        ("MODEL_DIR", "folder of the model"),
        ("OUT.onnx", "output file"),
        "models/first first.onnx",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
