"""Who is told what happens in the queue; the queue itself remembers only what it needs to run prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from comfy_execution.outcomes import Actor, Outcome
    from comfy_execution.prompt_queue import QueueEntry


class QueueObserver(Protocol):
    """Told of each change of a prompt, in the order of the changes.

    All but `settle` are called with the queue's lock held: they note what happened and return at once.
    """

    def queued(self, entry: QueueEntry, place: float) -> None:
        """An entry is pending. place: among equal numbers, lower ones run first."""

    def started(self, entry: QueueEntry, worker: str) -> None:
        """A pending entry runs from now on, as a new attempt."""

    def stopping(self, entry: QueueEntry, by: Actor | None) -> None:
        """A running entry is cancelled: it was told to stop, and that is how it will end."""

    def paused(self, paused: bool) -> None:
        """The queue is paused, or goes on, until somebody says otherwise."""

    def dropped(self, entries: Sequence[QueueEntry], by: Actor | None) -> None:
        """Pending entries were taken out and will not run."""

    def put_back(self, entry: QueueEntry, place: float, reason: str, detail: str | None) -> None:
        """A running entry is pending again; its attempt ended for a reason of `comfy_execution.outcomes`."""

    def ended(self, entry: QueueEntry, record: Mapping[str, Any], outcome: Outcome) -> None:
        """A running entry ended. record: its history entry."""

    def moved(self, entries: Sequence[tuple[QueueEntry, float]]) -> None:
        """Pending entries have another number or place: (entry as it is now, place) of each."""

    def settle(self, timeout: float | None = None) -> bool:
        """Wait, without the queue's lock, until all that was told is stored. False if that took too long."""


class NoObserver:
    """Remembers nothing."""

    def queued(self, entry: QueueEntry, place: float) -> None: ...

    def started(self, entry: QueueEntry, worker: str) -> None: ...

    def stopping(self, entry: QueueEntry, by: Actor | None) -> None: ...

    def paused(self, paused: bool) -> None: ...

    def dropped(self, entries: Sequence[QueueEntry], by: Actor | None) -> None: ...

    def put_back(self, entry: QueueEntry, place: float, reason: str, detail: str | None) -> None: ...

    def ended(self, entry: QueueEntry, record: Mapping[str, Any], outcome: Outcome) -> None: ...

    def moved(self, entries: Sequence[tuple[QueueEntry, float]]) -> None: ...

    def settle(self, timeout: float | None = None) -> bool:
        return True
