"""Kills the server with -9 again and again while clients submit, and looks at what is left at the end.

    python tests/jobs/fault.py [--prompts 300] [--clients 8] [--kills 20] [--seed 1]

Each client submits prompts of its own ids one after the other, and repeats a request until it is answered: what was
accepted before a crash must not run twice because of that. Everything random comes from the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0  # seconds for anything
PACK = '''
import time


class FaultStep:
    """Takes a while."""

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"
    CATEGORY = "fault"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "seconds": ("FLOAT", {"default": 0.0}), "seed": ("INT", {})}}

    def run(self, image, seconds, seed):
        time.sleep(seconds)
        return (image,)


NODE_CLASS_MAPPINGS = {"FaultStep": FaultStep}
'''
TERMINAL = ("completed", "failed", "cancelled")


class Trial:
    """One server in a folder of its own, which is killed and started, and the clients that use it."""

    def __init__(self, base: Path, prompts: int, clients: int, kills: int, seed: int) -> None:
        self.base, self.seed, self.kills = base, seed, kills
        self.dice = random.Random(seed)
        (base / "custom_nodes").mkdir(parents=True, exist_ok=True)
        (base / "custom_nodes" / "fault_pack.py").write_text(PACK)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.plans = [self.plan(client, len(range(client, prompts, clients))) for client in range(clients)]
        self.accepted: list[list[dict[str, Any]]] = [[] for _ in range(clients)]
        self.allowed = threading.Semaphore(0)  # how many prompts may be submitted yet
        self.failed: list[BaseException] = []

    def plan(self, client: int, count: int) -> list[dict[str, Any]]:
        """The bodies that a client is going to submit, in order."""
        dice = random.Random(f"{self.seed} {client}")
        return [
            {
                "prompt": {
                    "1": {
                        "class_type": "EmptyImage",
                        "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": dice.randrange(2**24)},
                    },
                    "2": {
                        "class_type": "FaultStep",
                        "inputs": {"image": ["1", 0], "seconds": dice.choice([0.0, 0.02, 0.1]), "seed": number},
                    },
                    "3": {
                        "class_type": "SaveImage",
                        "inputs": {"images": ["2", 0], "filename_prefix": f"fault/c{client}"},
                    },
                },
                "prompt_id": str(uuid.UUID(int=dice.getrandbits(128), version=4)),
                "client_id": f"client-{client}",
                "number": dice.choice([0, 0, 0, 1]),
                "extra_data": {"order": number},
            }
            for number in range(count)
        ]

    # --- the server ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server and wait until it listens."""
        command = [sys.executable, "main.py", "--cpu", "--port", str(self.port), "--base-directory", str(self.base)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with open(self.base / "server.log", "ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + PATIENCE
        while self.get("/queue") is None:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"the server does not listen\n{self.log()}"
            time.sleep(0.05)

    def until_ready(self) -> None:
        """Wait until nodes are loaded."""
        deadline = time.monotonic() + PATIENCE
        while not (self.get("/health") or {}).get("nodes_ready"):
            assert time.monotonic() < deadline, f"the nodes are not ready\n{self.log()}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End the server at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        """The end of what it has said."""
        return (self.base / "server.log").read_text(errors="replace")[-4000:]

    def get(self, path: str) -> Any:
        """The answer to a GET, None if there is none."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return json.load(answer)
        except (OSError, ValueError, urllib.error.URLError):
            return None

    # --- the clients -----------------------------------------------------------------------------------------

    def client(self, number: int) -> None:
        """Submit a client's prompts, each until it is answered."""
        try:
            for body in self.plans[number]:
                self.allowed.acquire()
                self.accepted[number].append({**self.submit(body), "body": body})
        except BaseException as error:
            self.failed.append(error)
            raise

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to POST /prompt, repeated while the server is away."""
        request = urllib.request.Request(self.url + "/prompt", json.dumps(body).encode(), method="POST")
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise AssertionError(f"{error.code}: {error.read()[:500]!r}") from error
            except (OSError, ValueError, urllib.error.URLError):
                pass
            assert time.monotonic() < deadline, f"no answer to {body['prompt_id']}\n{self.log()}"
            time.sleep(0.05)

    # --- the trial -------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Do it all; returns a summary. AssertionError if anything is not as promised."""
        threads = [
            threading.Thread(target=self.client, args=(number,), daemon=True) for number in range(len(self.plans))
        ]
        for thread in threads:
            thread.start()
        total = sum(len(plan) for plan in self.plans)
        share = -(-total // (self.kills + 1))
        try:
            for _ in range(self.kills):
                self.start()
                if self.dice.random() < 0.8:
                    self.until_ready()
                    self.allowed.release(share)
                time.sleep(self.dice.uniform(0, 1.5))
                self.kill()
            self.start()
            self.allowed.release(total)
            for thread in threads:
                thread.join(PATIENCE)
            assert not self.failed, self.failed
            assert sum(map(len, self.accepted)) == total, "not every prompt was accepted"
            self.until_idle()
            return self.check()
        finally:
            self.kill()

    def until_idle(self) -> None:
        """Wait until nothing waits or runs."""
        deadline = time.monotonic() + PATIENCE
        while True:
            queue = (self.get("/health") or {}).get("queue")
            if queue is not None and queue["pending"] == queue["running"] == 0:
                return
            assert time.monotonic() < deadline, f"{queue}\n{self.log()}"
            time.sleep(0.1)

    def check(self) -> dict[str, Any]:
        """Everything that is promised."""
        listed = self.get("/api/jobs?full=1")["jobs"]
        jobs = {job["id"]: job for job in listed}
        wanted = {answer["prompt_id"] for answers in self.accepted for answer in answers}
        assert len(listed) == len(jobs) and set(jobs) == wanted, "jobs were lost or made up"
        history = self.get("/history?max_items=100000")
        for ident, job in jobs.items():
            self.check_job(job, history.get(ident))
        self.check_order(jobs)
        pictures = self.check_files()
        self.check_database(len(jobs))
        results = Counter(attempt["result"] for job in listed for attempt in job["attempts"])
        return {
            "jobs": len(jobs),
            "states": dict(Counter(job["status"] for job in listed)),
            "attempts": dict(results),
            "pictures": pictures,
        }

    def check_job(self, job: dict[str, Any], entry: dict[str, Any] | None) -> None:
        """Exactly one terminal state; completed once, or a reason why not."""
        results = [attempt["result"] for attempt in job["attempts"]]
        assert job["status"] in TERMINAL, job
        assert entry is not None, f"{job['id']} is in no history"
        assert [number + 1 for number in range(len(results))] == [a["number"] for a in job["attempts"]], job
        assert all(result == "died" for result in results[:-1]), job
        if job["status"] == "completed":
            assert results[-1] == "completed" and entry["status"]["completed"] is True, job
            (file,) = entry["outputs"]["3"]["images"]
            assert (self.base / "output" / file["subfolder"] / file["filename"]).is_file(), file
        else:
            assert job["reason"] == "worker_died" and results.count("died") == 2, job
            assert job["detail"] == "the server died while this job ran, 2 times", job

    def check_order(self, jobs: dict[str, dict[str, Any]]) -> None:
        """Of one client's prompts of one number, none ran before one that was accepted before it."""
        for answers in self.accepted:
            for number in (0, 1):
                mine = [jobs[a["prompt_id"]] for a in answers if a["body"]["number"] == number]
                started = [job["attempts"][-1]["start_time"] for job in mine]
                assert started == sorted(started), [(job["id"], job["attempts"]) for job in mine]

    def check_files(self) -> int:
        """No picture is half-written. Returns how many there are."""
        from PIL import Image

        files = [path for path in (self.base / "output").rglob("*") if path.is_file() and path.suffix == ".png"]
        for path in files:
            with Image.open(path) as picture:
                picture.load()
        return len(files)

    def check_database(self, jobs: int) -> None:
        """The file is whole."""
        import sqlite3

        with sqlite3.connect(f"file:{self.base}/user/jobs.db?mode=ro", uri=True) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("SELECT count(*) FROM payloads WHERE result IS NOT NULL").fetchone() == (jobs,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        trial = Trial(Path(folder), given.prompts, given.clients, given.kills, given.seed)
        print(json.dumps(trial.run()), f"after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
