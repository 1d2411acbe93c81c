"""What all commands share."""

import signal

import pytest

from data_tools.command_line import interruptible


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
