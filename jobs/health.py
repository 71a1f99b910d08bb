"""What GET /health tells: degraded means that prompts run, but something an operator should know is amiss."""

from __future__ import annotations

from typing import Any

OK, DEGRADED = "ok", "degraded"
_AMISS = (DEGRADED, "dead", "no_progress")  # states of the store and of the worker


def not_ready(server: Any) -> str | None:
    """Why a prompt sent now would not run soon: for people; None if it would, once those before it have run."""
    if getattr(server, "retry_after", None) is not None:
        return "the server is stopping"
    if not server.nodes_ready.is_set():
        return "the nodes are being loaded"
    worker = server.worker_state()
    return worker["message"] if worker["state"] == "dead" else None


def health(server: Any) -> dict[str, Any]:
    """`{"status", "instance_id", "started_at" (s since the epoch), "nodes_ready", "store", "queue", "worker"?}`.

    `worker` is what `server.worker_state()` says, if the server has one.
    """
    ledger, queue = server.jobs, server.prompt_queue
    store = ledger.health()
    parts = {"store": store, "worker": server.worker_state()}
    with queue.mutex:
        running, remaining = len(queue.currently_running), queue.get_tasks_remaining()
    amiss = any(part["state"] in _AMISS for part in parts.values())
    return {
        "status": DEGRADED if amiss else OK,
        "instance_id": ledger.instance_id,
        "started_at": ledger.started_at,
        "nodes_ready": server.nodes_ready.is_set(),
        "queue": {"pending": remaining - running, "running": running, "paused": queue.paused},
        **parts,
    }
