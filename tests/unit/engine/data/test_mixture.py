"""Mixtures: shares and order as properties, and reading from datasets of two formats."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from dataset_fixtures import crop_key, crop_signal, write_dataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data_tools.shards.dataset import Dataset
from engine.data import (
    CropStore,
    DataOptions,
    MixtureOrder,
    MixtureStore,
    SampleOrder,
    SectionOrder,
    make_loader,
)
from engine.data.loader import LoaderStateError
from engine.data.mixture import SECTION_SIZE, dataset_names, samples_per_epoch
from engine.data.training_sets import TrainedCrops, join_training_sets
from engine.options import UserError

Mixture = tuple[list[int], list[int], MixtureOrder]


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Draws the numbers of samples of some datasets, those in an epoch, and the order."""
    num_samples = draw(st.lists(st.integers(1, 300), min_size=1, max_size=6))
    counts = [draw(st.integers(0, 3 * size)) for size in num_samples]
    assume(any(counts))
    seed, block_size, window_blocks = draw(st.tuples(st.integers(0, 2**40), st.integers(1, 32), st.integers(1, 6)))
    return num_samples, counts, MixtureOrder(num_samples, counts, seed, block_size, window_blocks)


def datasets_of(rows: NDArray[np.int64], num_samples: list[int]) -> NDArray[np.int64]:
    return np.searchsorted(np.cumsum(num_samples), rows, side="right")


@settings(max_examples=80)
@given(mixture=mixtures(), num_epochs=st.integers(1, 4))
def test_each_epoch_has_the_shares_and_all_samples_are_read_equally_often(mixture: Mixture, num_epochs: int) -> None:
    num_samples, counts, order = mixture
    stream = order.indices(0, num_epochs * order.num_samples)
    for epoch in stream.reshape(num_epochs, -1):
        assert np.bincount(datasets_of(epoch, num_samples), minlength=len(counts)).tolist() == counts
    for first, size, count in zip(itertools.accumulate([0, *num_samples]), num_samples, counts, strict=False):
        times = np.bincount(stream[(stream >= first) & (stream < first + size)] - first, minlength=size)
        low, rest = divmod(num_epochs * count, size)
        assert np.sort(times).tolist() == [low] * (size - rest) + [low + 1] * rest


@settings(max_examples=60)
@given(mixture=mixtures(), start=st.integers(0, 900), pieces=st.lists(st.integers(0, 90), max_size=6))
def test_the_stream_does_not_depend_on_the_pieces_in_which_ranks_read_it(
    mixture: Mixture, start: int, pieces: list[int]
) -> None:
    num_samples, counts, order = mixture
    order.indices(start // 2, 50)  # something else in the caches
    cursors = list(itertools.accumulate([start, *pieces]))
    read = [order.indices(cursor, size) for cursor, size in zip(cursors, pieces, strict=False)]
    fresh = MixtureOrder(num_samples, counts, order.seed, order.identity()["block_size"], order.identity()["window_blocks"])
    assert np.concatenate([np.empty(0, np.int64), *read]).tolist() == fresh.indices(start, sum(pieces)).tolist()


@settings(max_examples=60)
@given(mixture=mixtures(), position=st.floats(0, 3))
def test_any_part_of_an_epoch_has_nearly_its_shares(mixture: Mixture, position: float) -> None:
    num_samples, counts, order = mixture
    epoch, window = divmod(int(position * order._num_windows), order._num_windows)
    rows = order._window(epoch, window)
    read = np.bincount(datasets_of(rows, num_samples), minlength=len(counts))
    assert np.abs(read - np.array(counts) / order._num_windows).max() < 1


def test_windows_are_shuffled_and_seeds_epochs_and_datasets_differ() -> None:
    order, other = (MixtureOrder([3000, 3000], [3000, 3000], seed, block_size=16, window_blocks=8) for seed in (1, 2))
    first, second = order.indices(0, 6000), order.indices(6000, 6000)
    is_second = first >= 3000
    runs = np.diff(np.flatnonzero(np.diff(is_second)))
    assert 1.5 < runs.mean() < 2.5  # as for a coin
    assert runs.max() < 20
    assert np.mean(first == second) < 0.05
    assert np.mean(first == other.indices(0, 6000)) < 0.05
    assert np.mean(first[~is_second] == first[is_second] - 3000) < 0.05


def test_the_order_is_the_same_on_every_machine() -> None:
    """Written down once: a change of it would break every run that resumes."""
    order = MixtureOrder([12, 5], [6, 10], seed=7, block_size=4, window_blocks=2)
    assert order.indices(0, 16).tolist() == [13, 8, 15, 9, 11, 14, 12, 16, 15, 14, 10, 1, 12, 2, 13, 16]


def test_ten_billion_samples_of_a_hundred_datasets_need_little_memory() -> None:
    order = MixtureOrder([100_000_000] * 100, [100_000_000] * 100, seed=3)
    last = order.indices(order.num_samples - 64, 128)
    assert len(np.unique(last[:64])) == 64


@given(
    sizes=st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 50)), min_size=1, max_size=20),
    temperature=st.sampled_from([1.0, 1.5, 4.0, 1000.0]),
)
def test_shares_follow_weights_and_temperature(sizes: list[tuple[int, float]], temperature: float) -> None:
    num_samples, weights = (list(each) for each in zip(*sizes, strict=True))
    assume(sum(weights) > 1e-3)
    try:
        counts = samples_per_epoch(num_samples, weights, temperature)
    except UserError as error:
        assert "leaves none of its" in str(error)  # noqa: PT017 -- not always raised
        return
    whole = [size * weight for size, weight in sizes]
    assert sum(counts) == pytest.approx(sum(whole), abs=1, rel=1e-12)
    powers = [(each / max(whole)) ** (1 / temperature) for each in whole]
    for count, power in zip(counts, powers, strict=True):
        assert count == pytest.approx(sum(counts) * power / sum(powers), abs=1, rel=1e-9)


def test_examples_of_shares() -> None:
    assert samples_per_epoch([100, 10], [1, 1]) == [100, 10]
    assert samples_per_epoch([100, 10], [0.5, 3]) == [50, 30]
    assert samples_per_epoch([100, 10], [1, 0]) == [100, 0]
    assert samples_per_epoch([90, 10], [1, 1], temperature=2) == [75, 25]
    assert samples_per_epoch([90, 10], [1, 1], temperature=1e9) == [50, 50]
    with pytest.raises(UserError, match="all weights are zero"):
        samples_per_epoch([100, 10], [0, 0])
    with pytest.raises(UserError, match=r"data.datasets\[1\].weight=0.01 leaves none of its 10 samples in an epoch of 100"):
        samples_per_epoch([100, 10], [1, 0.01])


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["/a/ptb", "/b/code15/"], ["ptb", "code15"]),
        (["/a/data", "/b/data", "/c/data"], ["data", "data-2", "data-3"]),
        (["/a/data-2", "/b/data", "/c/data"], ["data-2", "data", "data-3"]),
        (["s3://bucket/data"], ["data"]),
        (["/"], ["dataset"]),
    ],
)
def test_names_are_those_of_the_folders_and_unique(folders: list[str], names: list[str]) -> None:
    assert dataset_names(folders) == names


@pytest.fixture(scope="module")
def zarr_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder: Path = tmp_path_factory.mktemp("zarr") / "dataset"
    return Dataset.open(write_dataset(folder, {"pretrain": 25, "valid": 8}, seed=5, encoding="zarr", compression="pcodec"))


@pytest.fixture
def mixture(dataset: Dataset, zarr_dataset: Dataset) -> MixtureStore:
    """52 complete crops in tar, and 25 in zarr."""
    stores = [CropStore(each, "pretrain") for each in (dataset, zarr_dataset)]
    return MixtureStore(["tar", "zarr"], stores, [52, 50])


@pytest.mark.parametrize("leads", [tuple(range(12)), (0, 1, 7)])
def test_reads_from_each_dataset_what_it_holds(mixture: MixtureStore, leads: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).permutation(mixture.num_samples)
    out = np.empty((len(rows), len(leads), 5000), np.int16)
    mixture.read(rows, out, leads)
    for row, crop in zip(rows.tolist(), out, strict=True):
        in_zarr = row >= 52
        number = row - 52 if in_zarr else mixture.stores[0].crop[row]
        np.testing.assert_array_equal(crop, crop_signal("pretrain", number, seed=5 if in_zarr else 0)[list(leads)])


def test_numbers_and_keys_of_datasets_do_not_collide(mixture: MixtureStore) -> None:
    numbers = mixture.numbers(np.arange(mixture.num_samples))
    assert numbers.dataset is not None
    assert numbers.dataset.tolist() == [0] * 52 + [1] * 25
    for own in (numbers.patient, numbers.recording):
        assert not set(own[:52].tolist()) & set(own[52:].tolist())
    for number, store in enumerate(mixture.stores):
        own = numbers.patient[numbers.dataset == number]
        assert (own - own.min()).tolist() == store.patient.tolist()
    assert mixture.keys([60, 0]) == [f"zarr: {crop_key('pretrain', 8)}", f"tar: {crop_key('pretrain', 0)}"]


def test_the_pretraining_set_has_the_crops_of_all_datasets(
    mixture: MixtureStore, dataset: Dataset, zarr_dataset: Dataset
) -> None:
    for each, split, expected in ((dataset, "pretrain", 60), (zarr_dataset, "pretrain", 25), (zarr_dataset, "valid", 0)):
        crops = np.zeros(each.num_crops, np.bool_)
        row = each.first_row(split)
        crops[row : row + each.manifest.counts[split].crops] = True
        overlaps = TrainedCrops({"pretraining_set": mixture.origin}, each).describe_overlaps(crops)
        assert overlaps == ([f"was pre-trained on {expected} crops"] if expected else [])


def test_sets_of_several_runs_are_joined(mixture: MixtureStore, zarr_dataset: Dataset) -> None:
    tar, zarr = (store.origin for store in mixture.stores)
    valid = CropStore(zarr_dataset, "valid").origin
    assert join_training_sets(None, None) is None
    assert join_training_sets(tar, None) == join_training_sets(None, tar, tar) == tar
    assert join_training_sets({"from": "elsewhere"}, None) is None
    assert join_training_sets({"from": "elsewhere"}, zarr) == zarr
    assert join_training_sets(valid, mixture.origin, zarr) == {"mixture": [valid, tar, zarr]}


def test_segments_of_datasets_are_mixed_too(dataset: Dataset, zarr_dataset: Dataset) -> None:
    stores = [CropStore(each, "pretrain", unit="segment") for each in (dataset, zarr_dataset)]
    mixture = MixtureStore(["tar", "zarr"], stores, [store.num_samples for store in stores])
    half = mixture.numbers(np.arange(mixture.num_samples)).half
    assert half is not None
    assert half.tolist() == [each for store in stores for each in (store.half if store.half is not None else [])]


@pytest.mark.parametrize("loader", ["torch", "dali"])
def test_loaders_yield_the_mixture(mixture: MixtureStore, loader: str) -> None:
    if loader == "dali":
        pytest.importorskip("nvidia.dali")
    order = MixtureOrder([52, 25], [52, 50], seed=3, block_size=4, window_blocks=2)
    options = DataOptions(loader=loader)
    with make_loader(options, mixture, order, leads=12, batch_size=6) as made:
        batches = [next(made) for _ in range(17)]  # an epoch
        state = made.state_dict()
    assert state["datasets"] == [store.identity() for store in mixture.stores]
    assert state["crops_per_epoch"] == [52, 50]
    assert state["samples"] == {"mixture": [store.origin for store in mixture.stores]}
    for number, batch in enumerate(batches):
        assert batch.row.tolist() == order.indices(6 * number, 6).tolist()
        assert batch.dataset is not None
        assert batch.dataset.tolist() == [int(row >= 52) for row in batch.row.tolist()]
        row = int(batch.row[0])
        signal = (
            crop_signal("pretrain", row - 52, seed=5) if row >= 52 else crop_signal("pretrain", mixture.stores[0].crop[row])
        )
        np.testing.assert_allclose(batch.segments[0, 0].numpy(), signal[:, :2500] / 1000, rtol=1e-6)
    state = {**state, "cursor": 13}
    with make_loader(options, mixture, order, leads=12, batch_size=4, rank=1, world_size=2) as made:
        made.load_state_dict(state)
        assert next(made).row.tolist() == order.indices(13 + 4, 4).tolist()


def test_another_dataset_or_weight_is_refused_by_name(mixture: MixtureStore, tmp_path: Path) -> None:
    def load(store: MixtureStore, counts: list[int], state: dict[str, object] | None = None) -> dict[str, object]:
        order = MixtureOrder([52, 25], counts, seed=3)
        with make_loader(DataOptions(loader="torch"), store, order, leads=12, batch_size=2) as made:
            if state is not None:
                made.load_state_dict(state)
            return made.state_dict()

    state = load(mixture, [52, 50])
    assert load(mixture, [52, 50], state) == state
    with pytest.raises(LoaderStateError, match=r"crops_per_epoch\[1\]=50, but this run has crops_per_epoch\[1\]=25 .*zarr"):
        load(mixture, [52, 25], state)
    other = Dataset.open(write_dataset(tmp_path / "other", {"pretrain": 25}, seed=6))
    changed = MixtureStore(["tar", "other"], [mixture.stores[0], CropStore(other, "pretrain")], [52, 50])
    with pytest.raises(LoaderStateError, match=rf"datasets\[1\]=.*\({tmp_path / 'other'}\)"):
        load(changed, [52, 50], state)


def test_validation_has_a_section_for_each_dataset(dataset: Dataset, zarr_dataset: Dataset) -> None:
    order = SectionOrder([10, 8], seed=4)
    for section, (first, size) in enumerate([(0, 10), (10, 8)]):
        rows = order.indices(section * SECTION_SIZE, 2 * size)
        assert rows.tolist() == (first + SampleOrder(size, 4).indices(0, 2 * size)).tolist()


class TestOptions:
    """Mistakes in data.datasets."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"path": "a", "datasets": [{"path": "b"}]}, "data.path and data.datasets are both set"),
            ({"datasets": [{"path": "a", "weight": 0}, {"path": "b", "weight": 0}]}, "all weights are zero"),
            ({"datasets": [{"path": "a", "weight": -1}]}, "greater than or equal to 0"),
            ({"datasets": [{"path": "a", "weight": math.nan}]}, "finite number"),
            ({"datasets": [{"path": "a", "weight": True}]}, "got the boolean"),
            ({"datasets": [{"path": "a"}], "temperature": 0}, "greater than 0"),
            ({"path": "a", "temperature": 2}, "data.temperature is for a mixture"),
            ({"datasets": [{"path": "a"}], "plan": "pretrain"}, "set 'plan' in the entries"),
            ({"datasets": [{"path": "a"}, {"path": "a"}]}, "has a twice"),
            ({"datasets": [{"weight": 1}]}, "Field required"),
        ],
    )
    def test_are_refused(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            DataOptions.model_validate(options)

    def test_of_one_dataset_are_those_of_a_path(self) -> None:
        entry = {"path": "a", "weight": 0.5, "plan": "mine"}
        mixture = DataOptions.model_validate({"datasets": [entry, {"path": "b"}], "temperature": 2, "prefetch": 7})
        alone = mixture.of_dataset(mixture.datasets[0])
        assert alone == DataOptions(path=Path("a"), plan="mine", prefetch=7)
