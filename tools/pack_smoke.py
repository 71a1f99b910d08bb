"""Loads custom node packs in a server process and says of each whether that works.

    python tools/pack_smoke.py DIR...

Each DIR is a pack: a folder with `__init__.py`, or one Python file. A server is started on a free port with a base
directory of its own in which only these packs are; the models and settings of this checkout are not touched. Printed
is one line per pack: the number of nodes, the time, and the error of one that fails. The exit status is 0 if all
load, 1 if one does not, 2 if the server does not start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
ALL_LOADED, SOME_FAILED, NO_SERVER = 0, 1, 2
START_SECONDS = 180.0  # torch and the built-in nodes, on a loaded machine
STOP_SECONDS = 10.0


class NoServer(RuntimeError):
    """The server did not start; the message holds the end of what it printed."""


def link_packs(packs: list[Path], folder: Path) -> dict[str, Path]:
    """Link packs into `folder`; returns their names there. Raises ValueError for one that is none, or twice there."""
    folder.mkdir(parents=True)
    names: dict[str, Path] = {}
    for pack in packs:
        if not (pack.is_dir() or (pack.is_file() and pack.suffix == ".py")):
            raise ValueError(f"{pack} is neither a folder nor a Python file")
        name = pack.name if pack.is_dir() else pack.stem
        if name in names:
            raise ValueError(f"two packs are called {name}: {names[name]} and {pack}")
        names[name] = pack
        (folder / pack.name).symlink_to(pack.resolve(), target_is_directory=pack.is_dir())
    return names


@contextlib.contextmanager
def server(base: Path, flags: list[str]) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server with `base` as base directory: its URL and process. It is ended on leaving."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "main.py", "--base-directory", str(base), "--port", str(port), *flags]
    with open(base / "server.log", "wb") as log:
        process = subprocess.Popen(command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_packs(url: str, process: subprocess.Popen, seconds: float, log: Path) -> list[dict[str, Any]]:
    """What the server says about its packs once it has tried them all. Raises NoServer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url + "/api/custom_nodes", timeout=10) as answer:
                state = json.load(answer)
            if state["ready"]:
                return state["packs"]
        except (OSError, urllib.error.URLError):
            pass
        if process.poll() is not None:
            reason = f"the server ended with status {process.returncode}"
        elif time.monotonic() > deadline:
            reason = f"the nodes were not ready after {seconds:.0f} s"
        else:
            time.sleep(0.2)
            continue
        raise NoServer(f"{reason}:\n{log.read_text(errors='replace')[-4000:]}")


def line_of(pack: dict[str, Any]) -> str:
    """One line about a pack."""
    outcome = f"{pack['node_count']} nodes" if pack["loaded"] else f"{pack['state'].upper()}: {pack['error']}"
    version = f" {pack['version']}" if pack["version"] else ""
    return f"{pack['name']}{version}: {outcome} ({pack['seconds']:.1f} s)"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", nargs="+", type=Path, metavar="DIR", help="a pack: a folder, or a Python file")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="limit per pack (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="print the server's log, too")
    parser.add_argument("--gpu", action="store_true", help="let the packs see the GPU")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pack-smoke-") as folder:
        base = Path(folder)
        try:
            names = link_packs(options.packs, base / "custom_nodes")
        except ValueError as error:
            parser.error(str(error))
        flags = ["--custom-node-timeout", str(options.timeout), *([] if options.gpu else ["--cpu"])]
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        log = base / "server.log"
        try:
            with server(base, flags) as (url, process):
                limit = START_SECONDS + options.timeout * len(names)
                found = {pack["name"]: pack for pack in wait_for_packs(url, process, limit, log)}
        except NoServer as error:
            print(error, file=sys.stderr)
            return NO_SERVER
        if options.verbose:
            print(log.read_text(errors="replace"), file=sys.stderr)
    for name in names:
        print(line_of(found[name]) if name in found else f"{name}: the server has not looked at it")
    return ALL_LOADED if all(name in found and found[name]["loaded"] for name in names) else SOME_FAILED


if __name__ == "__main__":
    sys.exit(main())
