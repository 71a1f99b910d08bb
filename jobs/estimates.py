"""When a pending job will start, by how long recent runs of the same workflow took."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from comfy_execution import jobs, jsonbytes
from comfy_execution.attempts import Attempt
from comfy_execution.links import is_link
from jobs.store import Row

_WORKFLOWS = 2000  # whose times are remembered
_RUNS = 9  # of each; the median of so few follows a change, and a lone cached run does not spoil it


def workflow_key(entry: Any) -> str:
    """What runs of the same workflow share: its id or, without one, the shape of its graph (classes and links)."""
    known = getattr(entry, "workflow_key", None)
    if known is not None:
        return known
    ident = jobs.workflow_id_of(entry[3])
    key = f"id {ident}" if isinstance(ident, str) and ident else f"shape {shape_of(entry[2])}"
    entry.workflow_key = key
    return key


def shape_of(graph: Any) -> str:
    """A digest of the classes and links of a graph; values do not matter."""
    digest = hashlib.blake2b(digest_size=16)
    nodes = graph if isinstance(graph, dict) else {}
    for node_id in sorted(nodes, key=str):
        node = nodes[node_id] if isinstance(nodes[node_id], dict) else {}
        inputs = node.get("inputs") if isinstance(node.get("inputs"), dict) else {}
        links = sorted((str(name), str(value[0]), str(value[1])) for name, value in inputs.items() if is_link(value))
        digest.update(repr((str(node_id), str(node.get("class_type")), links)).encode())
    return digest.hexdigest()


class RunTimes:
    """The times of recent successful runs. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._recent: deque[float] = deque(maxlen=50)

    def note(self, entry: Any, seconds: float) -> None:
        """A run has succeeded."""
        self._note(workflow_key(entry), seconds)

    def _note(self, key: str | None, seconds: float) -> None:
        with self._lock:
            self._recent.append(seconds)
            if key is None:
                return
            self._times.setdefault(key, deque(maxlen=_RUNS)).append(seconds)
            self._times.move_to_end(key)
            if len(self._times) > _WORKFLOWS:
                self._times.popitem(last=False)

    def seed(self, rows: Iterable[Row]) -> None:
        """Take over the times of earlier processes. rows: completed jobs, newest first."""
        for row in reversed(list(rows)):
            try:
                last = jsonbytes.decode(row.attempts)[-1]
                seconds = max(0, last["end_time"] - last["start_time"]) / 1000
            except (ValueError, TypeError, LookupError):  # adopted from a pack, or damaged
                continue
            self._note(f"id {row.workflow_id}" if row.workflow_id else None, seconds)

    def expected(self, entry: Any) -> float | None:
        """How many seconds a run will take; by all recent runs if none was of its workflow; None if none was at all."""
        with self._lock:
            times = self._times.get(workflow_key(entry)) or self._recent
            return median(times) if times else None

    def of_queue(self, running: Sequence[Attempt], pending: Sequence[Any]) -> dict[str, dict[str, Any]]:
        """The pending jobs in their order: prompt id -> position (from 1), `estimated_start_time` (ms since the
        epoch) and `estimated_seconds`; both None from the first job on of which nothing is known."""
        expected: dict[str, float | None] = {}  # by workflow: a long queue is mostly of a few

        def seconds_for(entry: Any) -> float | None:
            key = workflow_key(entry)
            if key not in expected:
                expected[key] = self.expected(entry)
            return expected[key]

        start: float | None = time.time()
        for attempt in running:
            seconds = seconds_for(attempt.entry)
            start = None if seconds is None or start is None else start + max(0.0, seconds - attempt.seconds())
        found = {}
        for position, entry in enumerate(pending, 1):
            seconds = seconds_for(entry)
            found[entry[1]] = {
                "position": position,
                "estimated_start_time": None if start is None else int(start * 1000),
                "estimated_seconds": seconds,
            }
            start = None if seconds is None or start is None else start + seconds
        return found
