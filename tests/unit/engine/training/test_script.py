from pathlib import Path

import pytest
import torch

from engine.config import PretrainConfig
from engine.options import UserError
from engine.tasks import PretrainingTask
from engine.training.distributed import Ranks
from engine.training.script import _prepare_random, lock_run_folder


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    with lock_run_folder(tmp_path / "new" / "run"), pytest.raises(UserError, match="another run is writing to it"):
        lock_run_folder(tmp_path / "new" / "run")
    lock_run_folder(tmp_path / "new" / "run").close()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="cannot be written to"):
            lock_run_folder(folder)


def test_a_script_without_prepare_refuses_an_initial_model(tmp_path: Path) -> None:
    config = PretrainConfig.model_validate(
        {"output_dir": tmp_path, "data": {"path": "datasets/none"}, "train": {"steps": 1}, "objective": {"name": "cmsc"}}
    )
    prepare, ranks = _prepare_random(PretrainingTask), Ranks(0, 1, torch.device("cpu"))
    assert prepare(config, ranks) == (PretrainingTask, config)
    with pytest.raises(UserError, match=r"^init_from: this script always starts from random weights: remove it$"):
        prepare(config.model_copy(update={"init_from": "models/first"}), ranks)
