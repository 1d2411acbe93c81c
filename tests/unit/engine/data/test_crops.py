"""Reading crops from the shards."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cohort_tables import crop_rows, write_patients, write_tables
from dataset_fixtures import crop_key, crop_signal, is_partial, write_dataset
from numpy.typing import NDArray

from data_tools.shards import store as store_module
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import SAMPLES_FILE, DatasetError, Manifest
from data_tools.shards.plans import read_plan
from data_tools.splits.plans import PaperPlan, RandomPlan
from data_tools.splits.writing import split_dataset
from engine.data import CropStore

COMPLETE = [number for number in range(60) if not is_partial(number, 7)]


def read(store: CropStore, rows: list[int], leads: tuple[int, ...] = tuple(range(12))) -> NDArray[np.int16]:
    out = np.full((len(rows), len(leads), 5000), -1, np.int16)
    store.read(np.array(rows), out, leads)
    return out


def test_rows_are_the_complete_crops_in_the_order_of_the_table(store: CropStore, dataset: Dataset) -> None:
    assert store.num_samples == len(COMPLETE)
    assert store.keys(range(store.num_samples)) == [crop_key("pretrain", number) for number in COMPLETE]
    assert store.fingerprint == dataset.fingerprint


def test_recordings_and_patients_are_numbered_in_order_of_appearance(store: CropStore) -> None:
    recordings = [number // 2 for number in COMPLETE]
    assert store.recording.tolist() == [sorted(set(recordings)).index(recording) for recording in recordings]
    patients = [recording // 2 for recording in recordings]
    assert store.patient.tolist() == [sorted(set(patients)).index(patient) for patient in patients]
    assert store.patient.dtype == store.recording.dtype == store.crop.dtype == np.int32


def test_content_is_what_was_written_in_any_order_of_rows(store: CropStore) -> None:
    rows = [50, 3, 3, 19, 0, 18]
    expected = np.stack([crop_signal("pretrain", COMPLETE[row]) for row in rows])
    np.testing.assert_array_equal(read(store, rows), expected)


@pytest.mark.parametrize("leads", [(0,), (11,), (0, 1, 7), (0, 1, 2, 3, 4, 5), (1, 3, 5, 10, 11)])
def test_only_the_leads_asked_for_are_read(store: CropStore, leads: tuple[int, ...]) -> None:
    rows = [7, 40]
    expected = np.stack([crop_signal("pretrain", COMPLETE[row])[list(leads)] for row in rows])
    np.testing.assert_array_equal(read(store, rows, leads), expected)


def test_more_shards_than_files_kept_open_and_several_threads(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MAX_OPEN_SHARDS", 1)
    store = CropStore(dataset, "pretrain")
    expected = np.stack([crop_signal("pretrain", number) for number in COMPLETE])
    wrong: list[int] = []

    def work(seed: int) -> None:
        for rows in np.random.default_rng(seed).integers(0, store.num_samples, (10, 8)):
            out = np.empty((8, 12, 5000), np.int16)
            store.read(rows, out)
            if not np.array_equal(out, expected[rows]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def open_shards(folder: Path) -> int:
    # Shards only: pyarrow's threads may let go of samples.parquet a little later.
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(target.startswith(str(folder)) and target.endswith(".tar") for target in links)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_files_are_closed_with_the_store(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "dataset", {"pretrain": 6}, crops_per_shard=2)
    store = CropStore(Dataset.open(folder), "pretrain")
    read(store, [0, 3, 5])
    assert open_shards(folder) == 3
    del store
    assert open_shards(folder) == 0


def test_a_shard_that_has_gone_or_shrunk_is_named(dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(dataset.path, folder)
    store = CropStore(Dataset.open(folder), "pretrain")
    (folder / "shards" / "pretrain-000001.tar").unlink()
    with pytest.raises(DatasetError, match=r"shards/pretrain-000001\.tar cannot be opened .*verify") as error:
        read(store, [0, 25])
    assert "\n" not in str(error.value)
    shard = folder / "shards" / "pretrain-000002.tar"
    with shard.open("rb+") as file:
        file.truncate(shard.stat().st_size // 2)
    with pytest.raises(DatasetError, match=r"shards/pretrain-000002\.tar is truncated at byte \d+"):
        read(store, [store.num_samples - 1])


def manifest_for(dataset: Dataset, folder: Path) -> Manifest:
    """Returns the manifest of a dataset with the size of another table of samples."""
    tables = dataset.manifest.tables
    info = tables[SAMPLES_FILE].model_copy(update={"size": (folder / SAMPLES_FILE).stat().st_size})
    return dataset.manifest.model_copy(update={"tables": {**tables, SAMPLES_FILE: info}})


def test_a_table_in_many_pieces_is_the_same_to_it(dataset: Dataset, store: CropStore, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(dataset.path, folder)
    table = pq.read_table(folder / "samples.parquet")
    pq.write_table(table, folder / "samples.parquet", row_group_size=4)
    pieces = CropStore(Dataset(folder, manifest_for(dataset, folder)), "pretrain")
    rows = range(store.num_samples)
    assert pieces.keys(rows) == store.keys(rows)
    np.testing.assert_array_equal(pieces.recording, store.recording)
    np.testing.assert_array_equal(pieces.patient, store.patient)
    np.testing.assert_array_equal(read(pieces, list(rows)), read(store, list(rows)))


@pytest.mark.parametrize("split", ["valid", "pretrain"])
def test_a_table_with_other_splits_than_the_manifest_is_refused(dataset: Dataset, tmp_path: Path, split: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(dataset.path, folder)
    table = pq.read_table(folder / "samples.parquet")
    column = ["pretrain"] * 30 + [split] * 40
    table = table.set_column(table.schema.get_field_index("split"), "split", [column])
    pq.write_table(table, folder / "samples.parquet")
    with pytest.raises(DatasetError, match=r"samples\.parquet: the number of rows of split 'pretrain' differs from the 60"):
        CropStore(Dataset(folder, manifest_for(dataset, folder)), "pretrain")


def test_a_table_that_names_another_shard_is_refused(dataset: Dataset) -> None:
    shards = tuple(shard for shard in dataset.manifest.shards if not shard.file.endswith("pretrain-000001.tar"))
    other = Dataset(dataset.path, dataset.manifest.model_copy(update={"shards": shards}))
    with pytest.raises(DatasetError, match=r"samples\.parquet: pretrain-000001\.tar is not among the shards of this split"):
        CropStore(other, "pretrain")


def test_an_unknown_or_empty_split_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no split 'test'; available: pretrain, valid"):
        CropStore(dataset, "test")
    padded_only = Dataset.open(write_dataset(tmp_path / "padded", {"pretrain": 3}, partial_every=1))
    with pytest.raises(DatasetError, match="no complete 10-s crop: build the dataset from more or longer recordings"):
        CropStore(padded_only, "pretrain")


def test_segments_are_all_complete_segments_of_all_crops(store: CropStore, dataset: Dataset) -> None:
    segments = CropStore(dataset, "pretrain", unit="segment")
    expected = [(number, half) for number in range(60) for half in range(1 if is_partial(number, 7) else 2)]
    assert segments.half is not None
    assert list(zip(segments.crop.tolist(), segments.half.tolist(), strict=True)) == expected
    assert segments.keys(range(segments.num_samples)) == [crop_key("pretrain", number) for number, _ in expected]
    assert segments.recording.tolist() == [number // 2 for number, _ in expected]
    assert segments.fingerprint == store.fingerprint


def test_only_chosen_crops_are_used_and_numbered(dataset: Dataset, store: CropStore) -> None:
    chosen = np.zeros(60, np.bool_)
    chosen[[13, 20, 21, 33]] = True  # 13 and 20 are padded
    segments = CropStore(dataset, "pretrain", unit="segment", chosen=chosen)
    assert segments.crop.tolist() == [13, 20, 21, 21, 33, 33]
    assert segments.recording.tolist() == [0, 1, 1, 1, 2, 2]
    crops = CropStore(dataset, "pretrain", chosen=chosen)
    assert crops.crop.tolist() == [21, 33]
    assert crops.recording.tolist() == [0, 1]
    assert crops.patient.tolist() == [0, 1]
    assert len({store.fingerprint, crops.fingerprint}) == 2
    with pytest.raises(DatasetError, match="no complete 10-s crop with a label: label more of its recordings"):
        CropStore(dataset, "pretrain", chosen=np.zeros(60, np.bool_))


def test_opening_does_not_import_pandas(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "dataset", {"pretrain": 40, "valid": 12}, crops_per_shard=10)
    split_dataset(folder, RandomPlan())
    code = (
        "import sys; from data_tools.shards.dataset import Dataset; from engine.data import CropStore; "
        "store = CropStore(Dataset.open(sys.argv[1]), 'train', plan='random'); assert store.patient is not None; "
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True, timeout=120)


def test_the_split_of_a_plan_spans_the_stored_splits(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "dataset", {"pretrain": 40, "valid": 12}, crops_per_shard=10, partial_every=7)
    dataset = split_dataset(folder, RandomPlan())
    keys = [key for split in dataset.splits for key in dataset.samples(split, ["key"])["key"].to_pylist()]
    stores = [CropStore(dataset, split, plan="random", unit="segment") for split in ("train", "valid", "test")]
    found = [[keys[crop] for crop in store.crop] for store in stores]
    assert {key for own in found for key in own} == set(keys)
    assert any(key.startswith("valid") for key in found[0])
    patients = dataset.samples("pretrain", ["patient"]), dataset.samples("valid", ["patient"])
    names = [name for part in patients for name in part["patient"].to_pylist()]
    for store, own in zip(stores, found, strict=True):
        assert store.keys(range(store.num_samples)) == own
        assert own == [key for key in keys for _ in range(own.count(key))]
        order = list(dict.fromkeys(names))
        assert store.patient.tolist() == [order.index(names[crop]) for crop in store.crop]
    crops = CropStore(dataset, "train", plan="random")
    split, number = crops.keys([crops.num_samples - 1])[0].split("-")
    np.testing.assert_array_equal(read(crops, [crops.num_samples - 1])[0], crop_signal(split, int(number)))
    assert crops.origin == {"dataset": dataset.fingerprint, "plan": "random", "split": "train", "crops": crops.fingerprint}
    assert len({dataset.fingerprint, crops.fingerprint, stores[1].fingerprint}) == 3
    chosen = np.zeros(52, np.bool_)
    with pytest.raises(DatasetError, match="split 'train' of plan 'random' contains no complete 5-s segment with a label"):
        CropStore(dataset, "train", plan="random", unit="segment", chosen=chosen)


def test_gallery_and_probe_are_one_segment_of_one_crop_each_of_the_same_patients(tmp_path: Path) -> None:
    rows = [row for number in range(30) for row in crop_rows("georgia", f"E{number}")]
    rows += [row for number in range(1, 13) for row in crop_rows("ptb-xl", f"HR{number:05d}", num_crops=3, num_valid=2500)]
    patients = write_patients(tmp_path / "ptbxl_database.csv", {number: number % 4 for number in range(1, 13)})
    dataset = split_dataset(write_tables(tmp_path / "dataset", rows), PaperPlan(), 0, patients)
    gallery, probe = (CropStore(dataset, split, plan="identification", unit="segment") for split in ("gallery", "probe"))
    assert gallery.num_samples == probe.num_samples == 4
    for crop, patient in zip([*gallery.crop, *probe.crop], [*gallery.patient, *probe.patient], strict=True):
        assert patient == 30 + (int(str(rows[crop]["recording"])[2:]) - 1) % 4
    plan = read_plan(dataset, "identification")
    assert plan.segments is not None
    assert gallery.half is not None
    assert gallery.half.tolist() == plan.segments[gallery.crop].tolist()
    for store in (gallery, probe):
        assert {rows[crop]["source"] for crop in store.crop} == {"ptb-xl"}
        assert len({str(rows[crop]["recording"]) for crop in store.crop}) == 4
