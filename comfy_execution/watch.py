"""Which nodes of a run are at work, since when, and when anything was last heard of them."""

from __future__ import annotations

import time
from typing import Any

from comfy_execution.progress import NodeProgressState, ProgressHandler, ProgressRegistry


class RunWatch(ProgressHandler):
    """Notes times; asked by other threads."""

    def __init__(self) -> None:
        super().__init__("watch")
        self._registry: ProgressRegistry | None = None
        self._since: dict[str, float] = {}  # nodes at work -> when they started
        self._heard = time.monotonic()

    def set_registry(self, registry: ProgressRegistry) -> None:
        self._registry = registry
        self._heard = time.monotonic()

    def start_handler(self, node_id: str, state: NodeProgressState, prompt_id: str) -> None:
        self._heard = time.monotonic()
        self._since.setdefault(node_id, self._heard)

    def update_handler(
        self,
        node_id: str,
        value: float,
        max_value: float,
        state: NodeProgressState,
        prompt_id: str,
        image: Any | None = None,
    ) -> None:
        self._heard = time.monotonic()

    def finish_handler(self, node_id: str, state: NodeProgressState, prompt_id: str) -> None:
        self._heard = time.monotonic()
        self._since.pop(node_id, None)

    def silence(self) -> float:
        """Seconds since a node last started, ended, or said how far it is."""
        return time.monotonic() - self._heard

    def node(self) -> tuple[str, str | None, float] | None:
        """Id, class and seconds of the node that started last and has not ended; None between nodes."""
        try:
            node_id, since = next(reversed(self._since.items()))
        except (StopIteration, RuntimeError):  # none, or the run's thread has just changed them
            return None
        class_type = None
        if self._registry is not None and self._registry.dynprompt.has_node(node_id):
            class_type = self._registry.dynprompt.get_node(node_id).get("class_type")
        return node_id, class_type, time.monotonic() - since
