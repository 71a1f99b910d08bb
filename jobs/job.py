"""One job as the ledger knows it: its state, and each attempt to run it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from comfy_execution import jobs

# How an attempt may end, beside the states a job can end in.
PUT_BACK = "put_back"  # given up for now; the job is pending again
DIED = "died"  # the process ended while it ran
IN_QUEUE = "queue"  # stands for the worker of an attempt that was cancelled before it began


@dataclass(slots=True)
class Attempt:
    """One run of a job. Times are milliseconds since the epoch.

    Args:
        number: from 1 on.
        result: `completed`, `failed`, `cancelled`, `put_back` or `died`; None while it runs.
        reason: one of `comfy_execution.outcomes.REASONS`.
    """

    number: int
    worker: str
    started: int
    ended: int | None = None
    result: str | None = None
    reason: str | None = None
    detail: str | None = None
    by: dict[str, str] | None = None

    def shown(self) -> dict[str, Any]:
        """As a JSON object, without what is not known."""
        fields = {
            "number": self.number,
            "worker": self.worker,
            "start_time": self.started,
            "end_time": self.ended,
            "result": self.result,
            "reason": self.reason,
            "detail": self.detail,
            "by": self.by,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def read(cls, shown: dict[str, Any]) -> Attempt:
        """The attempt that `shown` describes."""
        return cls(
            shown["number"],
            shown["worker"],
            shown["start_time"],
            shown.get("end_time"),
            shown.get("result"),
            shown.get("reason"),
            shown.get("detail"),
            shown.get("by"),
        )


@dataclass(slots=True)
class Job:
    """One job.

    Args:
        number: the queue number; lower ones run first.
        place: decides among equal numbers.
        created: ms since the epoch, when it was submitted.
        counter: the server's count, if the number came from it.
        digest, answer: of the submitted body, and what was answered; only if the client chose the id.
        reason, detail, by: why it is not completed, and who cancelled it; of the last attempt, if there was one.
        duration: ms that the last attempt ran, by the events of its history.
        ended: ms since the epoch; None while it has not.
        card: JSON of a job that ran and ended, as listings show it.
    """

    id: str
    state: str
    number: float
    place: float
    created: int
    client_id: str | None = None
    workflow_id: str | None = None
    batch_id: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    reason: str | None = None
    detail: str | None = None
    by: dict[str, str] | None = None
    counter: int | None = None
    digest: bytes | None = None
    answer: bytes | None = None
    duration: int = 0
    ended: int | None = None
    card: bytes | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state not in jobs.QUEUED

    @property
    def running(self) -> Attempt | None:
        """The attempt that runs."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].result is None else None

    def copy(self) -> Job:
        """A copy that later changes of this job do not reach."""
        return replace(self, attempts=[replace(attempt) for attempt in self.attempts])
