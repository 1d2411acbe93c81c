"""Converts trained models: into this engine's folder from other formats, and out of it.

python engine/convert.py fairseq CHECKPOINT.pt OUT_DIR       from the official implementation, or ECG-FM
python engine/convert.py deepspeed CHECKPOINT_DIR OUT_DIR    from a checkpoint of a run
python engine/convert.py checkpoint OLD_DIR NEW_DIR           a checkpoint of an older release, to resume from
python engine/convert.py to-fairseq MODEL_DIR OUT.pt         to the official implementation
python engine/convert.py onnx MODEL_DIR OUT.onnx             to ONNX
"""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from data_tools.command_line import EXIT_INTERRUPTED, EXIT_USAGE, Parser
from engine.options import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script; returns the exit status: 0 if the model was converted, 2 for a mistake of the user's."""
    options = _make_parser().parse_args(arguments)
    convert: Callable[[argparse.Namespace], list[str]] = options.convert
    # A job scheduler ends a run in the same way as Ctrl-C; nothing half-written stays behind.
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        notes = convert(options)
    except UserError as error:
        sys.stderr.write(f"convert: {error}\n")
        return EXIT_USAGE
    except OSError as error:
        sys.stderr.write(f"convert: {error.filename or options.output}: {error.strerror}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("convert: interrupted; nothing was written\n")
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)
    for note in notes:
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
        ("output", "OUT_DIR", "the model's folder to make"),
        "python engine/convert.py fairseq checkpoint_best.pt models/dx --labels labels.txt",
        _fairseq,
    )
    fairseq.add_argument(
        "--normalization",
        choices=("none", "zscore_per_lead"),
        help="of the input in its training, which a checkpoint does not say: none (the paper's recipe; default) or "
        "zscore_per_lead (ECG-FM)",
    )
    fairseq.add_argument("--leads", metavar="I,II,...", help="the input's leads in order; needed for a model of fewer than 12")
    fairseq.add_argument(
        "--labels", type=Path, metavar="FILE", help="of a classifier: names in order, one a line, or a CSV file's column 'name'"
    )
    _add(
        commands,
        "deepspeed",
        "from a checkpoint of a pre-training run",
        ("checkpoint", "CHECKPOINT_DIR", "the checkpoint's folder, RUN/checkpoints/step-..."),
        ("output", "OUT_DIR", "the model's folder to make"),
        "python engine/convert.py deepspeed runs/first/checkpoints/step-00010000 models/first",
        _deepspeed,
    )
    _add(
        commands,
        "checkpoint",
        "in a checkpoint of an older release to the format that runs resume from",
        ("checkpoint", "OLD_DIR", "the checkpoint's folder, RUN/checkpoints/step-...; no code in it is run"),
        ("output", "NEW_DIR", "the checkpoint's folder to make"),
        "python engine/convert.py checkpoint runs/first/checkpoints/step-00010000 converted/step-00010000",
        _checkpoint,
    )
    _add(
        commands,
        "to-fairseq",
        "to a checkpoint that the official implementation loads",
        ("model", "MODEL_DIR", "the model's folder"),
        ("output", "OUT.pt", "the checkpoint to write"),
        "python engine/convert.py to-fairseq models/first first.pt",
        _to_fairseq,
    )
    _add(
        commands,
        "onnx",
        "to ONNX, for any batch size and length; checked in onnxruntime before it is written",
        ("model", "MODEL_DIR", "the model's folder"),
        ("output", "OUT.onnx", "the file to write"),
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
    convert: Callable[[argparse.Namespace], list[str]],
) -> argparse.ArgumentParser:
    """A command that takes a source and an output, both paths: (attribute, name shown, help)."""
    command = commands.add_parser(
        name,
        help=purpose,
        description=f"Converts a model {purpose}.",
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for attribute, shown, text in (source, output):
        command.add_argument(attribute, type=Path, metavar=shown, help=text)
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
