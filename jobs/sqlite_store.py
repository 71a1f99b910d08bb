"""The SQLite store: one file in WAL mode, or memory; one process per file."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import orjson

from comfy_execution import jsonbytes
from jobs import listing, schema
from jobs.file_lock import FileLock
from jobs.job import Attempt, Job
from jobs.store import Change, Payload, Query, Row, StoreUnavailable

log = logging.getLogger(__name__)

MEMORY = ":memory:"
_LOCKED_SECONDS = 2.0  # how long to wait for another program that has locked the file
_IDLE_READERS = 4  # connections that are kept for the next reader
_AT_ONCE = 500  # ids per statement
_REMEMBERED = "remembered "  # what keys of `remember` begin with in the table

_COLUMNS = (
    "id, state, number, place, created, client_id, workflow_id, batch_id, counter, digest, answer, "
    "attempts, reason, detail, actor, duration, ended, card"
)
_INSERT = f"INSERT INTO jobs ({_COLUMNS}) VALUES ({', '.join('?' * 18)})"
_UPDATE = (
    "UPDATE jobs SET state = ?, number = ?, place = ?, attempts = ?, reason = ?, detail = ?, actor = ?, duration = ?, "
    "ended = ?, card = ? WHERE id = ?"
)
_ENDED = "state IN ('completed', 'failed', 'cancelled')"

_OUR_FAULT = (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError, sqlite3.IntegrityError)

T = TypeVar("T")


def _guarded(method: Callable[..., T]) -> Callable[..., T]:
    """Turn the errors of a store that does not work into ours, naming it; those of our own making stay as they are."""

    @functools.wraps(method)
    def call(self: SqliteStore, *arguments: Any) -> T:
        try:
            return method(self, *arguments)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # the last: names in a damaged file
            if isinstance(error, _OUR_FAULT) and "closed" not in str(error):
                raise
            raise StoreUnavailable(f"the job store {self.name} does not work: {error}") from error

    return call


class SqliteStore:
    """A `jobs.store.JobStore` in a file, which is made if it is not there, or in memory (path ":memory:").

    Raises:
        StoreUnavailable: it cannot be opened and written, another process has it, or it is of a newer version.
    """

    def __init__(self, path: str) -> None:
        self.persistent = path != MEMORY
        self.name = path if self.persistent else "memory"
        self.trouble: str | None = None
        # One lock for a file, whatever links lead to it.
        self._path = os.path.realpath(path) if self.persistent else path
        self._files: dict[str, os.stat_result] = {}  # those in use, once it is open
        self._lost = False  # they are not where they were
        self._lock = threading.RLock()  # of the writing connection; in memory, of the only one
        self._lock_readers = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._file_lock: FileLock | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @_guarded
    def _open(self) -> None:
        if self.persistent:
            os.makedirs(os.path.dirname(os.path.abspath(self._path)), exist_ok=True)
            self._file_lock = FileLock(self._path + ".lock")
            if not self._file_lock.taken:
                raise StoreUnavailable(f"the job store {self.name} belongs to another server that runs")
        self._writer = self._connect()
        schema.migrate(self._writer, self._path)
        with self._transaction() as connection:  # finds out now whether it can be written
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('opened', datetime('now'))")
        self._counts = self._stored_counts()
        self._kept = self._writer.execute("SELECT ifnull(max(kept), 0) FROM jobs WHERE kept IS NOT NULL").fetchone()[0]
        if self.persistent:
            self._files = {path: os.stat(path) for path in (self._path, self._path + "-wal")}

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_LOCKED_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.text_factory = _readable
        try:
            connection.execute("PRAGMA page_size = 8192")  # fewer pages per prompt; has a meaning for new files only
            if self.persistent:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise

    def check(self) -> None:
        """See JobStore. SQLite itself would go on with a file that has been removed, and lose everything at the end."""
        for path, opened in self._files.items():
            try:
                if not self._lost and os.path.samestat(opened, os.stat(path)):
                    continue
            except FileNotFoundError:
                pass
            except OSError:
                continue  # out of reach just now: whoever writes will see
            self._lost = True  # for good: what is at its place by now may be anything
            raise StoreUnavailable(
                f"the job store {self.name} does not work: {path} was removed or replaced while the server used it"
            )

    def _has_lost_its_file(self) -> bool:
        try:
            self.check()
        except StoreUnavailable:
            return True
        return False

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._connection_to_read() as connection:
                yield connection
        except sqlite3.Error as error:
            if not isinstance(error, _OUR_FAULT):
                self.trouble = f"the job store {self.name} cannot be read: {error}"
            raise
        self.trouble = None

    @contextlib.contextmanager
    def _connection_to_read(self) -> Iterator[sqlite3.Connection]:
        if not self.persistent or self._has_lost_its_file():
            with self._lock:  # of a file that is gone, the connection that writes still has everything
                yield self._writer
            return
        with self._lock_readers:
            connection = self._readers.pop() if self._readers else None
        connection = connection or self._connect()
        try:
            yield connection
        finally:
            with self._lock_readers:
                keep = len(self._readers) < _IDLE_READERS
                if keep:
                    self._readers.append(connection)
            if not keep:
                connection.close()

    # --- writing -------------------------------------------------------------------------------------------

    @_guarded
    def apply(self, changes: Sequence[Change]) -> None:
        """See JobStore."""
        self.check()
        with self._lock:
            counts, kept = self._counts.copy(), self._kept
            try:
                with self._transaction() as connection:
                    for name, arguments in changes:
                        getattr(self, "_" + name)(connection, *arguments)
                    self._store_counts(connection)
            except BaseException:
                self._counts, self._kept = counts, kept
                raise

    def _stored_counts(self) -> Counter[str]:
        """What `_store_counts` has stored; counted if that is missing or damaged."""
        found = self._writer.execute("SELECT value FROM meta WHERE key = 'counts'").fetchone()
        try:
            counts = orjson.loads(found[0]) if found else None
        except (ValueError, TypeError):
            counts = None
        if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
            counts = dict(self._writer.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        return Counter(counts)

    def _store_counts(self, connection: sqlite3.Connection) -> None:
        """Counting a million jobs at the next start would take seconds."""
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('counts', ?)", (orjson.dumps(self._counts),))

    def _insert(self, connection: sqlite3.Connection, job: Job, entry: bytes) -> None:
        row = (
            job.id,
            job.state,
            job.number,
            job.place,
            job.created,
            job.client_id,
            job.workflow_id,
            job.batch_id,
            job.counter,
            job.digest,
            job.answer,
            *_later(job)[3:],
        )
        try:
            seq = connection.execute(_INSERT, row).lastrowid
        except sqlite3.IntegrityError:  # the id is used again
            self._forget(connection, [job.id])
            seq = connection.execute(_INSERT, row).lastrowid
        connection.execute("INSERT INTO payloads VALUES (?, ?, NULL)", (seq, entry))
        self._counts[job.state] += 1

    def _adopt(self, connection: sqlite3.Connection, job: Job, entry: bytes) -> None:
        if connection.execute("SELECT 1 FROM jobs WHERE id = ?", (job.id,)).fetchone() is None:
            self._insert(connection, job, entry)

    def _update(self, connection: sqlite3.Connection, job: Job) -> None:
        found = connection.execute("SELECT state FROM jobs WHERE id = ?", (job.id,)).fetchone()
        if found is not None:
            connection.execute(_UPDATE, (*_later(job), job.id))
            self._counts[found[0]] -= 1
            self._counts[job.state] += 1

    def _move(self, connection: sqlite3.Connection, prompt_id: str, number: float, place: float, entry: bytes) -> None:
        connection.execute("UPDATE jobs SET number = ?, place = ? WHERE id = ?", (number, place, prompt_id))
        connection.execute(  # the row is there, unless the file is damaged
            "INSERT INTO payloads SELECT seq, ?, NULL FROM jobs WHERE id = ? "
            "ON CONFLICT (seq) DO UPDATE SET entry = excluded.entry",
            (entry, prompt_id),
        )

    def _keep(self, connection: sqlite3.Connection, prompt_id: str, result: bytes) -> None:
        self._kept += 1
        connection.execute("UPDATE jobs SET kept = ? WHERE id = ?", (self._kept, prompt_id))
        connection.execute(
            "UPDATE payloads SET result = ? WHERE seq = (SELECT seq FROM jobs WHERE id = ?)", (result, prompt_id)
        )

    def _unkeep(self, connection: sqlite3.Connection, prompt_id: str) -> None:
        connection.execute("UPDATE jobs SET kept = NULL WHERE id = ?", (prompt_id,))
        connection.execute(
            "UPDATE payloads SET result = NULL WHERE seq = (SELECT seq FROM jobs WHERE id = ?)", (prompt_id,)
        )

    def _forget(self, connection: sqlite3.Connection, prompt_ids: Sequence[str]) -> None:
        for start in range(0, len(prompt_ids), _AT_ONCE):
            part = prompt_ids[start : start + _AT_ONCE]
            marks = _marks(part)
            found = connection.execute(f"SELECT seq, state FROM jobs WHERE id IN ({marks})", part).fetchall()
            if found:
                self._delete(connection, found)

    def _remember(self, connection: sqlite3.Connection, key: str, value: int | str) -> None:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_REMEMBERED + key, value))

    def _forget_ended(self, connection: sqlite3.Connection) -> None:
        self._delete(connection, connection.execute(f"SELECT seq, state FROM jobs WHERE {_ENDED}").fetchall())

    def _delete(self, connection: sqlite3.Connection, found: Sequence[tuple[int, str]]) -> None:
        seqs = [(seq,) for seq, _ in found]
        connection.executemany("DELETE FROM payloads WHERE seq = ?", seqs)
        connection.executemany("DELETE FROM jobs WHERE seq = ?", seqs)
        self._counts.subtract(Counter(state for _, state in found))

    def copy_from(self, other: SqliteStore, ended: int) -> None:
        """Take over the jobs of another store: all that wait, and the newest that have ended."""
        newest = Query(("completed", "failed", "cancelled"), limit=ended)
        ids = [row.id for row in reversed(other.page(newest))]
        history = other.history_ids(ended)
        waiting = list(other.waiting())
        found = other.payloads([*ids, *history])
        changes = []
        for ident in ids:
            job = other.job(ident)
            if job is not None and ident in found:
                changes.append(Change("insert", (job, found[ident].entry)))
        changes += [Change("insert", (job, entry)) for job, entry in waiting]
        changes += [
            Change("keep", (ident, found[ident].result))
            for ident in history
            if ident in found and found[ident].result is not None
        ]
        self.apply(changes)

    # --- reading -------------------------------------------------------------------------------------------

    @_guarded
    def job(self, prompt_id: str) -> Job | None:
        """See JobStore."""
        with self._reader() as connection:
            row = connection.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (_text(prompt_id),)).fetchone()
        return None if row is None else _job(row)

    @_guarded
    def payloads(self, prompt_ids: Sequence[str]) -> dict[str, Payload]:
        """See JobStore."""
        found = {}
        with self._reader() as connection:
            for start in range(0, len(prompt_ids), _AT_ONCE):
                part = [_text(ident) for ident in prompt_ids[start : start + _AT_ONCE]]
                rows = connection.execute(
                    f"SELECT id, entry, result FROM jobs JOIN payloads USING (seq) WHERE id IN ({_marks(part)})", part
                )
                found.update((row[0], Payload(*row)) for row in rows)
        return found

    @_guarded
    def waiting(self) -> Iterator[tuple[Job, bytes]]:
        """See JobStore."""
        columns = ", ".join("jobs." + name for name in _COLUMNS.split(", "))
        with self._reader() as connection:
            rows = connection.execute(
                f"SELECT {columns}, ifnull(entry, x'') FROM jobs LEFT JOIN payloads USING (seq) "
                "WHERE state IN ('pending', 'in_progress') ORDER BY number, place"
            ).fetchall()
        return ((_job(row[:-1]), row[-1]) for row in rows)

    @_guarded
    def history_ids(self, limit: int) -> list[str]:
        """See JobStore."""
        with self._reader() as connection:
            rows = connection.execute(
                "SELECT id FROM jobs WHERE kept IS NOT NULL ORDER BY kept DESC LIMIT ?", (limit,)
            ).fetchall()
        return [row[0] for row in reversed(rows)]

    @_guarded
    def page(self, query: Query) -> list[Row]:
        """See JobStore."""
        statement, values = listing.page(query)
        with self._reader() as connection:
            return [Row(*row) for row in connection.execute(statement, values)]

    @_guarded
    def total(self, query: Query) -> int:
        """See JobStore."""
        if listing.is_plain(query):
            counts = self.counts()
            return sum(counts.get(state, 0) for state in set(query.states))
        statement, values = listing.total(query)
        with self._reader() as connection:
            return connection.execute(statement, values).fetchone()[0]

    @_guarded
    def recall(self, key: str) -> Any:
        """See JobStore."""
        with self._reader() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (_REMEMBERED + key,)).fetchone()
        return None if row is None else row[0]

    @_guarded
    def outdated(self, before: int | None, keep: int | None, at_most: int) -> list[str]:
        """See JobStore."""
        ended = sum(self.counts().get(state, 0) for state in ("completed", "failed", "cancelled"))
        beyond = 0 if keep is None else max(0, ended - keep)
        with self._reader() as connection:
            rows = connection.execute(
                f"SELECT id FROM (SELECT id, ended, row_number() OVER (ORDER BY ended) AS n "
                f"FROM (SELECT * FROM jobs WHERE ended IS NOT NULL AND {_ENDED} ORDER BY ended LIMIT ?)) "
                "WHERE ended < ? OR n <= ?",
                (at_most, -1 if before is None else max(-1, before), beyond),
            ).fetchall()
        return [row[0] for row in rows]

    def counts(self) -> dict[str, int]:
        """See JobStore."""
        with self._lock:
            return {state: count for state, count in self._counts.items() if count}

    @_guarded
    def last_counter(self) -> int | None:
        """See JobStore."""
        with self._reader() as connection:
            row = connection.execute(
                "SELECT counter FROM jobs WHERE counter IS NOT NULL ORDER BY seq DESC LIMIT 1"
            ).fetchone()
        return None if row is None else row[0]

    @_guarded
    def close(self) -> None:
        """See JobStore."""
        with self._lock, self._lock_readers:
            connections, self._readers = self._readers, []
            if hasattr(self, "_writer"):
                connections.append(self._writer)
            for connection in connections:
                connection.close()
        if self._file_lock is not None:
            self._file_lock.release()


def _readable(text: bytes) -> str:
    """Text of the file. Where that is damaged, one job must not keep all others from being read."""
    return text.decode("utf-8", "replace")


def _text(value: str) -> str:
    """A text as SQLite can hold it: with question marks for halves of characters. No id has any."""
    return value.encode("utf-8", "replace").decode()


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _later(job: Job) -> tuple[Any, ...]:
    """The columns of `_UPDATE`."""
    return (
        job.state,
        job.number,
        job.place,
        jsonbytes.encode([attempt.shown() for attempt in job.attempts]).decode() if job.attempts else "[]",
        job.reason,
        None if job.detail is None else _text(job.detail),  # names of files may be no text
        None if job.by is None else jsonbytes.encode(job.by).decode(),
        job.duration,
        job.ended,
        job.card,
    )


def _attempts(prompt_id: str, text: str) -> list[Attempt]:
    try:
        return [Attempt.read(shown) for shown in jsonbytes.decode(text)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # a file may be damaged anywhere
        log.error("the attempts at job %s cannot be read: %s", prompt_id, error)
        return []


def _actor(prompt_id: str, text: str | None) -> dict[str, str] | None:
    try:
        return None if text is None else dict(jsonbytes.decode(text))
    except (ValueError, TypeError) as error:
        log.error("who cancelled job %s cannot be read: %s", prompt_id, error)
        return None


def _number(value: Any) -> Any:
    """A number as it is; 0 in place of what a damaged file has there."""
    return value if isinstance(value, int | float) else 0


def _job(row: Sequence[Any]) -> Job:
    (ident, state, number, place, created, client_id, workflow_id, batch_id, counter, digest, answer) = row[:11]
    attempts, reason, detail, actor, duration, ended, card = row[11:]
    return Job(
        ident,
        state,
        _number(number),
        _number(place),
        _number(created),
        client_id,
        workflow_id,
        batch_id,
        attempts=_attempts(ident, attempts),
        reason=reason,
        detail=detail,
        by=_actor(ident, actor),
        counter=counter,
        digest=digest,
        answer=answer,
        duration=_number(duration),
        ended=ended,
        card=card,
    )
