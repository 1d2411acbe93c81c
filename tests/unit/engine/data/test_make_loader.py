"""The choice of a loader, and what it refuses."""

import importlib
import logging
from typing import Any, Literal, get_args

import pytest
import torch

from engine.data import LOADERS, CropStore, DataOptions, SampleOrder, best_loader, make_loader
from engine.options import UserError


@pytest.fixture
def order(store: CropStore) -> SampleOrder:
    return SampleOrder(store.num_samples, seed=1)


@pytest.fixture
def no_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def fail(name: str, package: str | None = None) -> object:
        if name.startswith("nvidia.dali"):
            raise ModuleNotFoundError(f"No module named '{name}'")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", fail)


def test_every_loader_of_the_table_can_be_configured_and_knows_its_name() -> None:
    choices = get_args(DataOptions.model_fields["loader"].annotation)
    assert set(choices) == {"auto", *LOADERS}
    assert all(LOADERS[name].name == name for name in LOADERS)


def test_the_best_loader_is_dali_on_a_gpu_and_torch_on_a_cpu() -> None:
    pytest.importorskip("nvidia.dali")
    assert best_loader(torch.device("cuda", 0)) == "dali"
    assert best_loader(torch.device("cpu")) == "torch"


def test_the_best_loader_without_dali_is_torch(no_dali: None) -> None:
    assert best_loader(torch.device("cuda")) == "torch"


def test_auto_takes_the_best_loader_and_says_so(store: CropStore, order: SampleOrder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), make_loader(DataOptions(), store, order, leads=12, batch_size=2) as loader:
        assert loader.name == best_loader(torch.device("cpu"))
        assert len(next(loader)) == 2
    assert f"auto: using the {best_loader(torch.device('cpu'))} loader" in caplog.text


def test_dali_asked_for_but_not_installed_is_one_clear_line(store: CropStore, order: SampleOrder, no_dali: None) -> None:
    with pytest.raises(UserError, match=r"not installed: pip install .*data\.loader=torch") as error:
        make_loader(DataOptions(loader="dali"), store, order, leads=12, batch_size=2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", LOADERS)
def test_cuda_without_a_gpu_is_one_clear_line(
    store: CropStore, order: SampleOrder, name: Literal["dali", "torch"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device is visible, but the device is 'cuda'") as error:
        make_loader(DataOptions(loader=name), store, order, leads=12, batch_size=2, device="cuda")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [{"rank": 2, "world_size": 2}, {"rank": -1}])
def test_numbers_that_do_not_fit_are_refused(store: CropStore, order: SampleOrder, changes: dict[str, int]) -> None:
    arguments: dict[str, Any] = {"leads": 12, "batch_size": 2, **changes}
    with pytest.raises(AssertionError, match="unexpected rank"):
        make_loader(DataOptions(loader="torch"), store, order, **arguments)


def test_an_order_of_another_split_is_refused(store: CropStore) -> None:
    with pytest.raises(AssertionError, match="as many samples"):
        make_loader(DataOptions(loader="torch"), store, SampleOrder(7, 1), leads=12, batch_size=2)
