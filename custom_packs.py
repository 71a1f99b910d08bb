"""Which custom node packs there are, how each of them fares, and their prestartup scripts (spec: node-api.md,
section 1).

Kept apart from the `nodes` package because prestartup scripts must run before torch is imported, and importing
`nodes` imports torch. Nothing here imports anything heavy, so the list of packs can be shown while they load.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import folder_paths
from comfy.cli_args import args

log = logging.getLogger(__name__)

PRESTARTUP_FILE = "prestartup_script.py"

# The states of a pack.
WAITING, LOADING, LOADED, FAILED, HANGING = "waiting", "loading", "loaded", "failed", "hanging"


@dataclass(frozen=True)
class PackPath:
    """A pack found in one of the custom node folders: a folder, or one Python file.

    path: absolute path of the folder or file.
    folder: whether it is a folder.
    """

    path: str
    folder: bool

    @property
    def name(self) -> str:
        """Folder name, or file name without `.py`: the pack's name in URLs and in `python_module`."""
        base = os.path.basename(self.path)
        return base if self.folder else os.path.splitext(base)[0]


@dataclass
class PackRecord:
    """How loading one pack went.

    seconds: time spent importing, prestartup script included.
    nodes: names of the classes that were registered.
    error: "Type: message" when the pack could not be loaded, with its traceback in `details`; of a hanging pack, what
        it was doing when its time was up.
    """

    name: str
    path: str
    state: str = WAITING
    version: str | None = None
    seconds: float = 0.0
    nodes: list[str] = field(default_factory=list)
    web_directory: str | None = None
    error: str | None = None
    details: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def begin(self) -> None:
        """Its code starts to run."""
        self.state, self.error, self.details = LOADING, None, None
        self.nodes.clear()

    def loaded(self) -> None:
        """Its code has ended well, in time or late."""
        with self._lock:
            if self.state == HANGING:
                log.warning("Custom nodes %s are there at last; HTTP routes they add now are not served", self.name)
            self.state, self.error, self.details = LOADED, None, None

    def failed(self, error: BaseException) -> None:
        """Its code has raised. Call while the exception is being handled."""
        with self._lock:
            self.state, self.details = FAILED, traceback.format_exc()
            self.error = f"{type(error).__name__}: {_text(error)}"

    def give_up(self, seconds: float, doing: str, where: str) -> bool:
        """Its time is up. False if it has ended meanwhile."""
        with self._lock:
            if self.state != LOADING:
                return False
            self.state, self.seconds = HANGING, seconds
            self.error, self.details = f"{doing} has not ended after {seconds:g} s", where
            return True

    def as_dict(self) -> dict[str, Any]:
        """JSON form, without the traceback and with the name only (paths are the administrator's business)."""
        return {
            "name": self.name,
            "version": self.version,
            "state": self.state,
            "loaded": self.state == LOADED,
            "seconds": round(self.seconds, 3),
            "node_count": len(self.nodes),
            "nodes": list(self.nodes),
            "web": self.web_directory is not None,
            "error": self.error,
        }


# Pack path -> record, in the order of loading.
PACKS: dict[str, PackRecord] = {}


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the words of an exception are a pack's code, too
        return "(an exception that cannot be shown)"


def record_of(pack: PackPath) -> PackRecord:
    """The record of a pack, made when it is first asked for."""
    return records_of([pack])[0]


def records_of(packs: Iterable[PackPath]) -> list[PackRecord]:
    """The records of packs; new ones are listed all at once, so that nobody takes a part for the whole."""
    packs = list(packs)
    new = [pack for pack in packs if pack.path not in PACKS]
    PACKS.update({pack.path: PackRecord(pack.name, pack.path, version=project_version(pack)) for pack in new})
    return [PACKS[pack.path] for pack in packs]


def project_data(pack: PackPath) -> dict[str, Any]:
    """The contents of a pack's pyproject.toml; empty without one. A broken file is logged."""
    file = os.path.join(pack.path, "pyproject.toml")
    if not pack.folder or not os.path.isfile(file):
        return {}
    try:
        import tomllib  # Python 3.11 and later
    except ModuleNotFoundError:
        log.warning("Ignoring %s: this Python cannot read TOML", file)
        return {}
    try:
        with open(file, "rb") as f:
            return tomllib.load(f)
    except (OSError, ValueError) as error:
        log.warning("Ignoring %s: %s", file, error)
        return {}


def table(data: Any, *names: str) -> Any:
    """The value below nested tables; None where one of them is missing or no table."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def project_version(pack: PackPath) -> str | None:
    """The version in a pack's pyproject.toml, if it has one."""
    version = table(project_data(pack), "project", "version")
    return version if isinstance(version, str) else None


def find_packs() -> Iterator[PackPath]:
    """All packs that the command line allows, in directory order.

    Left out: `__pycache__`, hidden entries of version control, files that are no Python files, names ending in
    `.disabled`, and with `--disable-all-custom-nodes` everything that `--whitelist-custom-nodes` does not name.
    """
    for root in folder_paths.get_folder_paths("custom_nodes"):
        try:
            names = os.listdir(root)
        except OSError:
            continue
        for name in names:
            path = os.path.join(os.path.realpath(root), name)
            is_folder = os.path.isdir(path)
            if name in ("__pycache__", ".git") or name.endswith(".disabled"):
                continue
            if not is_folder and os.path.splitext(name)[1] != ".py":
                continue
            if not _allowed(name):
                log.info("Custom nodes are switched off: %s is not loaded", name)
                continue
            yield PackPath(path, is_folder)


def _allowed(name: str) -> bool:
    if not args.disable_all_custom_nodes:
        return True
    return name in (args.whitelist_custom_nodes or [])


def run_limited(record: PackRecord, doing: str, function: Callable[[], None]) -> None:
    """Run a pack's code on a thread of its own, and wait for it no longer than `--custom-node-timeout`.

    doing: what it is, for the message. A thread that is not done goes on: it cannot be stopped, and may end yet.
    `function` sets the record's state and must not raise.
    """
    limit = args.custom_node_timeout
    thread = threading.Thread(target=function, name=f"load {record.name}", daemon=True)
    thread.start()
    thread.join(limit if limit > 0 else None)
    if not thread.is_alive():
        return
    frame = sys._current_frames().get(thread.ident)
    where = "".join(traceback.format_stack(frame)) if frame is not None else ""
    if record.give_up(limit, doing, where):
        log.error("Custom nodes %s: %s; going on without them. They are here:\n%s", record.name, record.error, where)


# Pack path -> seconds its prestartup script took; the loader adds them to the import time it reports.
prestartup_seconds: dict[str, float] = {}


def run_prestartup_scripts() -> None:
    """Run `prestartup_script.py` of every pack folder. Call before torch is imported.

    A script that raises, or calls `sys.exit`, is logged and changes nothing else. A pack whose script does not end in
    time is not loaded.
    """
    packs = list(find_packs())
    for pack, record in zip(packs, records_of(packs), strict=True):  # all are listed before the first script runs
        script = os.path.join(pack.path, PRESTARTUP_FILE)
        if pack.folder and os.path.isfile(script):
            start = time.perf_counter()
            record.begin()
            run_limited(record, PRESTARTUP_FILE, lambda record=record, script=script: _run_script(record, script))
            prestartup_seconds[pack.path] = time.perf_counter() - start


def _run_script(record: PackRecord, path: str) -> None:
    try:
        spec = importlib.util.spec_from_file_location(os.path.splitext(path)[0], path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except BaseException as error:
        log.error("Prestartup script %s failed: %s: %s", path, type(error).__name__, _text(error), exc_info=True)
    with record._lock:
        if record.state == LOADING:  # one that comes too late stays left out
            record.state = WAITING
