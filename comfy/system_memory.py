"""How much RAM this process may use: what the machine has, and what its control groups allow.

In a container the machine's figures promise memory that the kernel will not give: a process that goes past the limit of
its group is killed. Read from `/proc` and `/sys/fs/cgroup` (kernel documentation: cgroup-v2, "memory.max", and
cgroup-v1, "memory.limit_in_bytes"); needs no torch, and on Linux nothing but files.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_RECLAIMABLE = ("active_file", "inactive_file", "slab_reclaimable")  # of memory.stat: given back when it gets tight
_LIMITS_HOLD_SECONDS = 5.0
_KIB = 1024


class SystemMemory(NamedTuple):
    """Bytes of RAM: all that there may ever be, and what could be had now without swapping."""

    total: int
    available: int


def system_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> SystemMemory:
    """The RAM of this process: the least of the machine and of each control group above it.

    Memory that holds files of the disk counts as available, as `MemAvailable` counts it.

    Args:
        proc, cgroups: where the kernel's files are.
    """
    total, available = _of_the_machine(proc)
    for limit, group in _limited_groups(proc, cgroups, int(time.monotonic() / _LIMITS_HOLD_SECONDS)):
        total = min(total, limit)
        available = min(available, max(0, limit - group.held()))
    return SystemMemory(total, min(available, total))


class _Group:
    """One control group, of either version of the interface."""

    def __init__(self, folder: Path, limits: tuple[str, ...], usage: str, prefix: str) -> None:
        self._folder = folder
        self._limits = limits
        self._usage = usage
        self._prefix = prefix

    def limit(self) -> int | None:
        """Bytes it may hold; None: no limit is set, or none can be read."""
        return min((value for name in self._limits if (value := self._number(name)) is not None), default=None)

    def held(self) -> int:
        """Bytes it holds and cannot give back."""
        usage = self._number(self._usage) or 0
        statistics = _fields(self._folder / "memory.stat", [self._prefix + name for name in _RECLAIMABLE])
        return max(0, usage - sum(statistics.values()))

    def _number(self, name: str) -> int | None:
        try:
            return int((self._folder / name).read_text())
        except (OSError, ValueError):  # "max", or not there
            return None


@lru_cache(maxsize=1)
def _limited_groups(proc: Path, cgroups: Path, _moment: int) -> list[tuple[int, _Group]]:
    """The groups that have a limit, with it; what each holds changes all the time, the limits hardly ever."""
    return [(limit, group) for group in _groups(proc, cgroups) if (limit := group.limit()) is not None]


def _groups(proc: Path, cgroups: Path) -> Iterator[_Group]:
    """The control groups this process is in, each with all above it."""
    for line in _lines(proc / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for mount in (cgroups, cgroups / "unified"):
                for folder in _upwards(mount, path):
                    yield _Group(folder, ("memory.max", "memory.high"), "memory.current", "")
        elif "memory" in controllers.split(","):
            for folder in _upwards(cgroups / "memory", path):
                yield _Group(folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Folder of a group and those above it up to the mount.

    A container may see the path as the host has it, while the mount begins at its own group: what is not there below
    the mount is passed over, and the mount itself always counts.
    """
    folder = mount / path.lstrip("/")
    while folder != mount and mount in folder.parents:
        if ".." not in folder.parts and folder.is_dir():
            yield folder
        folder = folder.parent
    yield mount


def _of_the_machine(proc: Path) -> SystemMemory:
    fields = _fields(proc / "meminfo", ("MemTotal", "MemAvailable"))
    if len(fields) == 2:
        return SystemMemory(fields["MemTotal"] * _KIB, fields["MemAvailable"] * _KIB)
    import psutil  # not Linux, or a very old one

    memory = psutil.virtual_memory()
    return SystemMemory(int(memory.total), int(memory.available))


def _fields(file: Path, names: Sequence[str]) -> dict[str, int]:
    """What follows these names in lines `name value` or `name: value kB`, as far as they are there."""
    text = "\n" + _text(file)
    found = {}
    for name in names:
        match = re.search(rf"\n{name}:? +(\d+)", text)
        if match:
            found[name] = int(match[1])
    return found


def _lines(file: Path) -> list[str]:
    return [line for line in _text(file).splitlines() if line.strip()]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
