"""The load that training on GPUs puts on disk, network and CPU, from the measured cost of a crop."""

from collections.abc import Mapping

from _results import Result, Table

from data_tools.leads import LEADS
from data_tools.recording import CROP_SAMPLES

GPU_COUNTS = (1, 8, 64)
CROPS_PER_GPU = 2700  # per second: the goal for the base model on one H200
GPUS_PER_MACHINE = 8
_TAR_BYTES = len(LEADS) * CROP_SAMPLES * 2
_ZARR_SHARE = 0.29  # pcodec, of real recordings; README, "Datasets"
# Rows of the table: name -> data in the results of loader.py, and the size of a crop relative to tar.
_ROWS = {
    "tar, augmented on the GPU": ("raw int16", 1.0),
    "tar, RLM on the CPU": ("crop + RLM", 1.0),
    "tar, RLM and three noises on the CPU": ("crop + RLM + physio3", 1.0),
    "zarr with pcodec, augmented on the GPU": ("raw int16, zarr pcodec", _ZARR_SHARE),
}


def data_demand(results: Mapping[str, Result]) -> list[str]:
    """Returns the section for SCALING.md; an empty list if no loader has been measured."""
    measured = [result for result in results.values() if result["benchmark"] == "loader" and not result["environment"]["gpus"]]
    if not measured:
        return []
    cores = measured[-1]["environment"]["cores"]
    rates: dict[str, float] = {}
    for rate in measured[-1]["metrics"]["rates"]:
        if rate["loader"] in {"reader", "torch"}:
            rates[rate["data"]] = max(rates.get(rate["data"], 0.0), rate["crops_per_second"]["median"])
    rows: list[list[object]] = []
    for name, (data, share) in _ROWS.items():
        for num_gpus in GPU_COUNTS if data in rates else ():
            crops = CROPS_PER_GPU * num_gpus
            megabytes = crops * share * _TAR_BYTES / 1e6
            machines = -(-num_gpus // GPUS_PER_MACHINE)
            per_machine = megabytes / machines
            used = crops * cores / rates[data]
            rows.append([name, num_gpus, crops, megabytes, per_machine, per_machine * 8 / 1000, used, used / machines])
    caption = (
        f"For {CROPS_PER_GPU:,} crops/s per GPU, {GPUS_PER_MACHINE} GPUs per machine. A crop is {_TAR_BYTES:,} bytes in tar, "
        f"and {_ZARR_SHARE} times that in zarr. The CPU cores follow from the rates that `loader.py` measured "
        f"({measured[-1]['environment']['cpu']}, with a warm page cache), so they do not include reading from disk or network. "
        f"A dataset that fits in the page cache is read once per machine and run, a larger one in every epoch. Each machine "
        f"reads its ranks' part of every batch."
    )
    headers = ["data", "GPUs", "crops/s", "MB/s", "MB/s per machine", "Gb/s per machine", "CPU cores", "cores per machine"]
    return ["## Disk, network and CPU", Table(caption, headers, rows).markdown()]
