"""Which custom node packs there are, and their prestartup scripts (spec: node-api.md, section 1).

Kept apart from the `nodes` package because prestartup scripts must run before torch is imported, and importing
`nodes` imports torch. Nothing here imports anything heavy.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import folder_paths
from comfy.cli_args import args

log = logging.getLogger(__name__)

PRESTARTUP_FILE = "prestartup_script.py"


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


# Pack path -> seconds its prestartup script took; the loader adds them to the import time it reports.
prestartup_seconds: dict[str, float] = {}


def run_prestartup_scripts() -> None:
    """Run `prestartup_script.py` of every pack folder. Call before torch is imported.

    A script that raises, or calls `sys.exit`, is logged and changes nothing else.
    """
    for pack in find_packs():
        script = os.path.join(pack.path, PRESTARTUP_FILE)
        if pack.folder and os.path.isfile(script):
            start = time.perf_counter()
            _run_script(script)
            prestartup_seconds[pack.path] = time.perf_counter() - start


def _run_script(path: str) -> None:
    try:
        spec = importlib.util.spec_from_file_location(os.path.splitext(path)[0], path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        log.error("Prestartup script %s failed: %s: %s", path, type(error).__name__, error, exc_info=True)
