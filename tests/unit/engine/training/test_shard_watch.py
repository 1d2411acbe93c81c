"""Shards that are overwritten while a run reads them."""

import os
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from dataset_fixtures import write_dataset

from data_tools.shards.dataset import Dataset
from engine.options import RankError
from engine.training.distributed import Ranks
from engine.training.shard_watch import ShardWatch


def hash_everything(watch: ShardWatch, num_shards: int) -> None:
    """Hashes every shard once, in small steps."""
    target = watch._num_hashed + num_shards
    watch.advance(0.5)
    watch.advance(0.5)
    while watch._num_hashed < target:
        watch.advance(0)
        time.sleep(0.001)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shard_that_changes_is_named(tmp_path: Path, rank: int) -> None:
    folder = write_dataset(tmp_path / "set", {"pretrain": 12}, crops_per_shard=3)
    with closing(ShardWatch([Dataset.open(folder)], Ranks(rank, 2, torch.device("cpu")))) as watch:
        hash_everything(watch, 2)
        shard = sorted((folder / "shards").glob("*.tar"))[2 + rank]
        before = shard.stat()
        content = bytearray(shard.read_bytes())
        content[5000] ^= 1
        shard.write_bytes(content)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(RankError, match=rf"rank {rank}: .*{shard.name}: content changed .* check it with `ecg-data verify"):
            hash_everything(watch, 2)
        with pytest.raises(RankError):
            watch.advance(0)


def test_a_fast_run_does_not_pile_up_work(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "set", {"pretrain": 3})
    with closing(ShardWatch([Dataset.open(folder)], Ranks(0, 1, torch.device("cpu")))) as watch:
        for _ in range(1000):
            watch.advance(5)
        assert watch._num_due <= watch._num_hashed + 1


def test_a_rank_without_a_shard_has_nothing_to_do(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "set", {"pretrain": 3})
    with closing(ShardWatch([Dataset.open(folder)], Ranks(5, 6, torch.device("cpu")))) as watch:
        watch.advance(1)


def test_the_shards_of_every_dataset_are_watched(tmp_path: Path) -> None:
    folders = [write_dataset(tmp_path / name, {"pretrain": 3}) for name in ("first", "second")]
    with closing(ShardWatch([Dataset.open(folder) for folder in folders], Ranks(0, 1, torch.device("cpu")))) as watch:
        hash_everything(watch, 2)
        (folders[1] / "shards" / "pretrain-000000.tar").unlink()
        with pytest.raises(RankError, match=f"{folders[1]}: .*missing"):
            hash_everything(watch, 2)
