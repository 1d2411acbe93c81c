"""What every store of shards keeps to. A new format gets a subclass at the end; it inherits all tests."""

import dataclasses
import os
import shutil
import threading
from pathlib import Path
from typing import ClassVar

import google_crc32c
import numpy as np
import pytest
import webdataset
import zarr
from dataset_fixtures import crop_key, crop_signal, write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from data_tools.build.conversion import convert_dataset
from data_tools.build.options import BuildError, BuildOptions
from data_tools.build.pipeline import build_dataset
from data_tools.files import hash_file
from data_tools.leads import LEADS
from data_tools.shards import store as store_module
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import DatasetError, Encoding, ShardInfo
from data_tools.shards.store import PLACE_DTYPE, ShardOptions, ShardStore, StoredCrop
from data_tools.shards.stores import STORES
from data_tools.shards.verify import verify_dataset
from data_tools.splits.parsing import parse_plan
from data_tools.splits.writing import split_dataset
from engine.data import CropStore

NUM_CROPS = {"pretrain": 11, "valid": 2}
ANY_VALUE = st.integers(-(2**15), 2**15 - 1)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(store: CropStore, rows: list[int], leads: tuple[int, ...] = tuple(range(12))) -> NDArray[np.int16]:
    out = np.full((len(rows), len(leads), 5000), -1, np.int16)
    store.read(np.array(rows), out, leads)
    return out


@pytest.fixture(scope="class")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Shards of 4, 4 and 3 crops, and one of 2; tests must not change it."""
    folder: Path = request.cls.write(tmp_path_factory.mktemp("written") / "dataset")
    return Dataset.open(folder)


class StoreContract:
    """The tests."""

    encoding: ClassVar[Encoding]
    compression: ClassVar[str | None] = None

    @property
    def store(self) -> type[ShardStore]:
        return STORES[self.encoding]

    @pytest.fixture
    def dataset(self, written: Dataset, tmp_path: Path) -> Dataset:
        return Dataset.open(shutil.copytree(written.path, tmp_path / "dataset"))

    @classmethod
    def write(cls, folder: Path) -> Path:
        return write_dataset(folder, NUM_CROPS, crops_per_shard=4, encoding=cls.encoding, compression=cls.compression)

    def test_crops_are_read_in_any_order(self, written: Dataset) -> None:
        store = CropStore(written, "pretrain")
        rows = [10, 3, 3, 8, 0]
        np.testing.assert_array_equal(read(store, rows), np.stack([crop_signal("pretrain", row) for row in rows]))
        assert store.keys(rows) == [crop_key("pretrain", row) for row in rows]

    @pytest.mark.parametrize("leads", [(0,), (11,), (0, 1, 7), (1, 3, 5, 10, 11)])
    def test_only_the_leads_asked_for_are_returned(self, written: Dataset, leads: tuple[int, ...]) -> None:
        store = CropStore(written, "pretrain")
        expected = np.stack([crop_signal("pretrain", row)[list(leads)] for row in (7, 2)])
        np.testing.assert_array_equal(read(store, [7, 2], leads), expected)

    def test_crops_are_read_by_key(self, written: Dataset) -> None:
        signal, row = written.read_crop(crop_key("valid", 1))
        np.testing.assert_array_equal(signal, crop_signal("valid", 1), strict=True)
        assert (row["key"], row["split"]) == (crop_key("valid", 1), "valid")

    def test_threads_read_at_once_from_more_shards_than_are_kept_open(
        self, written: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module, "_MAX_OPEN_SHARDS", 1)
        store = CropStore(written, "pretrain")
        expected = np.stack([crop_signal("pretrain", row) for row in range(store.num_samples)])
        wrong: list[int] = []

        def work(seed: int) -> None:
            for rows in np.random.default_rng(seed).integers(0, store.num_samples, (5, 8)).tolist():
                wrong.extend([] if np.array_equal(read(store, rows), expected[rows]) else rows)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_equal_crops_give_equal_bytes(self, written: Dataset, tmp_path: Path) -> None:
        assert files(self.write(tmp_path / "again")) == files(written.path)

    def test_a_sound_dataset_has_no_problems(self, written: Dataset) -> None:
        assert list(verify_dataset(written.path)) == []

    @pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.999])
    def test_a_flipped_bit_is_found(self, dataset: Dataset, part: float) -> None:
        shard = dataset.shards("pretrain")[1]
        content = bytearray((dataset.path / shard.file).read_bytes())
        content[int(part * len(content))] ^= 1
        (dataset.path / shard.file).write_bytes(content)
        assert next(iter(verify_dataset(dataset.path))) == f"{shard.file}: content changed (SHA-256 differs from the manifest)"

    def test_a_truncated_or_missing_shard_is_named(self, dataset: Dataset) -> None:
        _, second, third = dataset.shards("pretrain")
        os.truncate(dataset.path / second.file, second.size // 2)
        (dataset.path / third.file).unlink()
        store = CropStore(dataset, "pretrain")
        for shard, row, problem in ((second, 7, "is truncated at byte"), (third, 9, "cannot be opened")):
            with pytest.raises(DatasetError, match=f"{shard.file} {problem} .*ecg-data verify") as error:
                read(store, [row])
            assert "\n" not in str(error.value)
        np.testing.assert_array_equal(read(store, [1])[0], crop_signal("pretrain", 1))
        problems = list(verify_dataset(dataset.path))
        assert problems[0].startswith(f"{second.file}: has {second.size // 2} bytes")
        assert problems[1] == f"{third.file}: missing"
        with pytest.raises(DatasetError, match=rf"{second.file}: has .* \(and 1 more problem\); run `ecg-data verify"):
            Dataset.open(dataset.path)

    def test_a_worker_process_names_the_damaged_shard(self, dataset: Dataset, tmp_path: Path) -> None:
        file = dataset.manifest.shards[0].file
        content = bytearray((dataset.path / file).read_bytes())
        content[2000] ^= 1
        (dataset.path / file).write_bytes(content)
        other: Encoding = "zarr" if self.encoding == "tar" else "tar"
        with pytest.raises(DatasetError, match=rf"{file}.*ecg-data verify"):
            convert_dataset(dataset.path, tmp_path / "out", other, num_workers=2)

    def test_a_file_that_is_not_listed_is_named(self, dataset: Dataset) -> None:
        (dataset.path / self.store.folder / "other").write_bytes(b"")
        assert list(verify_dataset(dataset.path)) == [f"{self.store.folder}/other: not listed in the manifest"]

    def test_a_conversion_there_and_back_gives_the_same_bytes(self, written: Dataset, tmp_path: Path) -> None:
        there = convert_dataset(written.path, tmp_path / "there", "zarr" if self.encoding == "tar" else "tar", num_workers=1)
        assert list(verify_dataset(there.path)) == []
        assert there.content_fingerprint() == written.content_fingerprint()
        back = convert_dataset(there.path, tmp_path / "back", self.encoding, self.compression, num_workers=1)
        assert files(back.path) == files(written.path)

    def test_a_build_is_the_same_as_a_conversion(self, recordings_folder: Path, tmp_path: Path) -> None:
        """And so resumes, and does not depend on the number of workers."""
        tar = BuildOptions("physionet2021", (recordings_folder,), crops_per_shard=2, valid_fraction=0.4)
        build_dataset(tar, tmp_path / "tar", num_workers=1)
        own = dataclasses.replace(tar, format=self.encoding, compression=self.compression)
        build_dataset(own, tmp_path / "built", num_workers=1)
        convert_dataset(tmp_path / "tar", tmp_path / "converted", self.encoding, self.compression, num_workers=1)
        assert files(tmp_path / "built") == files(tmp_path / "converted")


@pytest.mark.parametrize(("encoding", "compression"), [("tar", None), ("zarr", "pcodec"), ("zarr", "blosc"), ("zarr", "none")])
@settings(max_examples=15)
@given(
    values=arrays(np.int16, st.integers(1, 700), elements=ANY_VALUE),
    change=arrays(np.int16, 12, elements=ANY_VALUE),
    count=st.integers(1, 3),
)
def test_every_signal_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    encoding: Encoding,
    compression: str | None,
    values: NDArray[np.int16],
    change: NDArray[np.int16],
    count: int,
) -> None:
    signals = np.resize(values, (count, 12, 5000)) ^ change[:, None]
    folder = tmp_path_factory.mktemp("signals")
    store, options = STORES[encoding], ShardOptions(4, compression)
    crops = (StoredCrop(signal.tobytes(), {"key": str(n)}) for n, signal in enumerate(signals))
    info, offsets = store.write_shard(folder, "pretrain", 0, crops, options)
    store.write_arrays(folder, [info], {"pretrain": options})
    out = np.empty_like(signals)
    store(folder, [info]).read(np.array([(0, offset) for offset in offsets], PLACE_DTYPE), out)
    np.testing.assert_array_equal(out, signals)
    shutil.rmtree(folder)


class TestTar(StoreContract):
    encoding = "tar"

    # webdataset leaves the file objects of its pipeline to the garbage collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
    def test_plain_webdataset_reads_it(self, written: Dataset) -> None:
        for split in written.splits:
            urls = [str(written.path / shard.file) for shard in written.shards(split)]
            samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
            assert [sample["__key__"] for sample in samples] == written.samples(split)["key"].to_pylist()
            for number, sample in enumerate(samples):
                np.testing.assert_array_equal(sample["npy"], crop_signal(split, number), strict=True)
                assert sample["json"]["key"] == crop_key(split, number)

    def test_what_a_conversion_would_lose_is_refused(self, dataset: Dataset, tmp_path: Path) -> None:
        shard = dataset.shards("pretrain")[1]
        path, manifest = dataset.path / shard.file, dataset.path / "manifest.json"
        path.write_bytes(path.read_bytes().replace(b'"source":"test"', b'"source":"tesT"', 1))
        manifest.write_text(manifest.read_text().replace(shard.sha256, hash_file(path)))
        with pytest.raises(DatasetError, match=r"pretrain-000001\.tar contains something that samples\.parquet does not"):
            convert_dataset(dataset.path, tmp_path / "out", "zarr", num_workers=1)

    def test_it_has_no_compression(self) -> None:
        with pytest.raises(BuildError, match="the format tar has no compression 'blosc'; drop --compression"):
            BuildOptions("physionet2021", (), compression="blosc")


class ZarrContract(StoreContract):
    encoding = "zarr"

    # zarr 3.1 warns that other libraries may not have pcodec.
    @pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning")
    def test_plain_zarr_reads_it(self, written: Dataset) -> None:
        group = zarr.open_group(written.path / "zarr", mode="r")
        assert set(group) == set(NUM_CROPS)
        for split, num_crops in NUM_CROPS.items():
            array = group[split]
            assert isinstance(array, zarr.Array)
            expected = np.stack([crop_signal(split, number) for number in range(num_crops)])
            np.testing.assert_array_equal(np.asarray(array[:]), expected, strict=True)
            assert array.attrs["leads"] == list(LEADS)
            assert (array.attrs["unit"], array.attrs["sampling_rate"]) == ("uV", 500)

    @pytest.mark.parametrize("part", [0.01, 0.5, 0.95, 0.99999])
    def test_reading_finds_a_flipped_bit(self, dataset: Dataset, part: float) -> None:
        for shard in dataset.shards("pretrain"):
            content = bytearray((dataset.path / shard.file).read_bytes())
            content[int(part * len(content))] ^= 1
            (dataset.path / shard.file).write_bytes(content)
        rows = list(range(NUM_CROPS["pretrain"]))
        with pytest.raises(DatasetError, match=r"c\.0\.0\.0 (is damaged at byte|has a damaged index).*verify") as error:
            read(CropStore(dataset, "pretrain"), rows)
        assert "\n" not in str(error.value)

    def test_an_index_with_a_valid_crc_and_absurd_sizes_is_refused(self, dataset: Dataset) -> None:
        for shard in dataset.shards("pretrain"):
            content = (dataset.path / shard.file).read_bytes()
            index = bytearray(content[-(16 * 4 + 4) : -4])
            index[8:16] = (1 << 60).to_bytes(8, "little")
            crc = int(google_crc32c.value(bytes(index))).to_bytes(4, "little")
            (dataset.path / shard.file).write_bytes(content[: -(16 * 4 + 4)] + index + crc)
        with pytest.raises(DatasetError, match=r"c\.0\.0\.0 has a damaged index"):
            read(CropStore(dataset, "pretrain"), [0])

    def test_metadata_that_have_changed_are_named(self, dataset: Dataset) -> None:
        path = dataset.path / "zarr" / "pretrain" / "zarr.json"
        path.write_text(path.read_text().replace('"int16"', '"int32"'))
        problems = list(verify_dataset(dataset.path))
        assert problems[0] == "zarr/pretrain/zarr.json: content changed (SHA-256 differs from the manifest)"
        assert "zarr/pretrain/zarr.json describes an array of another kind" in problems
        path.unlink()
        assert "zarr/pretrain/zarr.json: missing" in list(verify_dataset(dataset.path))

    def test_an_unknown_compression_is_refused(self, written: Dataset, tmp_path: Path) -> None:
        with pytest.raises(BuildError, match="no compression 'gzip'; choose one of pcodec, blosc, none"):
            convert_dataset(written.path, tmp_path / "out", "zarr", "gzip")
        assert not (tmp_path / "out").exists()


class TestZarrPcodec(ZarrContract):
    compression = "pcodec"


class TestZarrBlosc(ZarrContract):
    compression = "blosc"


class TestZarrUncompressed(ZarrContract):
    compression = "none"


def test_a_conversion_keeps_plans(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "tar", {"pretrain": 12}, crops_per_shard=5)
    split_dataset(folder, parse_plan("random", {"fractions": "0.4,0.3,0.3"}))
    zarr_dataset = convert_dataset(folder, tmp_path / "zarr", "zarr", num_workers=1)
    assert list(verify_dataset(zarr_dataset.path)) == []
    stores = [CropStore(dataset, "test", plan="random") for dataset in (Dataset.open(folder), zarr_dataset)]
    rows = list(range(stores[0].num_samples))
    assert stores[0].keys(rows) == stores[1].keys(rows)
    np.testing.assert_array_equal(read(stores[0], rows), read(stores[1], rows))


def test_an_interrupted_conversion_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "tar", {"pretrain": 6}, crops_per_shard=2)
    expected = files(convert_dataset(dataset, tmp_path / "whole", "zarr", num_workers=1).path)
    out, write = tmp_path / "out", STORES["zarr"].write_shard
    written: list[int] = []

    def write_two(dataset: Path, split: str, number: int, *rest: object) -> tuple[ShardInfo, list[int]]:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(number)
        return write(dataset, split, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(STORES["zarr"], "write_shard", write_two)
    for blocked in (True, True, False):  # the second time with nothing left to do before it stops again
        if blocked:
            with pytest.raises(OSError, match="No space left"):
                convert_dataset(dataset, out, "zarr", num_workers=1)
            with pytest.raises(BuildError, match="unfinished build with other options"):
                convert_dataset(dataset, out, "zarr", "blosc", num_workers=1)
        else:
            written.clear()
            convert_dataset(dataset, out, "zarr", num_workers=1)
    assert written == [2]
    assert files(out) == expected
    with pytest.raises(BuildError, match="contains a dataset; choose another folder"):
        convert_dataset(dataset, out, "zarr")
