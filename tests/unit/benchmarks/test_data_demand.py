from typing import Any

from _data_demand import data_demand


def loader_result(gpus: list[str]) -> dict[str, Any]:
    def rate(loader: str, data: str, value: float) -> dict[str, Any]:
        return {"loader": loader, "data": data, "crops_per_second": {"median": value}}

    rates = [rate("webdataset", "raw int16", 1e9), rate("reader", "raw int16", 54_000), rate("torch", "crop + RLM", 27_000)]
    return {"benchmark": "loader", "environment": {"gpus": gpus, "cores": 2, "cpu": "a CPU"}, "metrics": {"rates": rates}}


def test_demand_follows_from_the_measured_cost_of_a_crop() -> None:
    title, text = data_demand({"loader-cpu": loader_result([])})
    assert title == "## Disk, network and CPU"
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| tar")]
    assert ["tar, augmented on the GPU", "1", "2,700", "324", "324", "2.59", "0.1", "0.1"] in rows
    assert ["tar, augmented on the GPU", "64", "172,800", "20,736", "2,592", "20.7", "6.4", "0.8"] in rows
    assert ["tar, RLM on the CPU", "8", "21,600", "2,592", "2,592", "20.7", "1.6", "1.6"] in rows
    assert "zarr with pcodec, augmented" not in text  # not measured


def test_without_a_loader_on_a_cpu_there_is_no_table() -> None:
    assert data_demand({"loader-gpu": loader_result(["H200"])}) == []
