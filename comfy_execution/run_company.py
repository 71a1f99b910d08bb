"""Whom a run knows: who is told, who helps when memory runs out, what packs have put around nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from comfy_execution.run import Run


class Announcer(Protocol):
    """Who is told what happens. `send` reaches the run's client only, and nothing if it has none."""

    def record(self, event: str, data: dict[str, Any], broadcast: bool = False) -> None:
        """Send an event and keep it for the history."""

    def send(self, event: str, data: dict[str, Any]) -> None:
        """Send an event."""

    def node_starts(self, node_id: str, display_id: str) -> None:
        """A node is taken up: `executing`."""

    def result_unwanted(self) -> bool:
        """Whether the run was told to stop, so that what its nodes show is dropped."""

    def must_leave(self) -> bool:
        """Whether the run is to end now, without waiting for its coroutines."""


class Rescue(Protocol):
    """Who helps when a node runs out of memory."""

    def can_help(self, error: BaseException) -> bool:
        """Whether a node that ended with this error is worth another try once there is room."""

    def forget_frames(self, error: BaseException) -> None:
        """Let go of what the frames behind an error hold."""

    def make_room(self) -> None:
        """Free what can be freed."""


class Hooks(Protocol):
    """Functions that packs put in the place of the engine's own, to see what nodes are given and what they return."""

    async def step(self, run: Run, node_id: str) -> None:
        """Go on with a node: in the end `run.take_up(node_id)`."""

    def mapping(self) -> Callable[..., Awaitable[list[Any]]] | None:
        """What makes the calls of a node instead of `calling.start_calls`, if anything does. It gets the prompt's id,
        the node's, the object, the lists of inputs, the name of the method and the callbacks of
        `execution._async_map_node_over_list`, and returns what each call returned, or a task."""
