"""What every loader keeps to. A new loader gets a subclass at the end; it inherits all tests."""

import gc
import shutil
import subprocess
import sys
import threading
import weakref
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dataset_fixtures import crop_signal, write_dataset
from numpy.typing import NDArray
from reference_augmentations import NOISES as REFERENCES
from reference_augmentations import OFFICIAL, official_noise, random_lead_masking, reference_noise

from data_tools.array_ops import NUMPY_OPS
from data_tools.augmentations import AugmentationOptions, make_augmentations
from data_tools.augmentations.chain import AugmentationChain
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError
from engine.data import Batch, CropStore, DataOptions, Loader, SampleOrder, make_loader
from engine.data.dali_loader import is_dali_installed
from engine.data.loader import STATE_VERSION, LoaderStateError
from engine.data.transform import Draws, Transform
from engine.options import SegmentPair

SEED = 5
MASKED: dict[str, Any] = {"random_lead_masking": {"p": 0.5}}
NOISES: dict[str, Any] = {name: {} for name in REFERENCES}
OFFICIAL_NOISES: dict[str, Any] = {name: OFFICIAL[name] for name in REFERENCES}
MAPS: dict[str, Any] = {"vcg_transform": {}, "time_mask": {"fraction": 0.3}}
EVERYTHING: dict[str, Any] = {**NOISES, **MASKED}
PLAIN: dict[str, Any] = {"augmentations": {}}


def make(
    name: str,
    dataset: Dataset,
    *,
    split: str = "pretrain",
    batch_size: int = 6,
    rank: int = 0,
    world_size: int = 1,
    device: str = "cpu",
    seed: int = SEED,
    block_size: int = 4,
    leads: int | list[str] = 12,
    pair: SegmentPair = "adjacent",
    labeled: bool = False,
    **options: Any,
) -> Loader:
    store = CropStore(dataset, split, unit="segment" if labeled else "crop")
    return make_loader(
        DataOptions.model_validate({"loader": name, "augmentations": MASKED, **options}),
        store,
        SampleOrder(store.num_samples, seed, block_size=block_size, window_blocks=3),
        leads=leads,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        device=device,
        pair="single" if labeled and pair == "adjacent" else pair,
        labels=number_labels(store) if labeled else None,
    )


def number_labels(store: CropStore) -> NDArray[np.float32]:
    """Returns a label for each segment that tells its crop and half."""
    assert store.half is not None
    return np.stack([store.crop, store.half], axis=1).astype(np.float32)


def take(loader: Loader, count: int) -> list[Batch]:
    return list(islice(loader, count))


def join(batches: list[Batch]) -> Batch:
    columns = {field.name: [getattr(batch, field.name) for batch in batches] for field in fields(Batch)}
    return Batch(**{name: torch.cat(column).cpu() for name, column in columns.items() if column[0] is not None})


def assert_same(one: Batch, other: Batch) -> None:
    assert (one.labels is None) == (other.labels is None)
    for name in tensor_names(one):
        assert torch.equal(getattr(one, name), getattr(other, name)), f"{name} differs"


def part(batch: Batch, rows: slice) -> Batch:
    return Batch(**{name: getattr(batch, name)[rows] for name in tensor_names(batch)})


def tensor_names(batch: Batch) -> list[str]:
    return [field.name for field in fields(Batch) if getattr(batch, field.name) is not None]


def draw(augmentations: dict[str, Any], num_crops: int) -> Draws:
    """What is drawn from the beginning of the stream, for 12 leads."""
    chosen = make_augmentations(AugmentationOptions.model_validate(augmentations), SEED, range(12))
    return Transform(AugmentationChain(chosen, 12), 12, seed=SEED).draw(0, num_crops)


def expected_segments(store: CropStore, rows: list[int]) -> NDArray[np.float64]:
    numbers = [int(key.split("-")[1]) for key in store.keys(rows)]
    crops = np.stack([crop_signal(store.split, number) for number in numbers]).astype(np.float64)
    return crops.reshape(len(rows), 12, 2, 2500).transpose(0, 2, 1, 3) / 1000


class LoaderContract:
    """The tests. ``self.make`` gives the loader under test."""

    name: ClassVar[str]
    device: ClassVar[str] = "cpu"

    def make(self, dataset: Dataset, **changes: Any) -> Loader:
        return make(self.name, dataset, device=self.device, **changes)

    def read(self, dataset: Dataset, count: int, **changes: Any) -> Batch:
        with self.make(dataset, **changes) as loader:
            return join(take(loader, count))

    def test_batches_are_the_crops_of_the_stream_in_millivolts(self, dataset: Dataset) -> None:
        store = CropStore(dataset, "pretrain")
        with self.make(dataset, **PLAIN) as loader:
            batches = take(loader, 5)
            for number, batch in enumerate(batches):
                assert batch.segments.shape == (6, 2, 12, 2500)
                assert batch.segments.dtype == torch.float32
                assert batch.segments.is_contiguous()
                assert {getattr(batch, name).device.type for name in tensor_names(batch)} == {self.device}
                rows = loader.order.indices(6 * number, 6)
                assert batch.row.tolist() == rows.tolist()
                assert batch.position.tolist() == list(range(6 * number, 6 * number + 6))
                assert batch.recording.tolist() == store.recording[rows].tolist()
                assert batch.patient.tolist() == store.patient[rows].tolist()
                np.testing.assert_allclose(batch.segments.cpu(), expected_segments(store, rows.tolist()), rtol=1e-6)

    def test_epochs_follow_each_other_within_a_batch_and_no_padded_crop_appears(self, dataset: Dataset) -> None:
        store = CropStore(dataset, "pretrain")
        num_crops = store.num_samples
        assert num_crops == 72
        joined = self.read(dataset, 45, batch_size=5, **PLAIN)  # 225 crops: three epochs and a bit, straddled
        for epoch in joined.row[: 3 * num_crops].view(3, num_crops):
            assert epoch.sort().values.tolist() == list(range(num_crops))
        assert not torch.equal(joined.row[:num_crops], joined.row[num_crops : 2 * num_crops])
        np.testing.assert_allclose(joined.segments, expected_segments(store, joined.row.tolist()), rtol=1e-6)

    def test_a_batch_may_be_larger_than_the_split(self, dataset: Dataset) -> None:
        joined = self.read(dataset, 2, split="valid", batch_size=20)
        assert sorted(joined.row[:8].tolist()) == list(range(8))
        assert joined.row.shape == (40,)

    @pytest.mark.parametrize("world_size", [2, 3])
    def test_ranks_partition_the_global_batch(self, dataset: Dataset, world_size: int) -> None:
        whole = self.read(dataset, 4, batch_size=6 * world_size)
        by_rank = []
        for rank in range(world_size):
            with self.make(dataset, rank=rank, world_size=world_size) as loader:
                by_rank.append(take(loader, 4))
                assert loader.state_dict()["cursor"] == 4 * 6 * world_size
        assert_same(join([batches[number] for number in range(4) for batches in by_rank]), whole)

    def test_masking_zeroes_whole_leads_and_leaves_the_others(self, dataset: Dataset) -> None:
        plain, masked = self.read(dataset, 8, **PLAIN), self.read(dataset, 8)
        zeros = (masked.segments == 0).all(dim=-1)
        assert 0.4 < zeros.float().mean() < 0.6
        assert torch.equal(masked.segments[~zeros], plain.segments[~zeros])
        again = self.read(dataset, 24)  # another epoch draws other masks
        first = {int(row): zeros for row, zeros in zip(again.row[:72], (again.segments[:72] == 0).all(-1), strict=True)}
        second = {int(row): zeros for row, zeros in zip(again.row[72:], (again.segments[72:] == 0).all(-1), strict=True)}
        assert np.mean([torch.equal(first[row], zeros) for row, zeros in second.items()]) < 0.01

    @pytest.mark.parametrize("augmentations", [*({name: {}} for name in NOISES), EVERYTHING], ids="+".join)
    def test_noise_is_that_of_the_reference(self, dataset: Dataset, augmentations: dict[str, Any]) -> None:
        plain = self.read(dataset, 3, **PLAIN).segments.double().numpy()
        for name in NOISES.keys() & augmentations.keys():
            plain += reference_noise(name, draw({name: {}}, 18).stages[0].noises[0]).reshape(plain.shape)
        kept = draw(augmentations, 18).gain.reshape(18, 2, 12) != 0
        segments = self.read(dataset, 3, augmentations=augmentations).segments.numpy()
        np.testing.assert_allclose(segments, random_lead_masking(plain, kept), rtol=0, atol=1e-5)
        assert np.array_equal((segments == 0).all(axis=-1), ~kept)

    def test_the_official_noises_are_those_of_the_reference(self, dataset: Dataset) -> None:
        draws = {name: draw({name: OFFICIAL[name]}, 18).stages[0].noises[0] for name in OFFICIAL_NOISES}
        nothing = np.zeros((36, 12, 2500))
        plain = self.read(dataset, 3, **PLAIN).segments.double().numpy()
        expected = plain + official_noise(nothing, draws).reshape(plain.shape)
        segments = self.read(dataset, 3, augmentations=OFFICIAL_NOISES).segments.numpy()
        np.testing.assert_allclose(segments, expected, rtol=0, atol=2e-5)

    def test_maps_of_the_signal_are_those_of_the_definition(self, dataset: Dataset) -> None:
        with self.make(dataset, augmentations=MAPS) as loader:
            batch = next(loader)
        store = CropStore(dataset, "pretrain")
        signals = np.empty((6, 12, 5000), np.int16)
        store.read(batch.row.cpu().numpy(), signals)
        chosen = make_augmentations(AugmentationOptions.model_validate(MAPS), SEED, range(12))
        chain = AugmentationChain(chosen, 12)
        gain, draws = chain.draw(np.arange(12))
        segments = signals.reshape(6, 12, 2, 2500).swapaxes(1, 2).reshape(12, 12, 2500)
        expected = chain.apply(NUMPY_OPS, segments * gain, draws).reshape(6, 2, 12, 2500)
        np.testing.assert_allclose(batch.segments.cpu(), expected, rtol=0, atol=1e-5)
        is_masked = (batch.segments == 0).float().mean(dim=-1)
        assert is_masked.min() >= 0.3

    @pytest.mark.parametrize("pair", ["adjacent", "same", "single"])
    def test_resuming_repeats_the_draws_also_with_other_ranks_and_batches(self, dataset: Dataset, pair: SegmentPair) -> None:
        augmentations = EVERYTHING | MAPS
        whole = self.read(dataset, 5, augmentations=augmentations, pair=pair)
        by_rank = []
        for rank in range(2):
            with self.make(dataset, batch_size=2, rank=rank, world_size=2, augmentations=augmentations, pair=pair) as loader:
                loader.seek(10)
                by_rank.append(take(loader, 5))
        joined = join([batches[number] for number in range(5) for batches in by_rank])
        assert_same(joined, part(whole, slice(10, 30)))

    def test_a_pair_of_the_same_segment_is_two_views_of_it(self, dataset: Dataset) -> None:
        adjacent, same = self.read(dataset, 6, **PLAIN), self.read(dataset, 6, pair="same", **PLAIN)
        for name in ("recording", "patient", "row", "position"):
            assert torch.equal(getattr(adjacent, name), getattr(same, name))
        assert same.segments.shape == adjacent.segments.shape
        assert torch.equal(same.segments[:, 0], same.segments[:, 1])
        is_second = (same.segments[:, 0] == adjacent.segments[:, 1]).all(dim=(-1, -2))
        assert torch.equal(same.segments[:, 0], adjacent.segments[torch.arange(36), is_second.long()])
        assert 8 < is_second.sum() < 28
        masked = (self.read(dataset, 6, pair="same").segments == 0).all(dim=-1)
        assert 0.3 < (masked[:, 0] == masked[:, 1]).float().mean() < 0.7

    def test_labeled_segments_are_each_complete_segment_with_its_label(self, dataset: Dataset) -> None:
        store = CropStore(dataset, "pretrain", unit="segment")
        batch = self.read(dataset, -(-store.num_samples // 6), labeled=True, **PLAIN)
        assert batch.labels is not None
        assert batch.segments.shape[1:] == (1, 12, 2500)
        assert sorted(batch.row[: store.num_samples].tolist()) == list(range(store.num_samples))
        torch.testing.assert_close(batch.labels, torch.from_numpy(number_labels(store)[batch.row]))
        crops = np.stack([crop_signal("pretrain", int(crop)) for crop in batch.labels[:, 0]]) / 1000
        halves = crops.reshape(-1, 12, 2, 2500)[np.arange(len(crops)), :, batch.labels[:, 1].int()]
        np.testing.assert_allclose(batch.segments[:, 0], halves, rtol=1e-6)

    def test_views_of_segments_are_two_of_each_complete_segment(self, dataset: Dataset) -> None:
        single, views = (self.read(dataset, 6, labeled=True, pair=pair, **PLAIN) for pair in ("single", "same"))
        assert torch.equal(views.segments, single.segments.expand(-1, 2, -1, -1))
        assert torch.equal(views.row, single.row)

    @pytest.mark.parametrize("augmentations", [{}, MASKED, EVERYTHING | MAPS], ids=len)
    def test_a_single_segment_is_the_first_view_of_a_pair(self, dataset: Dataset, augmentations: dict[str, Any]) -> None:
        single = self.read(dataset, 4, augmentations=augmentations, pair="single")
        same = self.read(dataset, 4, augmentations=augmentations, pair="same")
        assert single.segments.shape == (24, 1, 12, 2500)
        torch.testing.assert_close(single.segments[:, 0], same.segments[:, 0], rtol=0, atol=1e-5)
        for name in ("recording", "patient", "row", "position"):
            assert torch.equal(getattr(single, name), getattr(same, name))

    @pytest.mark.parametrize("leads", [6, 3, 1, ["V6", "aVR"]])
    def test_fewer_leads_are_those_channels_in_canonical_order(self, dataset: Dataset, leads: int | list[str]) -> None:
        rows = {6: range(6), 3: (0, 1, 7), 1: (0,)}.get(leads, (3, 11)) if isinstance(leads, int) else (3, 11)
        full, fewer = self.read(dataset, 3, **PLAIN), self.read(dataset, 3, leads=leads, **PLAIN)
        assert torch.equal(fewer.segments, full.segments[:, :, list(rows)])
        if len(list(rows)) > 1:
            masked = self.read(dataset, 3, leads=leads)
            assert masked.segments.shape == fewer.segments.shape
            assert 0 < (masked.segments == 0).all(-1).sum() < masked.segments[..., 0].numel()

    @pytest.mark.parametrize("num_before", [0, 1, 7, 13])
    def test_resuming_is_exact_also_with_other_ranks_and_batches(self, dataset: Dataset, num_before: int) -> None:
        whole = self.read(dataset, 30)
        with self.make(dataset) as loader:
            take(loader, num_before)
            state = loader.state_dict()
        assert state["cursor"] == 6 * num_before
        with self.make(dataset) as same:
            same.load_state_dict(state)
            after = join(take(same, 5))
            assert same.state_dict()["cursor"] == 6 * (num_before + 5)
        begin = state["cursor"]
        assert_same(after, part(whole, slice(begin, begin + 30)))
        by_rank = []
        for rank in range(2):
            with self.make(dataset, batch_size=5, rank=rank, world_size=2) as other:
                other.load_state_dict(state)
                by_rank.append(take(other, 3))
        joined = join([batches[number] for number in range(3) for batches in by_rank])
        assert_same(joined, after)

    def test_seek_goes_anywhere_at_any_time(self, dataset: Dataset) -> None:
        whole = self.read(dataset, 20)
        with self.make(dataset) as loader:
            for cursor in (60, 0, 0, 33):
                loader.seek(cursor)
                joined = join(take(loader, 3))
                assert_same(joined, part(whole, slice(cursor, cursor + 18)))
                assert loader.state_dict()["cursor"] == cursor + 18

    def test_a_state_of_something_else_is_refused_in_one_line(self, dataset: Dataset) -> None:
        with self.make(dataset) as loader:
            state = loader.state_dict()
            changes = {
                "version": STATE_VERSION + 1,
                "fingerprint": "f" * 64,
                "num_crops": 7,
                "seed": 9,
                "split": "valid",
                "block_size": 64,
            }
            for key, value in changes.items():
                with pytest.raises(LoaderStateError, match=f"loader has {key}={value}, but this run has") as error:
                    loader.load_state_dict({**state, key: value})
                assert "\n" not in str(error.value)
            for cursor in (-1, None, "3"):
                with pytest.raises(LoaderStateError, match="cursor="):
                    loader.load_state_dict({**state, "cursor": cursor})
            with pytest.raises(LoaderStateError, match="version=None"):
                loader.load_state_dict({})
            with pytest.raises(ValueError, match="-1"):
                loader.seek(-1)

    def test_batches_stay_as_they_are_while_they_are_held(self, dataset: Dataset) -> None:
        with self.make(dataset) as loader:
            held = take(loader, 6)
            copies = [batch.segments.clone() for batch in held]
            views = [batch.segments[2:3, 1] for batch in take(loader, 2)]
            view_copies = [view.clone() for view in views]
            take(loader, 20)
        gc.collect()
        assert all(torch.equal(batch.segments, copy) for batch, copy in zip(held, copies, strict=True))
        assert all(torch.equal(view, copy) for view, copy in zip(views, view_copies, strict=True))

    def test_closing_ends_the_threads_and_is_final(self, dataset: Dataset) -> None:
        before = {thread.ident for thread in threading.enumerate()}
        loader = self.make(dataset, prefetch=8, num_threads=4)
        take(loader, 3)
        loader.close()
        loader.close()
        assert {thread.ident for thread in threading.enumerate()} <= before
        assert loader.state_dict()["cursor"] == 18
        with pytest.raises(ValueError, match="closed"):
            next(loader)
        with pytest.raises(ValueError, match="closed"):
            loader.seek(0)

    def test_a_loader_nobody_holds_is_freed_and_its_batches_live_on(self, dataset: Dataset) -> None:
        loader = self.make(dataset)
        batch = next(loader)
        copy = batch.segments.clone()
        gone = weakref.ref(loader)
        del loader
        gc.collect()
        assert gone() is None
        assert torch.equal(batch.segments, copy)

    def test_a_program_that_does_not_close_its_loader_ends(self, dataset: Dataset) -> None:
        """A process of its own, because what is tested is the end of the interpreter."""
        program = (
            "import sys\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "from data_tools.shards.dataset import Dataset\n"
            "from contracts.test_loaders import make\n"
            "loader = make(sys.argv[3], Dataset.open(sys.argv[2]), device=sys.argv[4], prefetch=8)\n"
            "print(len(next(loader)))\n"
        )
        tests = Path(__file__).parents[1]
        words = [sys.executable, "-c", program, str(tests), str(dataset.path), self.name, self.device]
        result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=tests.parent)
        assert (result.returncode, result.stdout) == (0, "6\n"), result.stderr

    def test_a_shard_removed_while_training_is_named(self, dataset: Dataset, tmp_path: Path) -> None:
        folder = tmp_path / "copy"
        shutil.copytree(dataset.path, folder)
        loader = self.make(Dataset.open(folder), prefetch=1)
        next(loader)
        for shard in (folder / "shards").glob("*.tar"):
            with shard.open("rb+") as file:
                file.truncate(1000)
        with pytest.raises(DatasetError, match=r"shards/pretrain-00000\d\.tar is truncated at byte") as error:
            take(loader, 20)
        assert "\n" not in str(error.value)
        assert loader.state_dict()["cursor"] % 6 == 0
        with pytest.raises(ValueError, match="has failed"):
            next(loader)

    def test_the_format_of_the_shards_makes_no_difference(self, tmp_path: Path) -> None:
        tar = Dataset.open(write_dataset(tmp_path / "tar", {"pretrain": 12}, crops_per_shard=5))
        zarr = Dataset.open(
            write_dataset(tmp_path / "zarr", {"pretrain": 12}, crops_per_shard=5, encoding="zarr", compression="pcodec")
        )
        for leads in (12, 3):
            assert_same(self.read(zarr, 3, leads=leads), self.read(tar, 3, leads=leads))

    def test_draws_depend_on_the_seed(self, dataset: Dataset) -> None:
        one, other = self.read(dataset, 12), self.read(dataset, 12, seed=6)
        assert not torch.equal(one.row, other.row)
        order = other.row.argsort()[one.row.argsort().argsort()]
        assert torch.equal(one.row, other.row[order])
        zeros = [(segments == 0).all(-1) for segments in (one.segments, other.segments[order])]
        assert 0.4 < (zeros[0] == zeros[1]).float().mean() < 0.6


class TestTorchLoader(LoaderContract):
    name = "torch"


needs_dali = pytest.mark.skipif(not is_dali_installed(), reason="needs DALI")


@needs_dali
class TestDaliLoader(LoaderContract):
    name = "dali"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestTorchLoaderOnGpu(LoaderContract):
    name = "torch"
    device = "cuda"


@pytest.mark.gpu
@needs_dali
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestDaliLoaderOnGpu(LoaderContract):
    name = "dali"
    device = "cuda"

    def test_batches_equal_those_of_the_cpu_while_the_device_is_busy(self, dataset: Dataset) -> None:
        """Copies and kernels of several batches overlap with a long computation on torch's stream."""
        expected = join(take(make("torch", dataset), 60))
        busy = torch.randn(4096, 4096, device="cuda")
        with self.make(dataset) as loader:
            batches = []
            for batch in islice(loader, 60):
                busy = (busy @ busy).clamp(-1, 1)
                batches.append(Batch(**{name: getattr(batch, name) * 1 for name in tensor_names(batch)}))
        assert_same(join(batches), expected)


@needs_dali
@pytest.mark.parametrize("pair", ["adjacent", "same", "single"])
def test_both_loaders_map_the_signal_alike(dataset: Dataset, pair: SegmentPair) -> None:
    augmentations = {"vcg_transform": {"p": 0.7}, "time_mask": {"p": 0.7}, "powerline": {"num_harmonics": 2}, **MASKED}
    one, other = (join(take(make(name, dataset, augmentations=augmentations, pair=pair), 3)) for name in ("torch", "dali"))
    torch.testing.assert_close(one.segments, other.segments, rtol=0, atol=1e-5)
    assert torch.equal(one.segments == 0, other.segments == 0)


@needs_dali
@pytest.mark.parametrize("leads", [12, 2])
@pytest.mark.parametrize("augmentations", [MASKED, {}], ids=["masked", "plain"])
def test_both_loaders_give_the_same_batches(dataset: Dataset, leads: int | list[str], augmentations: dict[str, Any]) -> None:
    one, other = (join(take(make(name, dataset, leads=leads, augmentations=augmentations), 15)) for name in ("torch", "dali"))
    assert_same(one, other)


@needs_dali
@pytest.mark.parametrize("leads", [12, 6, 3, 2, 1, ["aVF"], ["III", "V2"], ["V1", "V2", "V3"]], ids=str)
@pytest.mark.parametrize("consistent", [True, False])
def test_both_loaders_add_the_same_noise(dataset: Dataset, leads: int | list[str], consistent: bool) -> None:
    by_sinusoids = {"p": 0.7, "consistent_limb_leads": consistent}
    augmentations = {
        "powerline": {**by_sinusoids, "num_harmonics": 2, "frequencies_hz": [50, 60]},
        "electromyographic": by_sinusoids,
        "baseline_wander": by_sinusoids,
        "baseline_shift": {"p": 0.7},
        **({} if leads in (1, ["aVF"]) else MASKED),
    }
    pair: SegmentPair = "same" if consistent else "adjacent"
    one, other = (
        join(take(make(name, dataset, leads=leads, augmentations=augmentations, pair=pair), 3)) for name in ("torch", "dali")
    )
    torch.testing.assert_close(one.segments, other.segments, rtol=0, atol=1e-5)
    assert torch.equal(one.segments == 0, other.segments == 0)
