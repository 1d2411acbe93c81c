"""Profiles training steps: time by kernel, and the share of the time in which the device is busy."""

from pathlib import Path

import torch
from _steps import NUM_WARMUP_STEPS, TrainingStep
from _timing import DeviceTimer
from torch.profiler import ProfilerActivity, profile

from data_tools.files import write_text

_NUM_STEPS = 3
_NUM_ROWS = 60


def profile_step(step: TrainingStep, device: torch.device, folder: Path) -> str:
    """Profiles a few steps after a warm-up.

    Writes ``kernels.txt`` (time by kernel on a GPU, by operator on a CPU) and ``trace.json`` (for chrome://tracing or
    https://ui.perfetto.dev).

    Args:
        step: the step.
        device: the step's device.
        folder: folder to write to; created if necessary.

    Returns:
        A line with the share of the time in which the device is busy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(NUM_WARMUP_STEPS):
        step.run()
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        timer = DeviceTimer(device)
        timer.mark()
        for _ in range(_NUM_STEPS):
            step.run()
        timer.mark()
        elapsed = timer.seconds()[0]
    averages = profiler.key_averages()
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU, the time of operators includes that of the kernels that they launch, which would count twice.
    counted = [each for each in averages if not on_gpu or (each.device_type.name == "CUDA" and not each.is_user_annotation)]
    busy = sum(getattr(each, key) for each in counted) / 1e6
    line = f"{_NUM_STEPS} steps: {1e3 * elapsed:,.1f} ms, of which {'kernels' if on_gpu else 'operators'} {busy / elapsed:.1%}"
    table = averages.table(sort_by=key, row_limit=_NUM_ROWS, max_name_column_width=100)
    write_text(folder / "kernels.txt", f"{line}\n\n{table}\n")
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return line
