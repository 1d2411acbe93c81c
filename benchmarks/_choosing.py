"""The measurements in docs/choosing.md."""

from collections.abc import Mapping

from _results import Result, Table, describe_environment


def choosing(results: Mapping[str, Result]) -> str:
    """Returns the tables in Markdown: each loader on each kind of data, and training steps."""
    loaders = {name: result for name, result in results.items() if result["benchmark"] == "loader"}
    steps = {name: result for name, result in results.items() if result["benchmark"] == "train_step"}
    parts = ["Loaders, crops/s:"]
    for result in loaders.values():
        parts += [
            _loaders(result).markdown(),
            f"{describe_environment(result, commit=False)}; {result['config']['threads']} threads.",
        ]
    parts += ["Training steps of the base model:", _steps(steps).markdown()]
    parts += dict.fromkeys(f"{describe_environment(result, commit=False)}." for result in steps.values())
    return "\n\n".join(parts)


def _loaders(result: Result) -> Table:
    speeds: dict[str, dict[str, float]] = {}
    for rate in result["metrics"]["rates"]:
        if rate["loader"] in {"torch", "dali"}:
            speeds.setdefault(rate["data"], {})[rate["loader"]] = rate["crops_per_second"]["median"]
    rows: list[list[object]] = [[data, speed.get("torch", ""), speed.get("dali", "")] for data, speed in speeds.items()]
    return Table("", [f"on {result['config']['device'].upper()}", "torch", "dali"], rows)


def _steps(results: Mapping[str, Result]) -> Table:
    rows: list[list[object]] = []
    for result in results.values():
        config = result["config"]
        for step in result["metrics"]["steps"]:
            speed = step["crops_per_second"]["median"]
            settings = [config["device"], config["ranks"], step["pairs"], step["precision"], step["zero_stage"]]
            memory = step.get("peak_memory_gb", "")
            rows.append([*settings, speed, 1e6 / speed / 3600, memory, step["tflop_per_step"] / step["pairs"]])
    headers = [
        "device",
        "ranks",
        "pairs",
        "precision",
        "ZeRO",
        "crops/s",
        "hours per million crops",
        "GB per rank",
        "TFLOP per crop",
    ]
    return Table("", headers, rows)
