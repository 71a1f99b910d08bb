"""One user's settings: a flat JSON object in `comfy.settings.json` (spec: http-api.md section 9)."""

from __future__ import annotations

import os
import threading
from typing import Any

from userdata.atomic import read_json_object, write_json

FILE_NAME = "comfy.settings.json"
_lock = threading.Lock()  # one writer at a time: an update reads, merges and writes


class Settings:
    """The settings in a user's folder."""

    def __init__(self, folder: str):
        self._path = os.path.join(folder, FILE_NAME)

    def all(self) -> dict[str, Any]:
        """Every setting; `{}` when there are none or the file is damaged."""
        with _lock:
            return read_json_object(self._path)

    def update(self, changes: dict[str, Any]) -> None:
        """Merge `changes` into the stored settings."""
        with _lock:
            stored = read_json_object(self._path)
            stored.update(changes)
            write_json(self._path, stored)
