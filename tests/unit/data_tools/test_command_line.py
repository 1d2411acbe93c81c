"""What all commands share."""

import signal
import sys

import pytest

from data_tools.command_line import Parser, interruptible


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_any_exception_after_a_signal_is_an_interruption(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():  # noqa: PT012
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise SystemError("an import was interrupted") from None
    assert signal.getsignal(number) is before


def test_an_exception_without_a_signal_stays_as_it_is() -> None:
    with pytest.raises(SystemError), interruptible():
        raise SystemError


@pytest.mark.parametrize(
    ("called", "usage", "example"),
    [
        ("engine/pretrain.py", "pretrain.py", "deepspeed --num_gpus 4 engine/pretrain.py --config a.yaml"),
        ("/bin/ecg-pretrain", "ecg-pretrain", "deepspeed --num_gpus 4 --module engine.pretrain --config a.yaml"),
    ],
)
def test_help_shows_how_an_installed_command_is_called(
    monkeypatch: pytest.MonkeyPatch, called: str, usage: str, example: str
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    help_text = Parser("pretrain.py", epilog="deepspeed --num_gpus 4 engine/pretrain.py --config a.yaml").format_help()
    assert help_text.splitlines()[0] == f"usage: {usage} [-h]"
    assert help_text.splitlines()[-1] == example
    monkeypatch.setattr(sys, "argv", ["/bin/ecg-predict"])
    assert Parser("predict.py", epilog="python engine/predict.py MODEL").format_help().splitlines()[-1] == "ecg-predict MODEL"
