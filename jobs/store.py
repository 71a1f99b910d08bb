"""What the ledger asks of a store, and nothing more: a second one (PostgreSQL, say) has to give just this.

A store keeps jobs with their payloads. It is written by one thread at a time through `apply`, which is all or nothing,
and read by any number of threads, each of which sees everything that `apply` has returned from. Order of acceptance and
order in the history are the store's own counters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jobs.job import Job


class StoreUnavailable(Exception):
    """The store cannot be opened, read or written; the message says which one, and why."""


class Change(NamedTuple):
    """One thing to write: the name of a method of `Changes`, and its arguments."""

    name: str
    arguments: tuple[Any, ...]


class Changes(Protocol):
    """The changes there are. None of them fails for an id that is not there."""

    def insert(self, job: Job, entry: bytes) -> None:
        """A new job and its queue entry, as JSON. One of the same id is replaced."""

    def update(self, job: Job) -> None:
        """State, number, place, attempts, reason, detail, actor, times and card of a job."""

    def move(self, prompt_id: str, number: float, place: float, entry: bytes) -> None:
        """Another number and place; the entry's JSON holds the number too."""

    def unkeep(self, prompt_id: str) -> None:
        """A job that runs again has no history entry until it ends again."""

    def adopt(self, job: Job, entry: bytes) -> None:
        """As `insert`, if there is no job of that id."""

    def keep(self, prompt_id: str, result: bytes) -> None:
        """The history entry of a job, without its prompt, as JSON: the newest of the history from now on."""

    def forget(self, prompt_ids: Sequence[str]) -> None:
        """Delete jobs that have ended, or will never run."""

    def forget_ended(self) -> None:
        """Delete all jobs that have ended."""

    def remember(self, key: str, value: int | str) -> None:
        """Something beside the jobs, in place of what had this key."""


@dataclass(frozen=True)
class Query:
    """Which jobs, in which order. Times are ms since the epoch; None: any.

    Args:
        after: start behind the job with this (sort key, order of acceptance).
    """

    states: Collection[str]
    client_id: str | None = None
    workflow_id: str | None = None
    batch_id: str | None = None
    created_from: int | None = None
    created_before: int | None = None
    by_duration: bool = False
    descending: bool = True
    limit: int | None = None
    offset: int = 0
    after: tuple[float, int] | None = None


class Row(NamedTuple):
    """A job as listings need it.

    key: what it was sorted by; attempts, actor: JSON; card: JSON of the whole job, of those that ran and ended.
    """

    key: float
    seq: int
    id: str
    state: str
    number: float
    created: int
    workflow_id: Any
    attempts: str
    reason: str | None
    detail: str | None
    actor: str | None
    card: bytes | None


class Payload(NamedTuple):
    """The bodies of a job, as JSON. result: None unless it is in the history."""

    id: str
    entry: bytes
    result: bytes | None


class JobStore(Protocol):
    """A store. Every method raises StoreUnavailable, and nothing else, when the store does not work."""

    name: str  # as people know it: a path, "memory"
    persistent: bool  # whether it outlives the process
    trouble: str | None  # why it cannot be read; None once it can

    def check(self) -> None:
        """Look, without using it, whether it is still there. Raises StoreUnavailable."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Write all changes in order, durably, or none of them."""

    def job(self, prompt_id: str) -> Job | None:
        """One job."""

    def payloads(self, prompt_ids: Sequence[str]) -> dict[str, Payload]:
        """The bodies of jobs; unknown ids are left out."""

    def waiting(self) -> Iterator[tuple[Job, bytes]]:
        """Jobs that are pending or in progress, and their entries, in the order in which they run."""

    def history_ids(self, limit: int) -> list[str]:
        """The newest ids of the history, oldest of them first."""

    def page(self, query: Query) -> list[Row]:
        """Jobs, in order."""

    def total(self, query: Query) -> int:
        """How many jobs a query has, whatever its limit, offset and `after` are."""

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""

    def last_counter(self) -> int | None:
        """The newest number that came from the server's own count."""

    def outdated(self, before: int | None, keep: int | None, at_most: int) -> list[str]:
        """Ids of jobs that ended before a time, and of the oldest ended ones beyond a count; `at_most` of them."""

    def recall(self, key: str) -> Any:
        """What is remembered under a key, None if nothing is."""

    def close(self) -> None:
        """Let go of the store."""
