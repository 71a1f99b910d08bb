"""A queue with a ledger over a store in a file, and ways to use it as a server would."""

from __future__ import annotations

import types

import pytest

from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue
from jobs.ledger import Ledger
from jobs.recovery import recover
from jobs.sqlite_store import SqliteStore
from tests.jobs.control_kit import serving
from tests.server.conftest import base, flags, start

__all__ = ["base", "flags", "live", "serving", "start"]

EVENTS = {"completed": "execution_success", "failed": "execution_error", "cancelled": "execution_interrupted"}


class Life:
    """What one process has: a queue, a ledger, a store."""

    def __init__(self, path: str, on_restart: str = "resume", **options) -> None:
        self.ledger = Ledger(SqliteStore(str(path)), **options)
        self.queue = PromptQueue(types.SimpleNamespace(queue_updated=lambda: None, send_sync=lambda *event: None))
        self.ledger.attach(self.queue)
        self.next_number = self.ledger.next_number()
        recover(self.ledger, self.queue, on_restart)

    def put(self, prompt_id: str, number: float = 1, secrets=None, **extra):
        prompt = {"1": {"class_type": "Text", "inputs": {"text": prompt_id}}}
        return self.queue.put((number, prompt_id, prompt, {"create_time": 5, **extra}, ["1"], secrets or {}))

    def take(self) -> tuple[str, int]:
        entry, task_id = self.queue.get(0)
        return entry.prompt_id, task_id

    def end(self, task_id: int, state: str = "completed", outputs=None, start: int = 100, end: int = 200) -> None:
        data = {"exception_type": "ValueError", "exception_message": "bad\n"} if state == "failed" else {}
        messages = [["execution_start", {"timestamp": start}], [EVENTS[state], {**data, "timestamp": end}]]
        status = ExecutionStatus("success" if state == "completed" else "error", state == "completed", messages)
        self.queue.task_done(task_id, {"outputs": outputs or {}, "meta": {}}, status)

    def run(self, prompt_id: str, state: str = "completed", **extra) -> None:
        """Put a prompt, which is the next to run, and end it."""
        self.put(prompt_id, -1000, **extra)
        self.end(self.take()[1], state)

    def state(self, prompt_id: str) -> str | None:
        job = self.ledger.find(prompt_id)
        return None if job is None else job.state

    def waiting(self) -> list[str]:
        return [entry.prompt_id for entry in self.queue.queue]

    def stop(self) -> None:
        """Store everything and go."""
        self.ledger.close()

    def crash(self) -> None:
        """Go without a word; what was stored is all there is."""
        self.ledger.settle()
        self.ledger.store.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def live(path):
    """`live()` starts a life of the server; its options are the ledger's."""
    lives = []

    def start(on_restart: str = "resume", **options) -> Life:
        lives.append(Life(path, on_restart, **options))
        return lives[-1]

    yield start
    for life in lives:
        life.stop()
