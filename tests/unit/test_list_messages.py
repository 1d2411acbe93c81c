from pathlib import Path

from list_messages import ROOT, find_messages

SOURCE = '''"""Trains a model."""
import argparse, sys, warnings

parser = argparse.ArgumentParser(description=__doc__, epilog="example: train.py")
parser.add_argument("--steps", help="training steps", default="nothing")
HEADERS = ["crops/s", "peak memory"]


class Options:
    """A docstring that nobody sees."""

    rate: float = 1.0
    """Learning rate."""


def run(path):
    """Another docstring."""
    if not path:
        parser.error("--steps must be positive")
    try:
        open(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read "
                         f"({error.strerror})") from None
    warnings.warn("slow disk")
    sys.stderr.write("done\\n")
    print("steps: " + str(path))
    return ValueError("no steps")
'''


def test_finds_every_kind_of_message(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    assert [(message.kind, message.text) for message in find_messages(file)] == [
        ("help", "Trains a model."),
        ("help", "example: train.py"),
        ("help", "training steps"),
        ("text", "peak memory"),
        ("option", "rate: Learning rate."),
        ("error", "--steps must be positive"),
        ("error", "{path}: cannot be read ({error.strerror})"),
        ("warning", "slow disk"),
        ("output", "done"),
        ("output", "steps: {str(path)}"),
        ("error", "no steps"),
    ]


def test_finds_messages_of_this_repository() -> None:
    files = ("engine/config/base.py", "engine/device.py", "engine/training/script.py", "benchmarks/gpu_summary.py")
    found = {(message.kind, message.text) for file in files for message in find_messages(ROOT / file)}
    assert found >= {
        ("error", "device=cuda: PyTorch sees no GPU; use auto or cpu, or check the driver"),
        ("error", "train.steps or train.epochs is missing"),
        ("option", "learning_rate: Peak learning rate."),
        ("help", "print the resolved configuration and exit"),
        ("output", "usage: gpu_summary.py OUT PARTS_TSV"),
        ("text", "NO TIME LEFT"),
    }
