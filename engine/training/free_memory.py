"""The memory that a process on a CPU may still use: what the machine has free, within the limits of its control groups."""

from collections.abc import Iterator
from pathlib import Path

# Of cgroup v2 and v1: the hierarchy's folder, the files with limit and usage, and the entry of memory.stat that counts the page
# cache, which the kernel frees when a process needs memory.
_VERSIONS = {
    "": ("", "memory.max", "memory.current", "file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
}


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the bytes that this process can allocate without swapping or being killed.

    Args:
        root: the folder with ``proc`` and ``sys``.
    """
    meminfo = _counts((root / "proc/meminfo").read_text().replace(":", ""))
    return max(0, min([1024 * meminfo["MemAvailable"], *_free_in_control_groups(root)]))


def _free_in_control_groups(root: Path) -> Iterator[int]:
    """Yields the free bytes of this process's control groups and their parents, where they have a limit."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers not in _VERSIONS:
            continue
        hierarchy, limit, usage, cache = _VERSIONS[controllers]
        top = root / "sys/fs/cgroup" / hierarchy
        # In a container, the path may be the host's; the container's own group is then the top folder.
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top) and (folder / limit).exists():
                maximum = (folder / limit).read_text().strip()
                if maximum != "max":
                    used = int((folder / usage).read_text()) - _counts((folder / "memory.stat").read_text()).get(cache, 0)
                    yield int(maximum) - used


def _counts(text: str) -> dict[str, int]:
    return {words[0]: int(words[1]) for words in map(str.split, text.splitlines()) if len(words) > 1}
