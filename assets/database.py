"""The SQLite file behind the assets: opening, locking, schema."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator

import folder_paths
from comfy.cli_args import args

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE contents (
    hash TEXT PRIMARY KEY,
    path TEXT NOT NULL
);
CREATE TABLE assets (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    hash TEXT,
    path TEXT NOT NULL,
    size INTEGER NOT NULL,
    mime_type TEXT,
    user_metadata TEXT NOT NULL DEFAULT '{}',
    preview_id TEXT,
    job_id TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    last_access_time TEXT NOT NULL
);
CREATE INDEX assets_by_hash ON assets (hash);
CREATE INDEX assets_by_path ON assets (path);
CREATE INDEX assets_by_time ON assets (created_at, id);
CREATE TABLE tags (name TEXT PRIMARY KEY);
CREATE TABLE asset_tags (
    asset_id TEXT NOT NULL REFERENCES assets (id) ON DELETE CASCADE,
    tag TEXT NOT NULL,
    PRIMARY KEY (asset_id, tag)
) WITHOUT ROWID;
CREATE INDEX asset_tags_by_tag ON asset_tags (tag);
"""


class DatabaseUnavailable(Exception):
    """The file cannot be opened, or another process has it; the message names it."""


def default_path() -> str:
    """The file of `--database-url`, else `user/assets.db` of the program's folder. `:memory:` is allowed.

    Raises DatabaseUnavailable for a URL that is not SQLite's.
    """
    url = args.database_url
    if not url:
        return os.path.join(folder_paths.program_path, "user", "assets.db")
    if not url.startswith("sqlite://"):
        raise DatabaseUnavailable(f"--database-url must start with sqlite://, not {url!r}")
    path = url.removeprefix("sqlite://").removeprefix("/")
    return path or ":memory:"


class Database:
    """One connection, used by one thread at a time; one process per file."""

    def __init__(self, path: str):
        self.path = path
        self._lock = threading.RLock()
        self._lock_file = None
        if path != ":memory:":
            try:
                os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                self._take_file()
            except OSError as error:
                raise DatabaseUnavailable(f"the database {path} cannot be used: {error.strerror or error}") from error
        try:
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._create_schema()
        except sqlite3.Error as error:
            raise DatabaseUnavailable(f"the database {path} cannot be used: {error}") from error

    def _take_file(self) -> None:
        """Hold a lock beside the file for the life of the process."""
        self._lock_file = open(self.path + ".lock", "w")  # noqa: SIM115
        try:
            import fcntl
        except ImportError:  # Windows: SQLite's own locking must do
            return
        fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _create_schema(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        tables = {r[0] for r in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version == 0 and "assets" not in tables:
            self._connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise DatabaseUnavailable(f"{self.path} has another layout (version {version}); use another file")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The connection inside a transaction: committed at the end, rolled back on an exception."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file and let other processes have it."""
        with self._lock:
            self._connection.close()
        if self._lock_file is not None:
            self._lock_file.close()
