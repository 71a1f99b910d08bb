"""Pages of jobs as SQL: each state is a range of an index, so that a page costs what the page costs."""

from __future__ import annotations

from typing import Any

from comfy_execution import jobs
from jobs.store import Query

_FIELDS = "seq, id, state, number, created, workflow_id, attempts, reason, detail, actor, card"
_LABELS = ("client_id", "workflow_id", "batch_id")


def is_plain(query: Query) -> bool:
    """Whether it filters by state only."""
    labels = any(getattr(query, label) is not None for label in _LABELS)
    return not labels and query.created_from is None and query.created_before is None


def page(query: Query) -> tuple[str, list[Any]]:
    """A statement for `jobs.store.Row`s, and its values."""
    key = "duration" if query.by_duration else "created"
    direction = "DESC" if query.descending else "ASC"
    order = f"ORDER BY key {direction}, seq {direction}"
    reach = -1 if query.limit is None else query.offset + query.limit
    where, values = _filters(query)
    if query.after is not None:
        where += f" AND ({key}, seq) {'<' if query.descending else '>'} (?, ?)"
        values += query.after
    states = sorted(set(query.states))
    if any(getattr(query, label) is not None for label in _LABELS):
        # The label's index holds few of all jobs; their states are looked at one by one.
        parts = [_any_of(states)]
    else:
        # What has not ended has no duration; the index by duration leaves it out.
        parts = [("state = ?" + " AND ended IS NOT NULL" * (state not in jobs.QUEUED), [state]) for state in states]
    selects, bound = [], []
    for condition, wanted in parts:
        selects.append(
            f"SELECT * FROM (SELECT {key} AS key, {_FIELDS} FROM jobs WHERE {condition}{where} {order} LIMIT ?)"
        )
        bound += [*wanted, *values, reach]
    limit = -1 if query.limit is None else query.limit
    return f"{' UNION ALL '.join(selects)} {order} LIMIT ? OFFSET ?", [*bound, limit, query.offset]


def total(query: Query) -> tuple[str, list[Any]]:
    """A statement for the number of jobs, and its values."""
    where, values = _filters(query)
    condition, states = _any_of(sorted(set(query.states)))
    return f"SELECT count(*) FROM jobs WHERE {condition}{where}", [*states, *values]


def _any_of(states: list[str]) -> tuple[str, list[str]]:
    """A condition, and its values; none for all states, so that an index without them is enough."""
    if len(states) == len(jobs.JobStatus.ALL):
        return "1", []
    return f"state IN ({', '.join('?' * len(states))})", states


def _filters(query: Query) -> tuple[str, list[Any]]:
    where, values = "", []
    for label in _LABELS:
        if getattr(query, label) is not None:
            where += f" AND {label} = ?"
            values.append(getattr(query, label))
    if query.created_from is not None:
        where += " AND created >= ?"
        values.append(query.created_from)
    if query.created_before is not None:
        where += " AND created < ?"
        values.append(query.created_before)
    return where, values
