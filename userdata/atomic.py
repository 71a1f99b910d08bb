"""Files that are replaced as a whole: a reader sees the old or the new content, never half of it."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from typing import Any

from folder_paths import make_folders
from protocol import InvalidJson, from_json

log = logging.getLogger(__name__)

# Asking for the mask means setting it, so this is done once, before there are threads.
_UMASK = os.umask(0)
os.umask(_UMASK)
FILE_MODE = 0o666 & ~_UMASK  # of a new file; temporary files are made for the owner only


def write_atomic(path: str, data: bytes, overwrite: bool = True) -> None:
    """Write `data` beside `path`, then move it there; folders are made.

    Raises FileExistsError when `overwrite` is false and the file exists, also if it appears meanwhile.
    """
    folder = os.path.dirname(path)
    make_folders(folder)
    handle, temporary = tempfile.mkstemp(prefix=".tmp-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, FILE_MODE)
        move_into_place(temporary, path, overwrite)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def move_into_place(source: str, target: str, overwrite: bool) -> None:
    """Rename within one file system; without `overwrite` an existing target is left alone (FileExistsError)."""
    if overwrite:
        os.replace(source, target)
        return
    try:
        os.link(source, target)  # fails, atomically, if the target exists
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.exists(target):
            raise FileExistsError(target) from None
        os.rename(source, target)
        return
    os.unlink(source)


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object in a file; `{}` if there is none. A damaged file is put aside, not overwritten."""
    try:
        with open(path, "rb") as stream:
            value = from_json(stream.read())
        if isinstance(value, dict):
            return value
        problem: object = f"expected an object, found {type(value).__name__}"
    except FileNotFoundError:
        return {}
    except InvalidJson as error:
        problem = error
    backup = f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        os.replace(path, backup)
        log.error("%s is damaged (%s); it is kept as %s", path, problem, os.path.basename(backup))
    except OSError as error:
        log.error("%s is damaged (%s) and cannot be put aside: %s", path, problem, error)
    return {}


def write_json(path: str, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=4).encode())
