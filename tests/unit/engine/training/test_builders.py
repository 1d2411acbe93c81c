from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import PretrainConfig, load_config
from engine.options import UserError
from engine.training.builders import _check_start, _make_state
from engine.training.checkpoint_info import FORMAT_VERSION, CheckpointInfo

PAPER = Path(__file__).parents[4] / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"
CHECKPOINT = CheckpointInfo(
    format_version=FORMAT_VERSION, step=5, loader={"cursor": 40}, config={}, world_size=1, zero_stage=1, shapes={},
    score=0.75, best_score=0.5,
)  # fmt: skip


def test_epochs_count_crops_whatever_the_batch_size_was() -> None:
    config = load_config(PretrainConfig, [PAPER], ["train.epochs=2", "train.batch_size=8"])
    assert _make_state(config, 100, None).num_steps == 25
    assert _make_state(config, 100, CHECKPOINT).num_steps == 5 + 20
    assert _make_state(config, 100, replace(CHECKPOINT, loader={"cursor": 200})).num_steps == 5
    assert _make_state(config, 1, None).num_steps == 1


def test_steps_take_precedence_over_epochs() -> None:
    config = load_config(PretrainConfig, [PAPER], ["train.epochs=2", "train.steps=7", "train.batch_size=8"])
    assert _make_state(config, 100, None).num_steps == 7
    assert _make_state(config, 100, CHECKPOINT).num_steps == 7


def test_a_resumed_run_keeps_its_best_score() -> None:
    config = load_config(PretrainConfig, [PAPER], ["train.batch_size=8"])
    state = _make_state(config, 100, CHECKPOINT)
    assert (state.step, state.first_step, state.saved_step, state.best_score) == (5, 5, 5, 0.5)


def test_a_run_that_has_stopped_early_does_not_go_on_unless_it_gets_more_patience() -> None:
    stopped = replace(CHECKPOINT, num_worse=3)
    for patience, num_steps in (("3", 5), ("4", 9)):
        overrides = ["train.steps=9", "train.batch_size=8", "validation.every_steps=1", f"validation.patience={patience}"]
        state = _make_state(load_config(PretrainConfig, [PAPER], overrides), 100, stopped)
        assert (state.num_steps, state.num_worse) == (num_steps, 3)


@pytest.mark.parametrize(
    ("given", "chosen", "is_allowed"),
    [
        ("one", "one", True),
        ("one", "link", True),  # the same folder
        ("gone", "one", True),  # it may have been moved
        ("runs/a/init_model", "runs/b/init_model", True),  # a run's folder that was renamed
        ("one", "other", False),
        ("random", "one", False),
        ("one", "random", False),
        (None, "one", False),  # checkpoints of older releases of pre-training
        (None, "random", True),
    ],
)
def test_a_run_resumes_with_the_initial_model_that_it_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, chosen: str, is_allowed: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "other", "runs/a/init_model", "runs/b/init_model"):
        Path(name).mkdir(parents=True)
    Path("link").symlink_to("one")
    config = load_config(PretrainConfig, [PAPER], [f"init_from={chosen}"])
    resumed = replace(CHECKPOINT, config={} if given is None else {"init_from": given})
    path = Path("out/checkpoints/step-00000005")
    if is_allowed:
        _check_start(config, (path, resumed))
        return
    message = f"started with init_from={given or 'random'}, so it cannot resume with init_from={chosen}: "
    with pytest.raises(UserError, match=message):
        _check_start(config, (path, resumed))
