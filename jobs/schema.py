"""Tables of the SQLite store, and how an older file becomes a newer one."""

from __future__ import annotations

import sqlite3

from jobs.store import StoreUnavailable

# Small rows for listings, large bodies apart from them. Columns without a type keep a number as it was given: int or
# float. Times are ms since the epoch.
_FIRST = """
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,     -- order of acceptance
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    number NOT NULL,             -- lower ones run first
    place NOT NULL,              -- decides among equal numbers
    created INTEGER NOT NULL,
    client_id TEXT,
    workflow_id,
    batch_id TEXT,
    counter INTEGER,             -- the server's count, if the number came from it
    digest BLOB,                 -- of the body, if the client chose the id
    answer BLOB,                 -- JSON of what the client was told, if it chose the id
    attempts TEXT NOT NULL,      -- JSON
    reason TEXT,
    detail TEXT,
    actor TEXT,                  -- JSON: who cancelled it
    duration INTEGER NOT NULL DEFAULT 0,
    ended INTEGER,
    kept INTEGER,                -- order in the history; NULL: not part of it
    card BLOB                    -- JSON of a job that ran and ended, as listings show it
);
CREATE INDEX jobs_by_state ON jobs (state, created, seq);
CREATE INDEX jobs_by_duration ON jobs (state, duration, seq) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_client ON jobs (client_id, created, seq) WHERE client_id IS NOT NULL;
CREATE INDEX jobs_by_workflow ON jobs (workflow_id, created, seq) WHERE workflow_id IS NOT NULL;
CREATE INDEX jobs_by_batch ON jobs (batch_id, created, seq) WHERE batch_id IS NOT NULL;
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
CREATE UNIQUE INDEX jobs_in_history ON jobs (kept) WHERE kept IS NOT NULL;
CREATE TABLE payloads (
    seq INTEGER PRIMARY KEY REFERENCES jobs (seq),
    entry BLOB NOT NULL,         -- JSON: number, id, prompt, extra_data, outputs to execute
    result BLOB                  -- JSON of the history entry without its prompt
);
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
MIGRATIONS = (_FIRST,)  # the script at place n makes version n + 1 of version n
VERSION = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the file to `VERSION`, one version per transaction.

    Raises:
        StoreUnavailable: a newer program wrote it, or it is some other program's.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreUnavailable(
            f"{path} was written by a newer version of this server (layout {version}; this one knows {VERSION}): "
            "start that version, or name another file with --database-url"
        )
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise StoreUnavailable(f"{path} is the database of another program: name another file with --database-url")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
