"""Free memory, read from folders like /proc and /sys."""

from pathlib import Path

import pytest

from engine.training.free_memory import free_memory_bytes

GB = 10**9


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {20 * GB // 1024} kB\nSwapFree: 99999999 kB"})
    return tmp_path


def test_without_control_groups_it_is_what_the_machine_has_available(root: Path) -> None:
    assert free_memory_bytes(root) == pytest.approx(20 * GB, abs=1024)


def test_the_tightest_group_counts_and_its_page_cache_is_free(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/jobs/7", "sys/fs/cgroup/cgroup.procs": ""})
    write(root / "sys/fs/cgroup/jobs/7", {"memory.max": "max", "memory.current": str(9 * GB), "memory.stat": "file 0"})
    assert free_memory_bytes(root) == pytest.approx(20 * GB, abs=1024)
    usage = {"memory.max": str(12 * GB), "memory.current": str(9 * GB), "memory.stat": f"anon 1\nfile {2 * GB}"}
    write(root / "sys/fs/cgroup/jobs", usage)
    assert free_memory_bytes(root) == 5 * GB
    write(root / "sys/fs/cgroup/jobs/7", {"memory.max": str(8 * GB)})
    assert free_memory_bytes(root) == 0, "a group above its limit has nothing left"


def test_version_1_in_a_container_whose_own_group_is_the_top_folder(root: Path) -> None:
    write(root, {"proc/self/cgroup": "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1"})
    files = {"memory.limit_in_bytes": str(4 * GB), "memory.usage_in_bytes": str(3 * GB), "memory.stat": f"total_cache {GB}"}
    write(root / "sys/fs/cgroup/memory", files)
    assert free_memory_bytes(root) == 2 * GB


def test_this_machine_has_free_memory() -> None:
    assert free_memory_bytes() > 0
