from pathlib import Path

import pytest
import torch
from saved_model import save_tiny_encoder
from tiny_config import finetune_config

from engine.config import PretrainConfig, load_config
from engine.models import load
from engine.options import UserError
from engine.tasks import LabelTask, PretrainingTask
from engine.training.builders import build_trainer
from engine.training.distributed import Ranks
from engine.training.kernel_checks import check_kernels

PAPER = Path(__file__).parents[4] / "configs" / "pretrain" / "w2v_cmsc_rlm.yaml"


def test_an_attention_kernel_that_the_device_lacks_is_refused() -> None:
    config = load_config(PretrainConfig, [PAPER], ["compute.attention=cudnn"])
    message = r"compute.attention=cudnn: PyTorch has no such kernel on cpu for bf16, 12 heads of width 64"
    with pytest.raises(UserError, match=message):
        check_kernels(config, torch.device("cpu"))


def test_the_kernel_is_checked_for_the_initial_models_sizes(ranks: Ranks, tmp_path: Path) -> None:
    model = save_tiny_encoder(tmp_path / "model")
    config = finetune_config(
        init_from=str(model), model={}, task={"name": "labels"}, compute={"attention": "cudnn"}, output_dir=tmp_path / "run"
    )
    options = load(model).config.encoder
    message = f"{options.num_heads} heads of width {options.width // options.num_heads} and"
    with pytest.raises(UserError, match=message):
        build_trainer(config, ranks, LabelTask)


@pytest.mark.parametrize("micro_batch_size", [8, "auto"])
def test_triton_without_a_gpu_is_refused(ranks: Ranks, tmp_path: Path, micro_batch_size: object) -> None:
    overrides = ["compute.positional=triton", "train.batch_size=8", f"train.micro_batch_size={micro_batch_size}"]
    config = load_config(PretrainConfig, [PAPER], [*overrides, f"output_dir={tmp_path}", "model.depth=1"])
    with pytest.raises(UserError, match=r"compute.positional=triton needs a GPU"):
        build_trainer(config, ranks, PretrainingTask)
