"""The DALI pipeline for a GPU, as far as it can be checked without one: DALI builds the graph, and nothing runs it."""

import contextlib
import importlib
from typing import Any

import pytest
import torch

from data_tools.augmentations import AugmentationOptions
from data_tools.shards.dataset import Dataset
from engine.data import CropStore, DataOptions, SampleOrder, make_loader

pytest.importorskip("nvidia.dali")

EVERY_AUGMENTATION: dict[str, Any] = {name: {} for name in AugmentationOptions.model_fields}


@pytest.mark.parametrize("augmentations", [{}, EVERY_AUGMENTATION], ids=["none", "all"])
def test_every_operator_has_a_gpu_kernel_and_takes_what_lies_there(
    dataset: Dataset, augmentations: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def make_graph_only(pipeline: Any) -> None:
        pipeline._build_graph()
        made.extend(pipeline._ops)

    monkeypatch.setattr(importlib.import_module("nvidia.dali").Pipeline, "build", make_graph_only)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    store = CropStore(dataset, "pretrain")
    order = SampleOrder(store.num_samples, seed=1)
    options = DataOptions.model_validate({"loader": "dali", "augmentations": augmentations})
    make_loader(options, store, order, leads=12, batch_size=2, device="cuda").close()

    has_kernel = set(importlib.import_module("nvidia.dali.backend").RegisteredGPUOps())
    operators = [operator for operator in made if type(operator._op).__name__ != "ExternalSource"]
    assert len(operators) >= (60 if augmentations else 3)
    for operator in operators:
        name, spec = type(operator._op).__name__, operator.spec
        inputs = {spec.InputDevice(number) for number in range(spec.NumRegularInput())}
        assert inputs | {spec.OutputDevice(number) for number in range(spec.NumOutput())} == {"gpu"}, name
        assert name in has_kernel
