"""A store that cannot be used: the server goes on from memory and says so; and comes back to the disk if it can."""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest

import folder_paths
from comfy_execution.prompt_queue import PromptQueue
from jobs import schema
from jobs.fallback import RETRY_SECONDS, FallbackStore
from jobs.ledger import Ledger
from jobs.opening import open_ledger, store_path
from jobs.recovery import recover
from jobs.retention import Retention, Rule
from jobs.sqlite_store import MEMORY, SqliteStore
from jobs.store import Change, Query, StoreUnavailable

STATES = ("pending", "in_progress", "completed", "failed", "cancelled")


def arguments(url, **changed):
    values = {"database_url": url, "no_persistence": False, "history_size": 10, "keep_history": "30d"}
    return types.SimpleNamespace(**{**values, **changed})


def missing_folder(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "sub" / "x.db"  # the folder cannot be made: a file is in the way


def directory_in_its_place(tmp_path):
    (tmp_path / "x.jobs.db").mkdir()
    return tmp_path / "x.db"


def damaged(tmp_path):
    (tmp_path / "x.jobs.db").write_text("this is no database, only text" * 200)
    return tmp_path / "x.db"


def damaged_inside(tmp_path):
    SqliteStore(str(tmp_path / "x.jobs.db")).close()
    content = bytearray((tmp_path / "x.jobs.db").read_bytes())
    content[200:8192] = b"\xff" * (8192 - 200)
    (tmp_path / "x.jobs.db").write_bytes(content)
    return tmp_path / "x.db"


def newer(tmp_path):
    SqliteStore(str(tmp_path / "x.jobs.db")).close()
    with sqlite3.connect(tmp_path / "x.jobs.db") as connection:
        connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    return tmp_path / "x.db"


def somebody_elses(tmp_path):
    with sqlite3.connect(tmp_path / "x.jobs.db") as connection:
        connection.execute("CREATE TABLE recipes (name)")
    return tmp_path / "x.db"


TROUBLE = {
    missing_folder: "x.jobs.db",
    directory_in_its_place: "unable to open",
    damaged: "not a database",
    damaged_inside: "malformed",
    newer: "newer version",
    somebody_elses: "another program",
}


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
def test_the_server_starts_and_prompts_run_from_memory(tmp_path, trouble, caplog):
    ledger = open_ledger(arguments(f"sqlite:///{trouble(tmp_path)}"))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)
    health = ledger.health()
    assert health["state"] == "degraded" and not health["persistent"] and health["store"] == "memory"
    assert TROUBLE[trouble] in health["problem"] and "x.jobs.db" in health["problem"]
    assert health["problem"] in caplog.text
    queue.put((1, "a", {}, {}, ["1"]))
    queue.finish(queue.get(0)[1], {"outputs": {}}, ("success", True, []))
    assert ledger.find("a").state == "completed" and "a" in queue.history
    assert [row.id for row in ledger.page(Query(STATES))] == ["a"]
    ledger.close()


@pytest.mark.parametrize("part", range(1, 10))
def test_a_file_that_is_damaged_somewhere(tmp_path, part):
    path = tmp_path / "x.jobs.db"
    ledger = open_ledger(arguments(f"sqlite:///{tmp_path}/x.db"))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)
    for number in range(60):
        queue.put((number, f"p{number}", {"1": {"text": "x" * 3000}}, {}, ["1"]))
    ledger.close()
    content = bytearray(path.read_bytes())
    start = len(content) * part // 10
    content[start : start + 9000] = b"\xa5" * len(content[start : start + 9000])
    path.write_bytes(content)
    ledger = open_ledger(arguments(f"sqlite:///{tmp_path}/x.db"))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)
    ledger.next_number()
    recover(ledger, queue)
    queue.put((-1, "new", {}, {}, ["1"]))
    task = queue.get(0)
    assert task[0].prompt_id == "new"
    queue.finish(task[1], {"outputs": {}}, ("success", True, []))
    assert ledger.find("new").state == "completed"
    assert "new" in json.loads(queue.history_json("new"))
    ledger.close()


@pytest.mark.parametrize(
    "damage, states",
    [
        ("UPDATE payloads SET entry = x'de', result = x'de' WHERE seq = 2", {"a": "completed", "b": None}),
        ("UPDATE payloads SET result = '[5' WHERE seq = 2", {"a": "completed", "b": None}),
        ("UPDATE jobs SET detail = cast(x'de' AS TEXT), client_id = 'c' WHERE seq = 2", {"b": "completed"}),
        ("INSERT OR REPLACE INTO meta VALUES ('remembered counter', 'x')", {"a": "completed", "b": "completed"}),
    ],
)
def test_what_is_damaged_of_one_job_is_no_matter_of_others(tmp_path, damage, states):
    path = f"sqlite:///{tmp_path}/x.db"
    for start in range(2):
        ledger = open_ledger(arguments(path))
        queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
        ledger.attach(queue)
        if start == 0:
            for prompt_id in "ab":
                queue.put((1, prompt_id, {}, {"client_id": "c"}, ["1"]))
                queue.finish(queue.get(0)[1], {"outputs": {}}, ("success", True, []))
            ledger.close()
            with sqlite3.connect(tmp_path / "x.jobs.db") as connection:
                connection.execute(damage)
    assert ledger.next_number() == 0 and recover(ledger, queue) == 0
    assert len(ledger.page(Query(STATES))) == 2 and ledger.health()["state"] == "ok"
    for prompt_id, state in states.items():
        if state is None:
            for look in (ledger.shown, queue.history.get):
                with pytest.raises(StoreUnavailable, match=f"job {prompt_id} is damaged"):
                    look(prompt_id)
        else:
            assert ledger.shown(prompt_id)["status"] == state
    ended = [row.id for row, _ in ledger.ended_of("c", 10)]
    assert ended == [prompt_id for prompt_id in "ab" if states.get(prompt_id, "completed")]
    ledger.close()


# Rights mean nothing to root, as which tests may run: a process of its own gives its rights up and tries.
WITHOUT_RIGHTS = """
import json, os, sys, types
from comfy_execution.prompt_queue import PromptQueue
from jobs.opening import open_ledger
from jobs.recovery import recover
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
ledger = open_ledger(types.SimpleNamespace(
    database_url=sys.argv[1], no_persistence=False, history_size=10, keep_history="30d"))
queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
ledger.attach(queue)
ledger.next_number()
recover(ledger, queue)
queue.put((1, "new", {}, {}, ["1"]))
queue.finish(queue.get(0)[1], {"outputs": {}}, ("success", True, []))
print(json.dumps([ledger.health(), ledger.find("new").state, list(queue.history)]))
ledger.close()
"""


@pytest.fixture
def open_folder():
    """A folder that everybody may look into; those of pytest are its user's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


@pytest.mark.parametrize(
    "rights",
    [{"x.jobs.db": 0o444}, {"x.jobs.db.lock": 0o444}, {"x.jobs.db": 0o000}, {".": 0o555}, {".": 0o000}],
    ids=str,
)
def test_a_file_that_may_not_be_written(open_folder, rights):
    path = open_folder / "x.jobs.db"
    ledger = open_ledger(arguments(f"sqlite:///{open_folder}/x.db"))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)
    queue.put((1, "old", {}, {}, ["1"]))
    ledger.close()
    for file in open_folder.iterdir():
        file.chmod(0o666)
    before = path.read_bytes()
    for name, mode in rights.items():
        (open_folder / name).chmod(mode)
    command = [sys.executable, "-c", WITHOUT_RIGHTS, f"sqlite:///{open_folder}/x.db"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    health, state, history = json.loads(found.stdout)
    assert health["state"] == "degraded" and not health["persistent"] and health["store"] == "memory"
    assert "x.jobs.db" in health["problem"] and health["problem"] in found.stderr
    assert state == "completed" and history == ["new"]
    open_folder.chmod(0o755)
    path.chmod(0o644)
    assert path.read_bytes() == before


def test_a_locked_file(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.sqlite_store._LOCKED_SECONDS", 0.05)
    SqliteStore(str(tmp_path / "x.jobs.db")).close()
    with sqlite3.connect(tmp_path / "x.jobs.db", isolation_level=None) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        ledger = open_ledger(arguments(f"sqlite:///{tmp_path}/x.db"))
        assert "locked" in ledger.health()["problem"]
        ledger.close()
        other.execute("COMMIT")


def test_the_second_server_does_not_take_the_firsts_jobs(tmp_path):
    program = (
        "import sys; from jobs.sqlite_store import SqliteStore\n"
        f"store = SqliteStore({str(tmp_path / 'x.jobs.db')!r}); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "open\n"
        ledger = open_ledger(arguments(f"sqlite:///{tmp_path}/x.db"))
        assert "belongs to another server that runs" in ledger.health()["problem"]
        assert list(ledger.store.waiting()) == []
        ledger.close()
        first.stdin.close()
    ledger = open_ledger(arguments(f"sqlite:///{tmp_path}/x.db"))
    assert ledger.health()["state"] == "ok"
    ledger.close()


class FullDisk(SqliteStore):
    """A store whose disk can be full."""

    full = False

    def apply(self, changes):
        if self.full:
            raise StoreUnavailable("database or disk is full")
        super().apply(changes)


def test_a_disk_that_is_full_for_a_while(path):
    now = [0.0]
    disk = FullDisk(str(path))
    ledger = Ledger(FallbackStore(disk, clock=lambda: now[0]))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)

    def run(prompt_id):
        queue.put((1, prompt_id, {}, {}, ["1"]))
        queue.finish(queue.get(0)[1], {"outputs": {"1": {"text": [prompt_id]}}}, ("success", True, []))
        assert ledger.settle()

    run("before")
    disk.full = True
    run("meanwhile")
    assert ledger.health()["state"] == "degraded" and "full" in ledger.health()["problem"]
    assert {row.id for row in ledger.page(Query(STATES))} == {"before", "meanwhile"}
    assert queue.history["before"]["outputs"] == {"1": {"text": ["before"]}}
    disk.full = False
    run("later")  # too early for another try
    assert not ledger.store.persistent
    now[0] += RETRY_SECONDS
    run("after")
    assert ledger.health()["state"] == "ok" and ledger.store.persistent
    ledger.close()
    again = SqliteStore(str(path))
    assert again.history_ids(10) == ["before", "meanwhile", "later", "after"]
    assert again.counts() == {"completed": 4}
    again.close()


def test_memory_is_bounded_while_the_disk_is_away(path):
    disk = FullDisk(str(path))
    ledger = Ledger(FallbackStore(disk), history_size=5, retention=Retention(Rule()))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)
    disk.full = True
    for number in range(20):
        queue.put((1, str(number), {}, {}, ["1"]))
        queue.finish(queue.get(0)[1], {"outputs": {}}, ("success", True, []))
    ledger.settle()
    ledger.prune()
    assert not ledger.store.persistent and ledger.store.counts() == {"completed": 5}
    disk.full = False
    ledger.close()


def test_a_change_that_cannot_be_expressed_does_not_take_others_along(live, caplog):
    life = live()
    life.put("a")
    life.queue.put((1, "half \ud800 character", {}, {}, ["1"]))
    life.put("b")
    life.ledger.settle()
    store = life.ledger.store
    assert store.persistent and life.ledger.health()["state"] == "ok"
    assert store.job("a") is not None and store.job("b") is not None and "cannot be stored" in caplog.text
    assert store.job("half \ud800 character") is None
    assert [life.take()[0] for _ in range(3)] == ["a", "half \ud800 character", "b"]


def test_a_change_that_cannot_be_expressed_does_not_keep_the_disk_away(path, caplog):
    now = [0.0]
    disk = FullDisk(str(path))
    ledger = Ledger(FallbackStore(disk, clock=lambda: now[0]))
    queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
    ledger.attach(queue)
    disk.full = True
    for prompt_id in ("a", "half \ud800 character", "b"):
        queue.put((1, prompt_id, {}, {}, ["1"]))
    assert ledger.settle() and ledger.health()["state"] == "degraded"
    disk.full = False
    now[0] += RETRY_SECONDS
    queue.put((1, "c", {}, {}, ["1"]))
    assert ledger.settle() and ledger.health()["state"] == "ok"
    assert [job.id for job, _ in disk.waiting()] == ["a", "b", "c"]
    ledger.close()


def test_a_transaction_is_all_or_nothing(path):
    store = SqliteStore(str(path))
    with pytest.raises(AttributeError):
        store.apply([Change("forget_ended", ()), Change("no_such_change", ())])
    assert store.counts() == {}
    store.apply([])
    store.close()


@pytest.mark.parametrize(
    "url, expected",
    [
        (None, "/user/jobs.db"),
        ("sqlite:////data/comfyui.db", "/data/comfyui.jobs.db"),
        ("sqlite:///data/x", "data/x.jobs.db"),
        ("sqlite:///:memory:", MEMORY),
        ("sqlite://", MEMORY),
    ],
)
def test_the_file_of_a_url(url, expected):
    assert store_path(url, "/user") == expected


def test_another_kind_of_database_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(tmp_path))
    ledger = open_ledger(arguments("postgresql://localhost/x"))
    assert "postgresql://localhost/x" in ledger.health()["problem"]
    ledger.close()


def test_no_persistence_writes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(tmp_path))
    ledger = open_ledger(arguments(None, no_persistence=True))
    assert ledger.health()["state"] == "ok" and not ledger.health()["persistent"]
    ledger.close()
    assert list(tmp_path.iterdir()) == []
