#!/usr/bin/env python3
"""The experiment that every queue must pass: cancel one, interrupt one, retry one, and look at what became of all.

    python examples/queue_control.py

Five prompts that differ in their seed are queued. The third is cancelled while it waits, the fourth interrupted while
it runs; the fifth has to run by itself after that, and the third only when it is retried. Meanwhile GET /queue is
asked every second. At the end the server's ledger has to agree with all of it. Needs nothing but Python; the retry and
the ledger are Darkroom's, the rest works with any ComfyUI-compatible server.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

PROMPT = Path(__file__).parent / "text_to_image.json"
PATIENCE = 600  # seconds for a step of the experiment
LONGER = 50  # how many times the steps of the others the fourth has: it must not end before it is interrupted
MOST_STEPS = 10_000  # that a KSampler accepts
ENDS = ("completed", "failed", "cancelled")  # states of a job that no other follows


class Failed(Exception):
    """The server, or its queue, did not do what it should have done."""


class Server:
    """The few requests that the experiment needs."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def get(self, path: str) -> Any:
        """The JSON answer of a GET."""
        return self._send(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON answer of a POST, None without one."""
        data = json.dumps(body).encode() if body is not None else b""
        return self._send(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}))

    def _send(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Failed(f"{request.get_method()} {request.selector}: {error.code} {error.read()[:500]!r}") from error
        except OSError as error:
            raise Failed(f"{self.url}: {error}") from error
        return json.loads(text) if text else None

    def queue(self) -> tuple[list[str], list[str]]:
        """Ids of the prompts that run, and of those that wait in their order."""
        queue = self.get("/queue")
        return [item[1] for item in queue["queue_running"]], [item[1] for item in queue["queue_pending"]]

    def job(self, ident: str) -> dict[str, Any]:
        """All that the ledger knows of a job."""
        return self.get(f"/api/jobs/{ident}?full=true")


class Observer:
    """Asks for the queue again and again, and remembers which prompts ran, in order."""

    def __init__(self, server: Server, names: dict[str, str], seconds: float) -> None:
        self._server, self._names, self._seconds = server, names, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self.seen: list[str] = []
        self.together = False  # whether two prompts were ever seen running at once

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _main(self) -> None:
        while True:
            running, pending = self._server.queue()
            self.together = self.together or len(running) > 1
            self.seen += [ident for ident in running if self.seen[-1:] != [ident]]
            print(f"  /queue: running {self._named(running)}, waiting {self._named(pending)}", flush=True)
            if self._stopped.wait(self._seconds):
                return

    def _named(self, idents: list[str]) -> str:
        return " ".join(self._names.get(ident, "another") for ident in idents) or "-"


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition. Raises Failed if it never holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"waited in vain: {what}")
        time.sleep(0.02)


def prompt_with_seed(seed: int, steps: int) -> dict[str, Any]:
    """The graph of the example file with another seed and number of steps."""
    content = json.loads(PROMPT.read_text(encoding="utf-8"))
    graph = content.get("prompt", content)
    for node in graph.values():
        if node["class_type"] == "KSampler":
            node["inputs"] |= {"seed": seed, "steps": steps}
    return graph


def experiment(server: Server, steps: int, every: float, first_seed: int) -> list[dict[str, Any]]:
    """Do it; returns the five jobs as the ledger has them. Raises Failed if the queue does not pass."""
    lengths = [steps, steps, steps, min(steps * LONGER, MOST_STEPS), steps]
    idents = [
        server.post("/prompt", {"prompt": prompt_with_seed(first_seed + i, length)})["prompt_id"]
        for i, length in enumerate(lengths)
    ]
    third, fourth, fifth = idents[2:]
    names = {ident: f"#{i}" for i, ident in enumerate(idents, 1)}

    def runs(ident: str) -> bool:
        name, status = names[ident], server.job(ident)["status"]
        expect(status not in ENDS, f"{name} is seen while it runs, and is {status} already")
        return ident in server.queue()[0]

    def has_become(end: str, ident: str) -> bool:
        status = server.job(ident)["status"]
        expect(status in (end, "pending", "in_progress"), f"{names[ident]} becomes {end}, and is {status}")
        return status == end

    with Observer(server, names, every) as observer:
        answer = server.post(f"/api/jobs/{third}/cancel?full=true")
        print(f"cancel #3: {answer['state']}")
        expect(answer["state"] == "cancelled", "the third waits and is cancelled")
        expect(server.post(f"/api/jobs/{third}/cancel?full=true")["state"] == "already_finished", "only once")
        wait_until("the fourth runs", lambda: runs(fourth))
        server.post("/interrupt", {"prompt_id": fourth})
        print("interrupt #4")
        wait_until("the fourth ends", lambda: has_become("cancelled", fourth))
        wait_until("the fifth runs by itself, and ends", lambda: has_become("completed", fifth))
        expect(third not in observer.seen and not runs_of(server.job(third)), "the third has not run")
        server.post(f"/api/jobs/{third}/retry")
        print("retry #3")
        wait_until("the third ends", lambda: has_become("completed", third))
    found = [server.job(ident) for ident in idents]
    check(found, observer)
    return found


def runs_of(job: dict[str, Any]) -> list[tuple[int, int]]:
    """Start and end, in ms since the epoch, of the attempts that a worker began."""
    return [(a["start_time"], a["end_time"]) for a in job["attempts"] if a["worker"] != "queue"]


def check(found: list[dict[str, Any]], observer: Observer) -> None:
    """Does the ledger tell the story? Raises Failed if not."""
    ends = [[(a["result"], a.get("reason")) for a in job["attempts"]] for job in found]
    done, stopped = ("completed", None), ("cancelled", "interrupted")
    expect(ends == [[done], [done], [stopped, done], [stopped], [done]], f"each attempt has its end: {ends}")
    expect([job["status"] for job in found] == ["completed"] * 3 + ["cancelled", "completed"], "so has each job")
    expect(found[3]["by"]["route"].endswith("/interrupt"), "it is known who interrupted the fourth")
    runs = sorted(run for job in found for run in runs_of(job))
    expect(all(before[1] <= after[0] for before, after in pairwise(runs)), "runs never overlap")
    expect(not observer.together, "and were never seen to")
    expect(runs[-2:] == runs_of(found[4]) + runs_of(found[2]), "the third ran last, behind the fifth")


def expect(holds: bool, what: str) -> None:
    """Raises Failed unless it holds."""
    if not holds:
        raise Failed(f"this does not hold: {what}")


def show(found: list[dict[str, Any]]) -> None:
    """Print what the ledger has."""
    start = min(attempt["start_time"] for job in found for attempt in job["attempts"])
    for i, job in enumerate(found, 1):
        print(f"#{i} {job['status']}")
        for attempt in job["attempts"]:
            began, ended = ((attempt[key] - start) / 1000 for key in ("start_time", "end_time"))
            by = f" by {attempt['by']['route']}" if "by" in attempt else ""
            why = f": {attempt['reason']}{by}" if "reason" in attempt else ""
            where = "in the queue" if attempt["worker"] == "queue" else f"{began:.2f} s to {ended:.2f} s"
            print(f"   attempt {attempt['number']}, {where}: {attempt['result']}{why}")


def main() -> int:
    """Run the experiment; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="address (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="sampling steps of each prompt (%(default)s)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks at /queue (%(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the first prompt")
    args = parser.parse_args()
    try:
        show(experiment(Server(args.server), args.steps, args.every, args.seed))
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    print("The queue passes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
