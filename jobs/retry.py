"""Which failures are worth another attempt, and behind whom it waits.

What went wrong by itself is tried again: a dead worker, a run beyond its time limit and, if asked for, a full device.
What would go wrong again is not: an invalid prompt, a node's error, a missing file. What was cancelled stays cancelled.

The retry goes behind as many waiting jobs as there were attempts: others get on first, and on an idle server it starts
at once, however long that takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from comfy_execution.attempts import Attempt
from comfy_execution.outcomes import OUT_OF_MEMORY, SHUTDOWN, TIMEOUT, WORKER_DIED, Outcome

CAUSES = (TIMEOUT, WORKER_DIED, OUT_OF_MEMORY)
MOST_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When a job is tried again.

    Args:
        causes: the reasons, of `CAUSES`.
        max_attempts: how many attempts there are in all. A full device is retried once, beyond `max_attempts` if
            `once_more`.
    """

    causes: frozenset[str] = frozenset((TIMEOUT, WORKER_DIED))
    max_attempts: int = 2
    once_more: bool = True

    def behind(self, attempt: Attempt, outcome: Outcome) -> int | None:
        """Behind how many waiting jobs the retry goes; None if there is to be none."""
        if outcome.reason not in self.causes:
            return None
        tried = 1 + sum(cause != SHUTDOWN for cause in attempt.causes)
        if outcome.reason == OUT_OF_MEMORY and OUT_OF_MEMORY in attempt.causes:
            return None  # models have been unloaded before: it needs more than there is
        allowed = tried < self.max_attempts or (outcome.reason == OUT_OF_MEMORY and self.once_more)
        return tried if allowed else None


def rule_of(value: Any, default: RetryRule) -> RetryRule:
    """The rule that `extra_data.retry` asks for.

    value: None (the server's rule), false (no retries), a number of attempts, or
        `{"max_attempts": number, "on": [causes]}` with either key left out.

    Raises:
        ValueError: it is nothing of the kind; the message says what.
    """
    if value is None:
        return default
    if value is False:
        return RetryRule(frozenset(), 1, False)
    if isinstance(value, int) and value is not True:
        return replace(default, max_attempts=_attempts(value), once_more=False)
    if not isinstance(value, dict) or not value.keys() <= {"max_attempts", "on"}:
        rule = 'false, a number of attempts, or {"max_attempts": number, "on": []}'
        raise ValueError(f"extra_data.retry must be {rule}; got {value!r:.200}")
    rule = default
    if "max_attempts" in value:
        rule = replace(rule, max_attempts=_attempts(value["max_attempts"]), once_more=False)
    if "on" in value:
        causes = value["on"]
        if not isinstance(causes, list) or not all(cause in CAUSES for cause in causes):
            raise ValueError(f"extra_data.retry.on must be an array of {', '.join(CAUSES)}; got {causes!r:.200}")
        rule = replace(rule, causes=frozenset(causes))
    return rule


def _attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise ValueError(f"extra_data.retry: attempts must be a number from 1 to {MOST_ATTEMPTS}, got {value!r:.200}")
    return value


class RetryPolicy:
    """The server's rule, and what single jobs ask for instead.

    Args:
        max_attempts: for each job, in all.
        retry_oom: whether a job that ran out of memory is tried again, once.
    """

    def __init__(self, max_attempts: int = 2, retry_oom: bool = False) -> None:
        causes = CAUSES if retry_oom else (TIMEOUT, WORKER_DIED)
        self.default = RetryRule(frozenset(causes), max_attempts)

    def behind(self, attempt: Attempt, outcome: Outcome) -> int | None:
        """Behind how many waiting jobs another attempt goes; None if there is to be none."""
        try:
            rule = rule_of(attempt.entry.extra_data.get("retry"), self.default)
        except (AttributeError, ValueError):  # put into the queue by other means than POST /prompt
            rule = self.default
        return rule.behind(attempt, outcome)
