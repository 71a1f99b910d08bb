"""A server with a worker in the test's process, and nodes that wait until they are told to go on."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import uuid
from typing import Any

import pytest

import execution
from comfy.interrupt import throw_exception_if_processing_interrupted
from jobs.limits import time_limit
from jobs.retry import RetryPolicy
from tests.engine.engine_kit import node
from tests.server.conftest import Running
from workers.local import PromptWorker
from workers.watchdog import Watchdog


class Gate:
    """What holding nodes wait for, and what they did. One per test."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.runs: list[str] = []

    def enter(self, tag: str) -> None:
        self.runs.append(tag)
        self.entered.release()


gate = Gate()


@node({"tag": ("STRING", {})}, OUTPUT_NODE=True)
class Deaf:
    """Holds until the gate opens, and never looks at the interrupt flag."""

    def run(self, tag):
        gate.enter(tag)
        assert gate.open.wait(60)
        return {"ui": {"text": [tag]}}


@node({"tag": ("STRING", {})}, ["STRING"], OUTPUT_NODE=False)
class DeafInner(Deaf):
    """The same, in the middle of a graph."""

    def run(self, tag):
        return (super().run(tag)["ui"]["text"][0],)


@node({"tag": ("STRING", {})}, OUTPUT_NODE=True)
class Polite:
    """Holds until the gate opens, and looks."""

    def run(self, tag):
        gate.enter(tag)
        while not gate.open.wait(0.005):
            throw_exception_if_processing_interrupted()
        return {"ui": {"text": [tag]}}


@node({"tag": ("STRING", {})}, OUTPUT_NODE=True)
class Patient:
    """A coroutine that waits for ever."""

    async def run(self, tag):
        gate.enter(tag)
        await asyncio.sleep(3600)


@node({"tag": ("*", {})}, OUTPUT_NODE=True)
class Note:
    """Notes that it ran."""

    def run(self, tag):
        gate.enter(str(tag))
        return {"ui": {"text": [str(tag)]}}


@node({"kind": ("STRING", {}), "tag": ("STRING", {})}, OUTPUT_NODE=True)
class Fails:
    """Fails in one way or another."""

    def run(self, kind, tag):
        gate.enter(tag)
        if kind == "memory":
            raise MemoryError("no more")
        if kind == "model":
            raise FileNotFoundError(2, "no such file", "/models/x.safetensors")
        raise ValueError(kind)


CLASSES = {cls.__name__: cls for cls in (Deaf, DeafInner, Polite, Patient, Note, Fails)}


def one(class_type: str, tag: str = "", **inputs: Any) -> dict[str, Any]:
    """A prompt of one node."""
    return {"1": {"class_type": class_type, "inputs": {"tag": tag, **inputs}}}


class Live:
    """A server, its worker and a client."""

    def __init__(self, running: Running, worker: PromptWorker, watchdog: Watchdog) -> None:
        self.running, self.worker, self.watchdog = running, worker, watchdog
        self.server, self.queue = running.server, running.server.prompt_queue
        self.get, self.post, self.ws = running.get, running.post, running.ws

    async def submit(self, prompt: dict[str, Any], **body: Any) -> str:
        status, answer, _ = await self.post("/prompt", json={"prompt": prompt, **body})
        assert status == 200, answer
        return answer["prompt_id"]

    async def until(self, condition: Any, seconds: float = 30.0) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.005)

    async def entered(self) -> None:
        """Wait until one more node has begun."""
        assert await asyncio.to_thread(gate.entered.acquire, timeout=60)

    def job(self, ident: str) -> Any:
        return self.server.jobs.find(ident)

    async def over(self, ident: str) -> Any:
        """Wait until a job has ended, and nothing of it runs; returns it."""
        await self.until(lambda: self.job(ident).is_over and ident not in self.queue.running_ids())
        return self.job(ident)

    async def history(self, ident: str) -> dict[str, Any] | None:
        return (await self.get(f"/history/{ident}"))[1].get(ident)


@pytest.fixture
async def serving(start, monkeypatch):
    """`await serving()` starts a server with a worker; by keyword: max_attempts, retry_oom, job_timeout, and what
    Watchdog takes."""
    global gate
    gate = Gate()
    workers, thresholds = [], gc.get_threshold()

    async def start_live(max_attempts=2, retry_oom=False, job_timeout=0, **watching: Any) -> Live:
        running = await start()
        server = running.server
        monkeypatch.setattr(sys.modules["nodes"], "NODE_CLASS_MAPPINGS", dict(CLASSES))
        worker = PromptWorker(
            server,
            server.prompt_queue,
            execution.PromptExecutor,
            RetryPolicy(max_attempts, retry_oom).behind,
            server.run_times.note,
        )
        server.watchdog = Watchdog(
            worker, server.prompt_queue, lambda entry: time_limit(entry.extra_data, job_timeout), **watching
        )
        worker.start()
        server.watchdog.start()
        workers.append((worker, server.watchdog))
        return Live(running, worker, server.watchdog)

    yield start_live
    gate.open.set()
    for worker, watchdog in workers:
        watchdog.stop()
        worker.stop()
        worker.queue.close()
        await asyncio.to_thread(worker.join, 20)
    gc.set_threshold(*thresholds)


def unknown_id() -> str:
    return str(uuid.uuid4())
