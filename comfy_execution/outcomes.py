"""How a job ended and why, in words that programs can tell apart.

A state says what became of a job (`comfy_execution.jobs`); a reason says why it is not "completed". Reasons decide what
is worth another attempt, so they are few and fixed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from comfy.interrupt import InterruptProcessingException
from comfy_execution import faults, jobs

VALIDATION_ERROR = "validation_error"  # the prompt cannot run here, now (a node class is gone, a cycle)
NODE_ERROR = "node_error"  # a node raised something
OUT_OF_MEMORY = "out_of_memory"  # of the device or of the host
INTERRUPTED = "interrupted"  # somebody cancelled it
TIMEOUT = "timeout"  # it ran longer than it may
WORKER_DIED = "worker_died"  # the thread or the process ended while it ran
MISSING_MODEL = "missing_model"  # a file of weights is not there
MISSING_FILE = "missing_file"  # another file is not there
SHUTDOWN = "shutdown"  # an attempt was given up because the server stops; the job is pending again
REASONS = (
    VALIDATION_ERROR,
    NODE_ERROR,
    OUT_OF_MEMORY,
    INTERRUPTED,
    TIMEOUT,
    WORKER_DIED,
    MISSING_MODEL,
    MISSING_FILE,
    SHUTDOWN,
)

_MODEL_EXTENSIONS = (".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".gguf", ".onnx")
LONGEST_DETAIL = 2000  # characters of a detail that are kept


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asked for something: the client's address, the route it used, and its API key's name if it has one."""

    address: str | None
    route: str
    key: str | None = None

    def shown(self) -> dict[str, str]:
        """As a JSON object, without what is not known."""
        fields = {"address": self.address, "route": self.route, "key": self.key}
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def read(cls, shown: Mapping[str, str]) -> Actor:
        """The one that `shown` describes."""
        return cls(shown.get("address"), shown.get("route", ""), shown.get("key"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job.

    Args:
        state: `completed`, `failed` or `cancelled`.
        reason: one of `REASONS`; None for a completed job.
        detail: a sentence for people.
        by: who cancelled it.
    """

    state: str
    reason: str | None = None
    detail: str | None = None
    by: Actor | None = None


def classify(exception: BaseException) -> str:
    """The reason that an exception of a node, or of the engine, stands for."""
    if isinstance(exception, InterruptProcessingException):
        return INTERRUPTED
    if isinstance(exception, MemoryError) or faults.is_out_of_memory(exception):
        return OUT_OF_MEMORY
    if isinstance(exception, FileNotFoundError):
        name = exception.filename if isinstance(exception.filename, str) else faults.text_of(exception)
        return _missing(name)
    graph = sys.modules.get("comfy_execution.graph")
    if graph is not None and isinstance(exception, (graph.DependencyCycleError, graph.NodeNotFoundError)):
        return VALIDATION_ERROR
    return NODE_ERROR


def outcome_of(record: Mapping[str, Any]) -> Outcome:
    """What a history entry says about the end of its job."""
    state = jobs.state_of(record)
    if state == jobs.COMPLETED:
        return Outcome(state)
    if state == jobs.CANCELLED:
        return Outcome(state, INTERRUPTED)
    status = record.get("status")
    messages: Iterable[Any] = (status.get("messages") if isinstance(status, Mapping) else None) or ()
    error = next((message[1] for message in messages if message[0] == "execution_error"), None)
    if not isinstance(error, Mapping):
        return Outcome(state, NODE_ERROR)
    text = str(error.get("exception_message") or "").strip()
    return Outcome(state, _reason_by_name(str(error.get("exception_type")), text), text[:LONGEST_DETAIL] or None)


def _reason_by_name(type_name: str, text: str) -> str:
    """As `classify`, for an exception of which only the name and the text are left."""
    name = type_name.rpartition(".")[2]
    if name in ("MemoryError", "OutOfMemoryError"):
        return OUT_OF_MEMORY
    if name == "AcceleratorError" and "out of memory" in text.lower():
        return OUT_OF_MEMORY
    if name == "FileNotFoundError":
        return _missing(text)
    if name in ("DependencyCycleError", "NodeNotFoundError"):
        return VALIDATION_ERROR
    if name == "WorkerDied":
        return WORKER_DIED
    return NODE_ERROR


def _missing(text: str) -> str:
    lower = text.lower()
    return MISSING_MODEL if any(extension in lower for extension in _MODEL_EXTENSIONS) else MISSING_FILE
