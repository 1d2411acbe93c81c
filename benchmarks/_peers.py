"""The loaders that ``compare_loaders.py`` compares: this engine's and those of other libraries."""

import importlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import obstore
import torch
from _peer import CROP_BYTES, SEED, SHUFFLE_BUFFER, SPLIT, Crop, Peer, Reading, num_rows, read_crops, to_segments
from obstore.store import S3Store
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.dlpack import from_dlpack

from data_tools.build.conversion import convert_dataset
from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES, SEGMENT_SAMPLES
from data_tools.remote.locations import url_of
from data_tools.remote.options import CacheOptions
from data_tools.remote.upload import output_folder
from data_tools.shards.dataset import Dataset
from data_tools.shards.manifest import Encoding
from data_tools.validation import first_line
from engine.data import CropStore, DataOptions, SampleOrder, make_loader

# Crops in a chunk of litdata's and a shard of mosaicml-streaming's: about their default size of 64 MB.
_CROPS_PER_CHUNK = 512
_CACHE_BYTES = 1 << 40


class _Engine(Peer):
    """This engine's loader; its batches also contain rows, recordings and patients."""

    package = "engine"
    _format: ClassVar[Encoding]

    def __init__(self, reading: Reading) -> None:
        store = CropStore(Dataset.open(reading.location, CacheOptions(reading.cache, _CACHE_BYTES)), SPLIT)
        order = SampleOrder(store.num_samples, SEED)
        options = DataOptions(loader="torch", num_threads=reading.workers)
        self._num_crops = store.num_samples
        self._left = torch.empty(0)
        self._loader = make_loader(options, store, order, leads=len(LEADS), batch_size=reading.batch_size)

    def epoch(self) -> Iterator[Tensor]:
        num_left = self._num_crops
        while num_left:
            # The engine's stream is endless, without a smaller last batch: a batch may contain the end of one epoch and the
            # beginning of the next.
            segments = self._left if len(self._left) else next(self._loader).segments
            self._left = segments[num_left:]
            num_left -= len(segments) - len(self._left)
            yield segments[: len(segments) - len(self._left)]

    def close(self) -> None:
        self._loader.close()

    @classmethod
    def prepare(cls, dataset: Path, out: Path) -> Path:
        return dataset if cls._format == "tar" else convert_dataset(dataset, out, cls._format).path

    @classmethod
    def upload(cls, folder: Path, url: str) -> None:
        with output_folder(url, folder) as out:
            convert_dataset(folder, out, cls._format)


class EngineTar(_Engine):
    """Tar shards."""

    _format = "tar"


class EngineZarr(_Engine):
    """zarr shards with pcodec."""

    _format = "zarr"


class _Workers(Peer):
    """A loader that runs in worker processes of PyTorch's DataLoader."""

    loader: Any

    def epoch(self) -> Iterator[Tensor]:
        return iter(self.loader)

    @staticmethod
    def options(reading: Reading) -> dict[str, Any]:
        """Returns the options of a DataLoader whose dataset yields crops."""
        common = {"batch_size": reading.batch_size, "num_workers": reading.workers}
        return common | {"collate_fn": _collate, "persistent_workers": True}


class _ReadsTar(Peer):
    """A loader that reads the dataset's tar shards as they are."""

    @classmethod
    def prepare(cls, dataset: Path, out: Path) -> Path:  # noqa: ARG003
        return dataset


class WebDataset(_ReadsTar, _Workers):
    """webdataset's usual pipeline with a shuffle buffer; from S3 through curl into its cache, as it documents."""

    package = "webdataset"

    def __init__(self, reading: Reading) -> None:
        webdataset = importlib.import_module(self.package)
        files = [shard.file for shard in Dataset.open(reading.dataset).shards(SPLIT)]
        is_remote = url_of(reading.location) is not None
        urls = _signed_urls(reading.location, files) if is_remote else [f"{reading.location}/{file}" for file in files]
        cache = {"cache_dir": str(reading.cache)} if is_remote else {}
        pipeline = (
            webdataset.WebDataset(urls, shardshuffle=len(urls), seed=SEED, **cache)
            .shuffle(SHUFFLE_BUFFER)
            .to_tuple("npy")
            .map_tuple(_read_npy)
            .batched(reading.batch_size, collation_fn=_collate_tuples, partial=True)
        )
        workers = min(reading.workers, len(urls))  # each worker gets whole shards
        self.loader = webdataset.WebLoader(pipeline, batch_size=None, num_workers=workers, persistent_workers=True)


def _signed_urls(url: str, files: Sequence[str]) -> list[str]:
    endpoint: dict[str, Any] = {"endpoint": os.environ["AWS_ENDPOINT_URL"]} if "AWS_ENDPOINT_URL" in os.environ else {}
    store: Any = S3Store.from_url(url, client_options={"allow_http": True}, **endpoint)
    return [f"pipe:curl -s -f '{obstore.sign(store, 'GET', file, timedelta(days=1))}'" for file in files]


def _read_npy(data: bytes) -> Crop:
    crop: Crop = np.load(io.BytesIO(data))
    return crop


def _collate_tuples(samples: Sequence[tuple[Crop]]) -> Tensor:
    return to_segments(np.stack([crop for (crop,) in samples]))


def _collate(samples: Sequence[Crop]) -> Tensor:
    return to_segments(np.stack(samples))


class Dali(_ReadsTar):
    """DALI's own webdataset reader on the CPU. From S3 it sends separate requests for each crop, in every epoch."""

    package = "nvidia.dali"
    reads_urls = False

    def __init__(self, reading: Reading) -> None:
        dali, fn, types = (importlib.import_module(f"nvidia.dali{name}") for name in ("", ".fn", ".types"))
        shards = Dataset.open(reading.dataset).shards(SPLIT)
        pipeline = dali.Pipeline(reading.batch_size, reading.workers, device_id=None, prefetch_queue_depth=2, seed=SEED)
        with pipeline:
            files = fn.readers.webdataset(
                paths=[f"{reading.location}/{shard.file}" for shard in shards],
                index_paths=[f"{reading.location}/{shard.index.file}" for shard in shards if shard.index is not None],
                ext=["npy"],
                dtypes=[types.UINT8],
                missing_component_behavior="error",
                random_shuffle=True,
                initial_fill=SHUFFLE_BUFFER,
                name="reader",
            )
            # Skips the header of an npy file of version 1.0, whose length depends only on the shape.
            crops = fn.reinterpret(files[_npy_header_bytes() :], dtype=types.INT16, shape=[len(LEADS), 2, SEGMENT_SAMPLES])
            pipeline.set_outputs(fn.transpose(fn.cast(crops, dtype=types.FLOAT) * 1e-3, perm=[1, 0, 2]))
        pipeline.build()
        self._pipeline = pipeline
        self._num_crops = pipeline.epoch_size("reader")
        self._batch_size = reading.batch_size

    def epoch(self) -> Iterator[Tensor]:
        for number in range(math.ceil(self._num_crops / self._batch_size)):
            (output,) = self._pipeline.run()
            segments: Tensor = from_dlpack(output.as_tensor())
            yield segments[: self._num_crops - number * self._batch_size]


def _npy_header_bytes() -> int:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.zeros((len(LEADS), CROP_SAMPLES), np.int16), version=(1, 0))
    return len(buffer.getvalue()) - CROP_BYTES


class LitData(_Workers):
    """litdata's streaming dataset."""

    package = "litdata"

    def __init__(self, reading: Reading) -> None:
        litdata = importlib.import_module(self.package)
        where: dict[str, Any] = {"input_dir": reading.location}
        if url_of(reading.location) is not None:
            keys = {"aws_access_key_id": "AWS_ACCESS_KEY_ID", "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY"}
            keys |= {"endpoint_url": "AWS_ENDPOINT_URL", "region_name": "AWS_REGION"}
            options = {name: os.environ[variable] for name, variable in keys.items() if variable in os.environ}
            where |= {"cache_dir": str(reading.cache), "storage_options": options}
            # litdata 0.2.76 has no option for a server without TLS, such as that of the tests.
            downloader = importlib.import_module("litdata.streaming.downloader")
            vars(downloader)["_OBSTORE_CLIENT_OPTIONS"]["allow_http"] = True
        dataset = litdata.StreamingDataset(**where, shuffle=True, drop_last=False, seed=SEED, max_cache_size="1TB")
        self.loader = litdata.StreamingDataLoader(dataset, **self.options(reading))

    @classmethod
    def prepare(cls, dataset: Path, out: Path) -> Path:
        litdata = importlib.import_module(cls.package)
        litdata.optimize(
            fn=_ReadCrops(dataset),
            inputs=list(range(0, num_rows(dataset), _CROPS_PER_CHUNK)),
            output_dir=str(out),
            chunk_size=_CROPS_PER_CHUNK,
            num_workers=1,
            verbose=False,
        )
        return out


@dataclass(frozen=True)
class _ReadCrops:
    """Reads consecutive crops of a dataset; can be sent to worker processes."""

    dataset: Path

    def __call__(self, first: int) -> Iterator[Crop]:
        yield from islice(read_crops(self.dataset, first), _CROPS_PER_CHUNK)


class MosaicStreaming(_Workers):
    """mosaicml-streaming's streaming dataset."""

    package = "streaming"

    def __init__(self, reading: Reading) -> None:
        streaming = importlib.import_module(self.package)
        where = {"local": reading.location}
        if url_of(reading.location) is not None:
            where = {"remote": reading.location, "local": str(reading.cache)}
            if "AWS_ENDPOINT_URL" in os.environ:
                os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]  # the name that it reads
        dataset = streaming.StreamingDataset(**where, shuffle=True, shuffle_seed=SEED, batch_size=reading.batch_size)
        self.loader = DataLoader(_Signals(dataset), **self.options(reading))

    @classmethod
    def prepare(cls, dataset: Path, out: Path) -> Path:
        streaming = importlib.import_module(cls.package)
        columns = {"signal": f"ndarray:int16:{len(LEADS)},{CROP_SAMPLES}"}
        with streaming.MDSWriter(columns=columns, out=str(out), size_limit=_CROPS_PER_CHUNK * CROP_BYTES) as writer:
            for crop in read_crops(dataset):
                writer.write({"signal": crop})
        return out


class _Signals(torch.utils.data.IterableDataset[Crop]):
    """Yields the signals of an iterable dataset's samples."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Crop]:
        for sample in self._dataset:
            yield sample["signal"]


PEERS: dict[str, type[Peer]] = {
    "engine, tar": EngineTar,
    "engine, zarr": EngineZarr,
    "webdataset": WebDataset,
    "litdata": LitData,
    "mosaicml-streaming": MosaicStreaming,
    "DALI webdataset": Dali,
}
"""Name -> loader."""


def find_missing(peer: type[Peer]) -> str | None:
    """Returns why a loader cannot be used here; None if it can."""
    try:
        importlib.import_module(peer.package)
    except Exception as error:  # noqa: BLE001 -- incompatible packages raise errors of any kind
        return f"{peer.package} cannot be imported ({first_line(error)}): pip install -e '.[bench]'"
    return None
