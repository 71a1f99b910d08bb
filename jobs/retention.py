"""How long ended jobs are kept on disk: by age, by count, or both."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs.store import JobStore

CHECK_SECONDS = 600.0  # between two looks
_AT_ONCE = 1000  # jobs deleted per transaction, so that submissions are not held up
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@dataclass(frozen=True)
class Rule:
    """seconds: how old an ended job may become; count: how many there may be. None: any."""

    seconds: float | None = None
    count: int | None = None


def parse_rule(text: str) -> Rule:
    """A rule from a text: "30d", "12h", "5000", both with a comma ("30d,5000"), or "all".

    Raises:
        ValueError: it is none of these.
    """
    seconds: float | None = None
    number: int | None = None
    for part in text.strip().lower().split(","):
        found = re.fullmatch(r"\s*(\d{1,12})\s*([smhdw]?)\s*", part)
        if part.strip() == "all":
            continue
        if found is None:
            raise ValueError(f"{text!r} is no number of jobs (5000), age (30d, 12h), both (30d,5000), or 'all'")
        if found[2]:
            seconds = int(found[1]) * _UNITS[found[2]]
        else:
            number = int(found[1])
    return Rule(seconds, number)


class Retention:
    """Deletes what a rule does not keep, now and then."""

    def __init__(self, rule: Rule | None = None, clock: Callable[[], float] = time.time) -> None:
        self.rule = rule or Rule()
        self._clock = clock
        self._next_check = 0.0

    def is_due(self, bounded: bool = False) -> bool:
        """Whether it is time to look; True once per `CHECK_SECONDS`, also if the clock is set.

        bounded: there is something to delete even if the rule keeps everything.
        """
        left = self._next_check - self._clock()
        if (self.rule == Rule() and not bounded) or 0 < left <= CHECK_SECONDS:
            return False
        self._next_check = self._clock() + CHECK_SECONDS
        return True

    def steps(self, store: JobStore, most: int | None = None) -> Iterator[list[str]]:
        """What is to be deleted, in small steps: ids of jobs, to be gone when the next step is asked for.

        most: keep no more than so many, whatever the rule says.
        """
        before = None if self.rule.seconds is None else int((self._clock() - self.rule.seconds) * 1000)
        counts = [count for count in (self.rule.count, most) if count is not None]
        while True:
            old = store.outdated(before, min(counts, default=None), _AT_ONCE)
            yield old
            if len(old) < _AT_ONCE:
                return
