"""RAM as a process in a container has it, on trees of files that look like the kernel's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comfy import system_memory as memory
from comfy.system_memory import system_memory

GB = 1024**3
NO_LIMIT_V1 = 9223372036854771712  # what version 1 says where version 2 says "max"


class Machine:
    """A tree of /proc and /sys/fs/cgroup with 64 GB of RAM, 50 GB of it available."""

    def __init__(self, root: Path, groups: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "meminfo", f"MemTotal: {64 * GB // 1024} kB\nMemAvailable: {50 * GB // 1024} kB\n")
        self.write(self.proc / "self" / "cgroup", groups)

    @staticmethod
    def write(path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def v2(self, group: str, limit: object, current: int, high: object = "max", **statistics: int) -> None:
        folder = self.cgroups / group
        self.write(folder / "memory.max", limit)
        self.write(folder / "memory.high", high)
        self.write(folder / "memory.current", current)
        self.write(folder / "memory.stat", "\n".join(f"{name} {value}" for name, value in statistics.items()))

    def v1(self, group: str, limit: int, usage: int, **statistics: int) -> None:
        folder = self.cgroups / "memory" / group
        self.write(folder / "memory.limit_in_bytes", limit)
        self.write(folder / "memory.usage_in_bytes", usage)
        self.write(folder / "memory.stat", "\n".join(f"{name} {value}" for name, value in statistics.items()))

    def read(self) -> tuple[int, int]:
        memory._limited_groups.cache_clear()  # kept for a few seconds
        return system_memory(self.proc, self.cgroups)


def test_without_groups_it_is_the_machine(tmp_path):
    assert Machine(tmp_path, "").read() == (64 * GB, 50 * GB)
    (tmp_path / "proc" / "self" / "cgroup").unlink()
    assert system_memory(tmp_path / "proc", tmp_path / "cgroup") == (64 * GB, 50 * GB)


def test_version_2(tmp_path):
    machine = Machine(tmp_path, "0::/app")
    machine.v2("app", 8 * GB, 5 * GB, anon=3 * GB, active_file=GB, inactive_file=GB // 2, slab_reclaimable=GB // 2)
    assert machine.read() == (8 * GB, 5 * GB)  # 2 of the 5 GB are files, and can be dropped


def test_version_2_as_a_container_sees_it(tmp_path):
    """The mount is the group itself; its path is that of the host, or that of the namespace."""
    for path in ("/", "/kubepods/burstable/pod1/abc", "/../../other"):
        machine = Machine(tmp_path, f"0::{path}")
        machine.v2("", 8 * GB, 3 * GB)
        assert machine.read() == (8 * GB, 5 * GB), path


def test_the_tightest_of_nested_groups(tmp_path):
    machine = Machine(tmp_path, "0::/user.slice/user-1/app")
    machine.v2("user.slice/user-1/app", 32 * GB, 2 * GB)
    machine.v2("user.slice/user-1", "max", 30 * GB)
    machine.v2("user.slice", 40 * GB, 36 * GB)
    assert machine.read() == (32 * GB, 4 * GB)


def test_a_soft_limit_counts(tmp_path):
    """Above `memory.high` a process is slowed down so much that it may as well not have the memory."""
    machine = Machine(tmp_path, "0::/app")
    machine.v2("app", 16 * GB, GB, high=4 * GB)
    assert machine.read() == (4 * GB, 3 * GB)


@pytest.mark.parametrize("group", ["app", ""])
def test_version_1(tmp_path, group):
    machine = Machine(tmp_path, "12:cpuset:/x\n4:cpu,memory:/app\n0::/init.scope")
    machine.v1(group, 8 * GB, 6 * GB, inactive_file=0, total_inactive_file=GB, total_active_file=GB)
    assert machine.read() == (8 * GB, 4 * GB)


def test_no_limit(tmp_path):
    machine = Machine(tmp_path, "4:memory:/app\n0::/app")
    machine.v1("app", NO_LIMIT_V1, 6 * GB)
    machine.v2("app", "max", 6 * GB)
    assert machine.read() == (64 * GB, 50 * GB)


def test_more_than_there_is(tmp_path):
    """A limit above what the machine has is none; a group that holds more than its limit has nothing left."""
    machine = Machine(tmp_path, "0::/app")
    machine.v2("app", 100 * GB, 5 * GB)
    assert machine.read() == (64 * GB, 50 * GB)
    machine.v2("app", 4 * GB, 5 * GB)
    assert machine.read() == (4 * GB, 0)


def test_this_machine():
    total, available = system_memory()
    assert 0 < available <= total
    code = "import sys, comfy.system_memory as m; m.system_memory(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
