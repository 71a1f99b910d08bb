"""From the command line to a ledger: which file it is, and what to do if that cannot be used."""

from __future__ import annotations

import logging
import os
from typing import Any

import folder_paths
from jobs.ledger import Ledger
from jobs.retention import Retention, Rule, parse_rule
from jobs.sqlite_store import MEMORY, SqliteStore
from jobs.store import StoreUnavailable

log = logging.getLogger(__name__)

_SCHEME = "sqlite://"


def store_path(database_url: str | None, user_directory: str) -> str:
    """The file of the jobs, or ":memory:".

    Without a URL it is jobs.db of the user directory. `sqlite:///x.db` names the database of the assets; the jobs are
    beside it in x.jobs.db, because the two are locked, migrated and backed up each in its own time.

    Raises:
        StoreUnavailable: the URL is not SQLite's.
    """
    if not database_url:
        return os.path.join(user_directory, "jobs.db")
    if not database_url.startswith(_SCHEME):
        raise StoreUnavailable(f"--database-url must start with {_SCHEME}, not {database_url!r}")
    path = database_url.removeprefix(_SCHEME).removeprefix("/")
    if path in ("", MEMORY):
        return MEMORY
    stem, extension = os.path.splitext(path)
    return f"{stem}.jobs{extension or '.db'}"


def open_ledger(args: Any) -> Ledger:
    """The ledger that the command line asks for; one in memory, which says why, if its file cannot be used."""
    rule = parse_rule(args.keep_history)
    problem = None
    try:
        path = MEMORY if args.no_persistence else store_path(args.database_url, folder_paths.get_user_directory())
        store = SqliteStore(path)
        store.history_ids(args.history_size)  # the next thing to be read
    except StoreUnavailable as error:
        problem = str(error)
        log.error("%s. The server starts all the same: queue and history are in memory, nothing survives it", problem)
        store = SqliteStore(MEMORY)
    if not store.persistent:  # memory is not for hoarding
        rule = Rule(rule.seconds, min(args.history_size, rule.count or args.history_size))
    return Ledger(store, problem, args.history_size, Retention(rule))
