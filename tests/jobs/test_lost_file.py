"""The file of the jobs is removed, replaced or destroyed while the server uses it."""

import os
import sqlite3
import types

import pytest

from comfy_execution.prompt_queue import PromptQueue
from jobs.fallback import RETRY_SECONDS, FallbackStore
from jobs.ledger import Ledger
from jobs.sqlite_store import SqliteStore
from jobs.store import Query, StoreUnavailable

STATES = ("pending", "in_progress", "completed", "failed", "cancelled")


class Server:
    """A queue and a ledger with a clock of its own."""

    def __init__(self, store) -> None:
        self.now = 0.0
        self.ledger = Ledger(FallbackStore(store, clock=lambda: self.now))
        self.queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
        self.ledger.attach(self.queue)

    def put(self, prompt_id: str, number: float = 5) -> None:
        self.queue.put((number, prompt_id, {"1": {"class_type": "Text"}}, {"client_id": "c"}, ["1"]))

    def run_next(self) -> None:
        task = self.queue.get(0)
        self.queue.finish(task[1], {"outputs": {"1": {"text": [task[0].prompt_id]}}}, ("success", True, []))
        assert self.ledger.settle()

    def states(self) -> dict[str, str]:
        return {row.id: row.state for row in self.ledger.page(Query(STATES))}


@pytest.fixture
def server(path):
    server = Server(SqliteStore(str(path)))
    for prompt_id in ("ended", "runs", "waits", "waits, too"):
        server.put(prompt_id)
    server.run_next()
    yield server
    server.ledger.close()


def removed(path):
    for name in (path, f"{path}-wal", f"{path}-shm"):
        os.remove(name)


def replaced(path):
    SqliteStore(str(path.parent / "other.db")).close()
    os.replace(path.parent / "other.db", path)


def moved_with_its_folder(path):
    path.parent.rename(path.parent.parent / "elsewhere")
    path.parent.mkdir()


def log_removed(path):
    os.remove(f"{path}-wal")


def truncated(path):
    checkpoint(path)
    os.truncate(path, 0)


def overwritten(path):
    checkpoint(path)
    with open(path, "r+b") as file:
        file.write(b"\xa5" * path.stat().st_size)


def checkpoint(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.parametrize("trouble", [removed, replaced, moved_with_its_folder, log_removed, truncated, overwritten])
def test_it_is_told_and_all_jobs_are_known_in_memory(server, path, trouble, caplog):
    task = server.queue.get(0)
    assert task[0].prompt_id == "runs" and server.ledger.settle()
    trouble(path)
    server.put("new")
    assert server.ledger.settle()
    health = server.ledger.health()
    assert health["state"] == "degraded" and not health["persistent"] and str(path) in health["problem"]
    assert health["problem"] in caplog.text
    expected = {"ended": "completed", "runs": "in_progress", "waits": "pending", "waits, too": "pending"}
    assert server.states() == {**expected, "new": "pending"}
    assert server.ledger.shown("waits")["status"] == "pending"
    assert server.queue.history["ended"]["outputs"] == {"1": {"text": ["ended"]}}
    assert server.ledger.shown("ended")["outputs"] == {"1": {"text": ["ended"]}}
    server.queue.finish(task[1], {"outputs": {}}, ("success", True, []))
    server.queue.delete_queue_items(["waits"])
    server.run_next()
    assert server.states() == {**expected, "runs": "completed", "waits": "cancelled", "waits, too": "completed"} | {
        "new": "pending"
    }
    server.now += RETRY_SECONDS
    server.ledger.look_after()
    assert server.ledger.health()["state"] == "degraded"  # what is there now is not what it was


def test_a_job_that_ends_as_the_file_is_destroyed_has_ended(server, path):
    overwritten(path)
    server.run_next()
    assert not server.ledger.store.persistent
    assert server.states() == {
        **{"ended": "completed", "runs": "completed"},
        **{"waits": "pending", "waits, too": "pending"},
    }


@pytest.mark.parametrize("trouble", [removed, replaced])
def test_nobody_need_submit_anything_for_it_to_be_noticed(server, path, trouble):
    trouble(path)
    assert set(server.states()) == {"ended", "runs", "waits", "waits, too"}  # nor is the new file read
    assert trouble is replaced or not path.exists()  # nor made
    server.ledger.look_after()
    assert server.ledger.health()["state"] == "degraded"
    assert set(server.states()) == {"ended", "runs", "waits", "waits, too"}


def test_a_file_that_cannot_be_read_is_told_until_it_can(server, path):
    other = sqlite3.connect(path)
    other.execute("ALTER TABLE jobs RENAME TO mislaid")
    with pytest.raises(StoreUnavailable):
        server.states()
    health = server.ledger.health()
    assert health["state"] == "degraded" and "cannot be read: no such table" in health["problem"]
    other.execute("ALTER TABLE mislaid RENAME TO jobs")
    other.close()
    assert server.states() and server.ledger.health()["state"] == "ok"


class FullDisk(SqliteStore):
    """A store whose disk can be full."""

    full = False

    def apply(self, changes):
        if self.full:
            raise StoreUnavailable("database or disk is full")
        super().apply(changes)


def test_an_idle_server_returns_to_its_disk(path):
    disk = FullDisk(str(path))
    server = Server(disk)
    disk.full = True
    server.put("waits")
    assert server.ledger.settle() and server.ledger.health()["state"] == "degraded"
    server.now += RETRY_SECONDS
    server.ledger.look_after()
    assert server.ledger.health()["state"] == "degraded"
    disk.full = False
    server.ledger.look_after()  # too early for another try
    assert server.ledger.health()["state"] == "degraded"
    server.now += RETRY_SECONDS
    server.ledger.look_after()
    assert server.ledger.health()["state"] == "ok" and [job.id for job, _ in disk.waiting()] == ["waits"]
    server.ledger.close()


def test_a_file_has_one_server_by_whatever_name(path):
    first = SqliteStore(str(path))
    (path.parent / "linked").mkdir()
    link = path.parent / "linked" / "y.db"
    link.symlink_to(path)
    with pytest.raises(StoreUnavailable, match="belongs to another server"):
        SqliteStore(str(link))
    first.close()
    SqliteStore(str(link)).close()
