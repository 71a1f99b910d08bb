"""How far each node of the running prompt is, and who is told (spec execution.md section 13, websocket.md).

The registry holds the state of the run; handlers are told about changes. `WebUIProgressHandler` turns them into
`progress_state` events and preview frames for the run's client. Reporting never waits for the server's event loop.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, TypedDict

from comfy.interrupt import throw_exception_if_processing_interrupted
from comfy_execution.graph import DynamicPrompt
from comfy_execution.utils import get_executing_context

log = logging.getLogger(__name__)

# Numbered events of `server.send_sync` (protocol.BinaryEventTypes): an image to encode, without and with its origin.
UNENCODED_PREVIEW = 2
PREVIEW_WITH_METADATA = 4

_FULL_STATE_LIMIT = 100  # nodes; up to here every progress_state holds all of them
_FULL_STATE_SECONDS = 1.0  # beyond it the whole state goes out this often, changed nodes in between
_UPDATE_SECONDS = 0.05  # least time between two thinned updates of a node, and between two states of a large graph


class NodeState(Enum):
    """Where a node is in its run."""

    Pending = "pending"
    Running = "running"
    Finished = "finished"
    Error = "error"


class NodeProgressState(TypedDict):
    """State, value and maximum of one node."""

    state: NodeState
    value: float
    max: float


_STARTED = NodeProgressState(state=NodeState.Running, value=0.0, max=1.0)
# The one state of all nodes that did not have to run: in a long graph whose results are there, nearly all of them.
_WAS_THERE = NodeProgressState(state=NodeState.Finished, value=1.0, max=1.0)


class ProgressHandler(ABC):
    """Someone who is told how the nodes get on. An exception in a handler is logged and changes nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enabled = True

    def set_registry(self, registry: ProgressRegistry) -> None:  # noqa: B027
        """The registry this handler has been added to."""

    def start_handler(self, node_id: str, state: NodeProgressState, prompt_id: str) -> None:  # noqa: B027
        """A node starts."""

    @abstractmethod
    def update_handler(
        self,
        node_id: str,
        value: float,
        max_value: float,
        state: NodeProgressState,
        prompt_id: str,
        image: Any | None = None,
    ) -> None:
        """A node has got further; `image` is a preview (format, PIL image, maximum size or None)."""

    def finish_handler(self, node_id: str, state: NodeProgressState, prompt_id: str) -> None:  # noqa: B027
        """A node is done."""

    def run_ends(self, prompt_id: str) -> None:  # noqa: B027
        """All nodes that were to run have run, or the run has failed."""

    def reset(self) -> None:  # noqa: B027
        """Another run takes over."""

    def enable(self) -> None:
        self.enabled = True

    def disable(self) -> None:
        self.enabled = False


class ProgressRegistry:
    """The progress of all nodes of one run."""

    def __init__(self, prompt_id: str, dynprompt: DynamicPrompt) -> None:
        self.prompt_id = prompt_id
        self.dynprompt = dynprompt
        self.nodes: dict[str, NodeProgressState] = {}
        self.handlers: dict[str, ProgressHandler] = {}

    def register_handler(self, handler: ProgressHandler) -> None:
        """Add a handler; one of the same name is replaced."""
        self.handlers[handler.name] = handler
        handler.set_registry(self)

    def unregister_handler(self, handler_name: str) -> None:
        self.handlers.pop(handler_name, None)

    def enable_handler(self, handler_name: str) -> None:
        if handler_name in self.handlers:
            self.handlers[handler_name].enable()

    def disable_handler(self, handler_name: str) -> None:
        if handler_name in self.handlers:
            self.handlers[handler_name].disable()

    def ensure_entry(self, node_id: str) -> NodeProgressState:
        """The node's state, pending if it was unknown."""
        entry = self.nodes.get(node_id)
        if entry is None or entry is _WAS_THERE:
            entry = self.nodes[node_id] = NodeProgressState(state=NodeState.Pending, value=0.0, max=1.0)
        return entry

    def start_progress(self, node_id: str) -> None:
        """The node runs now, at 0 of 1."""
        entry = self.ensure_entry(node_id)
        entry.update(_STARTED)  # in one step, as another thread may be reading
        self._tell("start_handler", node_id, entry, self.prompt_id)

    def update_progress(self, node_id: str, value: float, max_value: float, image: Any | None = None) -> None:
        """The node has got to `value` of `max_value`."""
        entry = self.ensure_entry(node_id)
        entry.update({"state": NodeState.Running, "value": value, "max": max_value})
        self._tell("update_handler", node_id, value, max_value, entry, self.prompt_id, image)

    def finish_progress(self, node_id: str) -> None:
        """The node is done: its value is its maximum."""
        entry = self.nodes.get(node_id)
        if entry is None or entry is _WAS_THERE:
            entry = self.nodes[node_id] = _WAS_THERE
        else:
            entry.update({"state": NodeState.Finished, "value": entry["max"]})
        self._tell("finish_handler", node_id, entry, self.prompt_id)

    def finish_run(self) -> None:
        """Tell all handlers that nothing more will come."""
        self._tell("run_ends", self.prompt_id)

    def reset_handlers(self) -> None:
        """Tell all handlers that another run takes over."""
        self._tell("reset")

    def _tell(self, what: str, *arguments: Any) -> None:
        for handler in tuple(self.handlers.values()):
            if handler.enabled:
                try:
                    getattr(handler, what)(*arguments)
                except Exception:
                    log.warning("progress handler %s failed", handler.name, exc_info=True)


class WebUIProgressHandler(ProgressHandler):
    """Sends `progress_state` events and previews to the client of the run; to nobody if it has none."""

    def __init__(self, server_instance: Any) -> None:
        super().__init__("webui")
        self.server_instance = server_instance
        self.registry: ProgressRegistry | None = None
        self._lock = threading.Lock()
        self._shown: dict[str, dict[str, Any]] = {}  # what progress_state says; entries are replaced, never changed
        # Nodes whose entry is to be written anew before the next event, as an ordered set. It is filled by the worker
        # and emptied by whoever sends, each in single steps, so that the worker needs no lock to report.
        self._changed: dict[str, None] = {}
        self._last_full = 0.0
        self._last_sent = 0.0
        self._last_update: dict[str, float] = {}
        self._held_back = False

    def set_registry(self, registry: ProgressRegistry) -> None:
        self.registry = registry

    def start_handler(self, node_id: str, state: NodeProgressState, prompt_id: str) -> None:
        self._last_update.pop(node_id, None)
        self._changed[node_id] = None
        self._send_soon(prompt_id)

    def update_handler(
        self,
        node_id: str,
        value: float,
        max_value: float,
        state: NodeProgressState,
        prompt_id: str,
        image: Any | None = None,
    ) -> None:
        self._changed[node_id] = None
        if image is None and value < max_value and self._is_too_soon(node_id):
            self._send_later(prompt_id)
            return
        self._last_update[node_id] = time.monotonic()
        self._send_state(prompt_id)
        if image is not None and self._wants_metadata():
            described = (tuple(image), self._metadata(node_id, prompt_id))
            self.server_instance.send_sync(PREVIEW_WITH_METADATA, described, self.server_instance.client_id)

    def finish_handler(self, node_id: str, state: NodeProgressState, prompt_id: str) -> None:
        self._last_update.pop(node_id, None)
        self._changed[node_id] = None
        self._send_soon(prompt_id)

    def reset(self) -> None:
        with self._lock:
            self._shown, self._changed = {}, {}
            self._last_update = {}

    def run_ends(self, prompt_id: str) -> None:
        """If only changes went out of late, send the whole state once more."""
        if self._is_large():
            self._last_full = 0.0
            self._send_state(prompt_id)

    def _is_large(self) -> bool:
        return len(self.registry.nodes) > _FULL_STATE_LIMIT

    def _describe(self, node_id: str, prompt_id: str) -> dict[str, Any]:
        state, prompt = self.registry.nodes[node_id], self.registry.dynprompt
        return {
            "value": state["value"],
            "max": state["max"],
            "state": state["state"].value,
            "node_id": node_id,
            "prompt_id": prompt_id,
            "display_node_id": prompt.get_display_node_id(node_id),
            "parent_node_id": prompt.get_parent_node_id(node_id),
            "real_node_id": prompt.get_real_node_id(node_id),
        }

    def _take_changes(self, prompt_id: str) -> list[str]:
        """Bring `_shown` up to date. Returns the nodes that have changed, oldest change first."""
        changed = []
        while self._changed:
            node_id, _ = self._changed.popitem()
            self._shown[node_id] = self._describe(node_id, prompt_id)
            changed.append(node_id)
        changed.reverse()
        return changed

    def _send_soon(self, prompt_id: str) -> None:
        """Send the state: at once for ordinary graphs; in large ones what comes in quick succession goes together."""
        if self._is_large() and time.monotonic() - self._last_sent < _UPDATE_SECONDS:
            self._send_later(prompt_id)
        else:
            self._send_state(prompt_id)

    def _send_state(self, prompt_id: str) -> None:
        sid = self.server_instance.client_id
        if sid is None:
            return
        with self._lock:
            now = self._last_sent = time.monotonic()
            changed = self._take_changes(prompt_id)
            if len(self._shown) <= _FULL_STATE_LIMIT or now - self._last_full >= _FULL_STATE_SECONDS:
                self._last_full = now
                nodes = dict(self._shown)
            else:
                nodes = {node_id: self._shown[node_id] for node_id in changed}
            # Sent with the lock held: what a timer sends can then not overtake the end of the run.
            if nodes:
                self.server_instance.send_sync("progress_state", {"prompt_id": prompt_id, "nodes": nodes}, sid)

    def _is_too_soon(self, node_id: str) -> bool:
        last = self._last_update.get(node_id)
        return last is not None and time.monotonic() - last < _UPDATE_SECONDS

    def _send_later(self, prompt_id: str) -> None:
        """See to it that a report that was held back goes out even if the node falls silent now."""
        loop = getattr(self.server_instance, "loop", None)
        if self._held_back or loop is None:
            return

        def flush() -> None:
            self._held_back = False
            if self._changed and self.registry is not None and self.registry.prompt_id == prompt_id:
                self._send_state(prompt_id)

        self._held_back = True
        try:
            loop.call_soon_threadsafe(loop.call_later, _UPDATE_SECONDS, flush)
        except RuntimeError:  # the server is closing
            self._held_back = False

    def _wants_metadata(self) -> bool:
        server = self.server_instance
        return server.client_id is not None and wants_preview_metadata(server)

    def _metadata(self, node_id: str, prompt_id: str) -> dict[str, Any]:
        prompt = self.registry.dynprompt
        return {
            "node_id": node_id,
            "prompt_id": prompt_id,
            "display_node_id": prompt.get_display_node_id(node_id),
            "parent_node_id": prompt.get_parent_node_id(node_id),
            "real_node_id": prompt.get_real_node_id(node_id),
        }


_registry = ProgressRegistry("", DynamicPrompt({}))


def get_progress_state() -> ProgressRegistry:
    """The registry of the run in progress (or of the last one)."""
    return _registry


def reset_progress_state(prompt_id: str, dynprompt: DynamicPrompt) -> ProgressRegistry:
    """A run starts: a new registry takes the place of the old one, whose handlers are let go."""
    global _registry
    _registry.reset_handlers()
    _registry = ProgressRegistry(prompt_id, dynprompt)
    return _registry


def add_progress_handler(handler: ProgressHandler) -> None:
    """Let a handler be told about the run in progress."""
    _registry.register_handler(handler)


def wants_preview_metadata(server: Any) -> bool:
    """Whether the run's client takes previews with metadata (frame 4) instead of plain ones (frame 1)."""
    from comfy_api import feature_flags

    metadata = getattr(server, "sockets_metadata", {})
    return feature_flags.supports_feature(metadata, server.client_id, "supports_preview_metadata")


class ProgressBarHook:
    """What `comfy.utils.ProgressBar` calls: the interrupt is noticed, the registry and the client are told."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __call__(
        self,
        value: float,
        total: float,
        preview_image: Any | None = None,
        prompt_id: str | None = None,
        node_id: str | None = None,
    ) -> None:
        throw_exception_if_processing_interrupted()
        server = self._server
        context = get_executing_context()
        if prompt_id is None:
            prompt_id = context.prompt_id if context is not None else server.last_prompt_id
        if node_id is None:
            node_id = context.node_id if context is not None else server.last_node_id
        if node_id is None:
            return
        registry = get_progress_state()
        if registry.prompt_id == prompt_id:
            # Bars are thinned out already, and each `progress` comes right after a state with the same numbers.
            handler = registry.handlers.get("webui")
            if isinstance(handler, WebUIProgressHandler):
                handler._last_update.pop(node_id, None)
            registry.update_progress(node_id, value, total, preview_image)
        sid = server.client_id
        if sid is None:
            return
        data = {"value": value, "max": total, "prompt_id": prompt_id, "node": node_id}
        server.send_sync("progress", data, sid)
        if preview_image is not None and not wants_preview_metadata(server):
            server.send_sync(UNENCODED_PREVIEW, tuple(preview_image), sid)


def install_progress_hook(server: Any) -> None:
    """Connect `comfy.utils.ProgressBar` with a server."""
    import comfy.utils

    comfy.utils.set_progress_bar_global_hook(ProgressBarHook(server))
