"""How long a fresh start takes: to the first answer, to the node list, and which imports cost most.

    python bench/start.py [--runs N] [--top N] [--check]

Goals on an idle machine with two cores: GET /queue within 1.0 s, GET /object_info within 6 s of the process start.
With --check a missed goal is exit status 1.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QUEUE_GOAL, OBJECT_INFO_GOAL = 1.0, 6.0  # seconds
PATIENCE = 180.0  # seconds until a start counts as failed
POLL = 0.005  # seconds


class StartFailed(RuntimeError):
    """The server ended, or did not answer in time."""


@dataclass(frozen=True)
class Start:
    """Seconds from the start of the process to the first 200 of each route."""

    queue: float
    object_info: float


@dataclass(frozen=True)
class Import:
    """One line of `-X importtime`. own: seconds without what it imports itself; total: with it."""

    module: str
    own: float
    total: float


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen, started: float) -> float:
    """Seconds from `started` until `url` answers 200. Raises StartFailed."""
    while (now := time.perf_counter()) - started < PATIENCE:
        if process.poll() is not None:
            raise StartFailed(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                answer.read()
            return time.perf_counter() - started
        except urllib.error.HTTPError as error:
            raise StartFailed(f"{url}: {error.code}") from error
        except OSError:
            time.sleep(max(0.0, POLL - (time.perf_counter() - now)))
    raise StartFailed(f"{url}: no answer in {PATIENCE:.0f} s")


def start_once(python_flags: tuple[str, ...] = ()) -> tuple[Start, str]:
    """Start the server in an empty base directory, measure, end it; also returns what it wrote to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, *python_flags, os.path.join(REPO, "main.py")]
        command += ["--cpu", "--port", str(port), "--base-directory", folder]
        errors = os.path.join(folder, "stderr")
        with open(errors, "wb") as stream:
            started = time.perf_counter()
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=stream)
            try:
                queue = wait_for(f"http://127.0.0.1:{port}/queue", process, started)
                object_info = wait_for(f"http://127.0.0.1:{port}/object_info", process, started)
            except StartFailed as error:
                with open(errors, errors="replace") as text:
                    raise StartFailed(f"{error}\n{text.read()[-3000:]}") from error
            finally:
                process.terminate()
                process.wait()
        with open(errors, errors="replace") as text:
            return Start(queue, object_info), text.read()


def parse_import_times(stderr: str) -> list[Import]:
    """The imports reported by `-X importtime`, in the order they finished. Other lines are left out."""
    found = []
    for line in stderr.splitlines():
        if not line.startswith("import time:"):
            continue
        own, total, module = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():  # the first line is the table's head
            found.append(Import(module.strip(), int(own) / 1e6, int(total) / 1e6))
    return found


def print_slowest(imports: list[Import], top: int) -> None:
    """Print the modules that themselves cost most, and the packages by the sum of their modules."""
    packages: dict[str, float] = {}
    for entry in imports:
        name = entry.module.partition(".")[0]
        packages[name] = packages.get(name, 0.0) + entry.own
    print(f"\nslowest imports, {len(imports)} modules, {sum(i.own for i in imports):.2f} s under importtime")
    print(f"{'own ms':>8} {'total ms':>9}  module")
    for entry in sorted(imports, key=lambda i: i.own, reverse=True)[:top]:
        print(f"{entry.own * 1e3:8.1f} {entry.total * 1e3:9.1f}  {entry.module}")
    print(f"\n{'ms':>8}  package")
    for name, seconds in sorted(packages.items(), key=lambda item: item[1], reverse=True)[:top]:
        print(f"{seconds * 1e3:8.1f}  {name}")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure how long the server takes to start.")
    parser.add_argument("--runs", type=int, default=5, help="starts to take the median of (%(default)s)")
    parser.add_argument("--top", type=int, default=15, help="slowest imports to list (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    args = parser.parse_args()
    try:
        start_once()  # fills the file cache and the byte code cache
        starts = [start_once()[0] for _ in range(max(1, args.runs))]
        _, stderr = start_once(("-X", "importtime"))
    except StartFailed as error:
        print(f"the server did not start: {error}", file=sys.stderr)
        return 1
    missed = False
    for name, goal, values in (
        ("/queue", QUEUE_GOAL, [s.queue for s in starts]),
        ("/object_info", OBJECT_INFO_GOAL, [s.object_info for s in starts]),
    ):
        median = statistics.median(values)
        missed |= median > goal
        print(f"{name:14} median {median:.2f} s  (goal {goal:.1f} s; {min(values):.2f} … {max(values):.2f})")
    print_slowest(parse_import_times(stderr), args.top)
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
