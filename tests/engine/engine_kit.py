"""A server that remembers what it was told, a few small nodes, and ways to write and run prompts."""

from __future__ import annotations

import threading
import time
from typing import Any


class FakeServer:
    """What the engine needs of a server."""

    def __init__(self) -> None:
        self.client_id: str | None = None
        self.last_node_id: str | None = None
        self.last_prompt_id: str | None = None
        self.sockets_metadata: dict[str, Any] = {}
        self.prompt_queue: Any = None
        self.nodes_ready = threading.Event()
        self.nodes_ready.set()
        self.events: list[tuple[str | int, Any, str | None]] = []

    def send_sync(self, event: str | int, data: Any, sid: str | None = None) -> None:
        self.events.append((event, data, sid))

    def queue_updated(self) -> None:
        self.events.append(("status", self.prompt_queue.get_tasks_remaining(), None))

    def of(self, name: str | int) -> list[Any]:
        """The data of all events of a name."""
        return [data for event, data, _ in self.events if event == name]

    @property
    def order(self) -> list[str]:
        """The nodes in the order in which they were announced."""
        return [data["node"] for data in self.of("executing") if data["node"] is not None]


def node(required=None, returns=(), optional=None, hidden=None, **attributes):
    """Class decorator that fills in the attributes of a V1 class."""

    def wrap(cls):
        spec = {"required": required or {}}
        if optional:
            spec["optional"] = optional
        if hidden:
            spec["hidden"] = hidden
        cls.INPUT_TYPES = classmethod(lambda c: spec)
        cls.RETURN_TYPES = tuple(returns)
        cls.FUNCTION = "run"
        for key, value in attributes.items():
            setattr(cls, key, value)
        return cls

    return wrap


@node({"value": ("INT", {"min": -1000, "max": 10**9})}, ["INT"])
class Int:
    calls: list[int] = []

    def run(self, value):
        Int.calls.append(value)
        return (value,)


@node({"a": ("INT", {}), "b": ("INT", {})}, ["INT"])
class Add:
    def run(self, a, b):
        return (a + b,)


@node({"value": ("*", {})}, OUTPUT_NODE=True)
class Show:
    def run(self, value):
        return {"ui": {"value": [repr(value)]}}


@node({"value": ("*", {})}, ["*"])
class Pass:
    def run(self, value):
        return (value,)


BASIC = {cls.__name__: cls for cls in (Int, Add, Show, Pass)}


class Runner:
    """Runs prompts with one executor."""

    def __init__(self, server, cache_type, **cache_args):
        import execution

        self.server = server
        self.executor = execution.PromptExecutor(server, cache_type, cache_args)
        self._number = 0

    def run(self, prompt, outputs=None, **extra_data):
        """Run a prompt for client "c"; all its output nodes unless told otherwise. Returns the executor."""
        import nodes

        if outputs is None:
            mapping = nodes.NODE_CLASS_MAPPINGS
            outputs = [i for i, n in prompt.items() if getattr(mapping[n["class_type"]], "OUTPUT_NODE", False)]
        self._number += 1
        self.server.events.clear()
        self.executor.execute(prompt, f"p{self._number}", {"client_id": "c", **extra_data}, outputs)
        return self.executor

    def good(self, prompt, outputs=None, **extra_data):
        """Run a prompt that has to succeed; returns its outputs by node."""
        executor = self.run(prompt, outputs, **extra_data)
        assert executor.success, executor.status_messages[-1]
        return executor.history_result["outputs"]

    def bad(self, prompt, outputs=None, **extra_data):
        """Run a prompt that has to fail; returns the data of its last message."""
        executor = self.run(prompt, outputs, **extra_data)
        assert not executor.success
        return executor.status_messages[-1][1]

    @property
    def cached(self):
        """The nodes whose result was there when the last run started."""
        return self.server.of("execution_cached")[-1]["nodes"]


def n(class_type, **inputs):
    """A node of a prompt; tuples become links."""
    return {"class_type": class_type, "inputs": {k: list(v) if isinstance(v, tuple) else v for k, v in inputs.items()}}


def wait_for(condition, seconds=20.0):
    """Wait until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
