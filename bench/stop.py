"""How long a server takes to end: idle, with a node that looks at the interrupt, and with nodes that never do.

    python bench/stop.py [--runs N] [--check]

Goal: 3 s from SIGTERM to the end of the process, with a client connected and prompts waiting. With --check a missed
goal, or another exit status than 0, is exit status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.examples.server_process import ServerProcess

GOAL = 3.0  # seconds
PACK = """
import time
from comfy.model_management import throw_exception_if_processing_interrupted

class Sleeps:
    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "run", True
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"tag": ("INT", {})}}
    def run(self, tag):
        time.sleep(600)

class Computes(Sleeps):
    def run(self, tag):
        while True:
            pass

class Looks(Sleeps):
    def run(self, tag):
        while True:
            time.sleep(0.01)
            throw_exception_if_processing_interrupted()

NODE_CLASS_MAPPINGS = {"Sleeps": Sleeps, "Computes": Computes, "Looks": Looks}
"""


async def stop_once(class_type: str | None) -> tuple[float, int, int | None]:
    """Start a server, give it 20 prompts of a class, tell it to stop.

    Returns:
        Seconds until the process has ended, its exit status, the code that a WebSocket was closed with.
    """
    with tempfile.TemporaryDirectory() as folder:
        packs = Path(folder) / "custom_nodes"
        packs.mkdir()
        (packs / "holding.py").write_text(PACK)
        server = await asyncio.to_thread(ServerProcess(Path(folder)).__enter__)
        try:
            async with aiohttp.ClientSession() as session, session.ws_connect(server.url + "/ws?clientId=c") as ws:
                for tag in range(20 if class_type else 0):
                    graph = {"1": {"class_type": class_type, "inputs": {"tag": tag}}}
                    async with session.post(server.url + "/prompt", json={"prompt": graph, "client_id": "c"}) as answer:
                        answer.raise_for_status()
                if class_type:
                    while (await ws.receive_json()).get("type") != "executing":
                        pass
                started = time.perf_counter()
                server.process.send_signal(signal.SIGTERM)
                async for _ in ws:
                    pass
                status = await asyncio.to_thread(server.process.wait, 60)
                return time.perf_counter() - started, status, ws.close_code
        finally:
            server.process.kill()
            server.process.wait()


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure how long the server takes to end.")
    parser.add_argument("--runs", type=int, default=3, help="times to take the median of (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    args = parser.parse_args()
    missed = False
    for name, class_type in (("idle", None), ("looks", "Looks"), ("sleeps", "Sleeps"), ("computes", "Computes")):
        runs = [asyncio.run(stop_once(class_type)) for _ in range(max(1, args.runs))]
        median = statistics.median(seconds for seconds, _, _ in runs)
        ends = sorted({(status, code) for _, status, code in runs})
        missed |= median > GOAL or ends != [(0, 1001)]
        shown = ", ".join(f"status {status}, socket {code}" for status, code in ends)
        print(f"{name:10} median {median:.2f} s  (goal {GOAL:.1f} s; {shown})")
    return 1 if missed and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
