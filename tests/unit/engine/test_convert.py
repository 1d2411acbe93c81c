"""The command line of convert.py."""

import os
import signal
from pathlib import Path

import pytest
from fairseq_checkpoints import golden_cfg, random_weights, save_checkpoint

from engine.convert import main


@pytest.mark.parametrize("command", [[], ["fairseq"], ["deepspeed"], ["random"], ["checkpoint"], ["to-fairseq"], ["onnx"]])
def test_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    assert f"python engine/convert.py {command[0] if command else 'fairseq'} " in out.split("example:")[1]


def test_a_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), random_weights("group_norm"))
    model, back = tmp_path / "model", tmp_path / "back.pt"
    assert main(["fairseq", str(checkpoint), str(model), "--normalization", "zscore_per_lead"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"wrote {model}\n"
    assert "ignored: extra_state" in captured.err
    assert main(["to-fairseq", str(model), str(back)]) == 0
    assert back.is_file()


@pytest.mark.parametrize("command", ["fairseq", "deepspeed", "random", "checkpoint", "to-fairseq", "onnx"])
def test_errors_are_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("convert: ")
    assert captured.err.count("\n") == 1
    assert "absent" in captured.err


@pytest.mark.parametrize("words", [[], ["foo"], ["fairseq"], ["fairseq", "a", "b", "--normalization", "minmax"]])
def test_usage_errors_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("convert: ")
    assert captured.err.count("\n") == 1


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_conversion_leaves_no_files(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = save_checkpoint(tmp_path / "official.pt", golden_cfg("group_norm"), random_weights("group_norm"))
    monkeypatch.setattr("engine.models.model_folder.save_file", lambda *_, **__: os.kill(os.getpid(), number))
    assert main(["fairseq", str(checkpoint), str(tmp_path / "model")]) == 130
    assert capsys.readouterr().err == "convert: interrupted; no output was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["official.pt"]
