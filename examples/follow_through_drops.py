#!/usr/bin/env python3
"""Submit a prompt and follow it to its end, however often the connection breaks or the server restarts.

    python examples/follow_through_drops.py --prompt-file examples/text_to_image.json

Each event carries a number (`seq`). After a break the script connects with `since=<the last number>`: the server
replays what was missed, or, if it no longer can, sends the state of this client's jobs (docs/clients.md).
Needs aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

PAUSE_SECONDS = 0.5  # before the next attempt to connect
OVER = ("completed", "failed", "cancelled")
END_EVENTS = {"execution_success": "completed", "execution_error": "failed", "execution_interrupted": "cancelled"}


@dataclass
class Job:
    """What is known of one prompt."""

    prompt_id: str
    status: str = "pending"
    node: str | None = None
    outputs: dict[str, Any] = field(default_factory=dict)

    def on_event(self, kind: str, data: dict[str, Any]) -> None:
        """Take in an event of a run."""
        if data.get("prompt_id") != self.prompt_id:
            return
        if kind == "execution_start":
            self.status = "in_progress"
        elif kind == "executing":
            self.node = data["node"]
        elif kind == "executed":
            self.outputs[data["node"]] = data["output"]
        elif kind in END_EVENTS:
            self.status = END_EVENTS[kind]

    def on_snapshot(self, jobs: list[dict[str, Any]]) -> None:
        """Take in what stands for events that are lost. Raises LookupError if the server does not know the job."""
        found = next((job for job in jobs if job["id"] == self.prompt_id), None)
        if found is None:
            raise LookupError(f"the server does not know job {self.prompt_id}")
        self.status, self.node = found["status"], found.get("node")
        self.outputs = found.get("outputs", self.outputs)


async def follow(server: str, client_id: str, job: Job, report: Any = print) -> Job:
    """Follow a job to its end. Raises LookupError if the server has forgotten it."""
    since = 0
    async with aiohttp.ClientSession() as session:
        while job.status not in OVER:
            try:
                query = {"clientId": client_id, "since": str(since)}
                async with session.ws_connect(f"{server}/ws", params=query, max_msg_size=0) as socket:
                    async for frame in socket:
                        if frame.type is not aiohttp.WSMsgType.TEXT:
                            continue  # a picture
                        event = json.loads(frame.data)
                        kind, data = event["type"], event["data"] or {}
                        since = event.get("seq", since)
                        if kind in ("snapshot", "resumed"):
                            since = data["seq"]
                        if kind == "snapshot":
                            job.on_snapshot(data["jobs"])
                        else:
                            job.on_event(kind, data)
                        report(f"{kind:20} {job.status}, node {job.node}")
                        if job.status in OVER:
                            return job
            except (aiohttp.ClientConnectionError, aiohttp.WSServerHandshakeError, ConnectionError) as error:
                report(f"not connected: {error}")
            await asyncio.sleep(PAUSE_SECONDS)
    return job


async def run(server: str, graph: dict[str, Any]) -> Job:
    """Submit a graph and follow it."""
    client_id = str(uuid.uuid4())
    body = {"prompt": graph, "client_id": client_id}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server}/prompt", json=body, raise_for_status=True) as answer,
    ):
        prompt_id = (await answer.json())["prompt_id"]
    # No hurry to connect: the snapshot tells what has happened since.
    return await follow(server, client_id, Job(prompt_id), lambda line: print(line, file=sys.stderr))


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Submit a prompt and follow it through lost connections.")
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="%(default)s")
    parser.add_argument("--prompt-file", type=Path, default=Path(__file__).parent / "text_to_image.json")
    args = parser.parse_args()
    content = json.loads(args.prompt_file.read_text(encoding="utf-8"))
    job = asyncio.run(run(args.server.rstrip("/"), content.get("prompt", content)))
    print(json.dumps({"prompt_id": job.prompt_id, "status": job.status, "outputs": job.outputs}))
    return 0 if job.status == "completed" else 1


if __name__ == "__main__":
    sys.exit(main())
