"""Sums over the jobs that ended since the start: how many, why, how long they waited and ran. For the metrics."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from jobs.job import IN_QUEUE, Job

# Upper bounds in seconds: a cached picture takes milliseconds, a video an hour.
BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Distribution:
    """Durations, counted by the bounds they do not exceed."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0  # seconds

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one, which a clock that was set may give, counts as 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[float, int]]:
        """(bound in seconds, durations up to it) for each bound and for infinity."""
        return list(zip((*BOUNDS, float("inf")), accumulate(self._counts), strict=True))


class Tallies:
    """Told of each job that ends; may be read by any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended: Counter[tuple[str, str]] = Counter()  # by state and reason; the reason of completed jobs is ""
        self.attempts: Counter[str] = Counter()  # of those jobs, by result
        self.run: dict[str, Distribution] = {}  # of the last attempt, by state
        self.wait = Distribution()  # from submission to the first attempt

    def add(self, job: Job) -> None:
        """A job has ended."""
        ran = [attempt for attempt in job.attempts if attempt.worker != IN_QUEUE]
        with self.lock:
            self.ended[job.state, job.reason or ""] += 1
            for attempt in ran:
                self.attempts[attempt.result or job.state] += 1
            if ran:
                self.wait.add((ran[0].started - job.created) / 1e3)
                last = ran[-1]
                if last.ended is not None:
                    self.run.setdefault(job.state, Distribution()).add((last.ended - last.started) / 1e3)
