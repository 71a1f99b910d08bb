"""What a client is told instead of events that are lost: the state of its jobs (docs/clients.md)."""

from __future__ import annotations

from typing import Any

from comfy_execution import jobs, jsonbytes
from jobs import cards
from jobs.store import Row
from protocol import to_json

MOST_PENDING = 1_000
MOST_ENDED = 50  # newest first
LARGEST_OUTPUTS = 64 << 10  # bytes of a job's outputs; larger ones are to be fetched


def snapshot(server: Any, client_id: str) -> dict[str, Any]:
    """`{"instance_id", "jobs", "pending"}`: what of this client's has ended lately, runs or waits, in this order.

    jobs: as in GET /api/jobs. A running one has `node`, the node that runs (null between nodes). Running and ended
        ones have `outputs` as the history has them, or `outputs_url` if they are large.
    pending: how many of its jobs wait, also if not all of them are listed.
    """
    queue = server.prompt_queue
    found = [_ended(row, record) for row, record in server.jobs.ended_of(client_id, MOST_ENDED)]
    running, waiting = (
        [entry for entry in entries if _client_of(entry) == client_id] for entries in queue.get_current_queue()
    )
    pending = [jobs.queued_job(entry, jobs.PENDING) for entry in waiting[:MOST_PENDING]]
    return {
        "instance_id": server.jobs.instance_id,
        "jobs": [*found, *(_running(server, entry) for entry in running), *pending],
        "pending": len(waiting),
    }


def _client_of(item: Any) -> Any:
    extra_data = item[3]
    return extra_data.get("client_id") if isinstance(extra_data, dict) else None


def _running(server: Any, entry: Any) -> dict[str, Any]:
    job = jobs.queued_job(entry, jobs.IN_PROGRESS)
    current = server.last_prompt_id == entry[1]
    job["node"] = server.last_node_id if current else None
    return job | _outputs(entry[1], server.outputs_of_run(entry[1]))


def _ended(row: Row, entry: Any) -> dict[str, Any]:
    if entry is None:  # cancelled while it waited
        return {**jsonbytes.decode(jsonbytes.encode(cards.listed(row, False))), "outputs": {}}
    return jobs.finished_job(entry) | _outputs(entry["prompt"][1], entry.get("outputs") or {})


def _outputs(prompt_id: str, outputs: dict[str, Any]) -> dict[str, Any]:
    if len(to_json(outputs)) > LARGEST_OUTPUTS:
        return {"outputs_url": f"/api/jobs/{prompt_id}"}
    return {"outputs": outputs}
