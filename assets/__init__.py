"""Assets: files known by content and by name, with tags and metadata, in a SQLite database (http-api.md section 12).

Switched on by `--enable-assets`. A file's content (its BLAKE3 hash) and the references to it are separate: deleting a
reference leaves the file.
"""

from __future__ import annotations

import threading

from assets.errors import AssetError
from assets.store import AssetStore

__all__ = ["AssetError", "AssetStore", "enabled", "store"]

_store: AssetStore | None = None
_lock = threading.Lock()


def enabled() -> bool:
    """Whether the command line has switched assets on."""
    from comfy.cli_args import args

    return bool(args.enable_assets)


def store() -> AssetStore:
    """The store of this process, opened at the first call. Raises `assets.database.DatabaseUnavailable`."""
    global _store
    with _lock:
        if _store is None:
            from assets.database import Database, default_path

            _store = AssetStore(Database(default_path()))
        return _store
