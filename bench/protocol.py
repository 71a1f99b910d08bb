"""What the protocol costs: submitting, a long queue, a long history, many events, a large input folder.

    python bench/protocol.py [--check]

Starts a server of its own with the node pack bench/packs/protocol_bench.py. "CPU" is what the server process used per
call, and says the same on a busy machine; "wall" is the median of what the client waited, and means something on an
idle machine only, as does p99. With --check a missed goal is exit status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import websocket

REPO = Path(__file__).resolve().parent.parent
PENDING, HISTORY, FILES, UPDATES, SOCKETS = 5_000, 10_000, 20_000, 10_000, 20
IN_FLIGHT, SUBMITTED, DEEP = 16, 1_600, 10_000  # requests at a time, prompts per measurement, length of the queue
ROUNDS = 5  # of submitting to the empty and to the long queue, in turn
PATIENCE = 180.0  # seconds for anything

# A prompt of the usual size.
PROMPT = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 8566257, "steps": 20, "cfg": 8.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0,
            "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0],
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "model.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 512, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a harbour at dawn, mist on the sea", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "text, watermark", "clip": ["4", 1]}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "bench", "images": ["8", 0]}},
}  # fmt: skip


# A valid one of six nodes.
SIX_NODES = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}},
    "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "3": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 255}},
    "4": {
        "class_type": "ImageBlend",
        "inputs": {"image1": ["2", 0], "image2": ["3", 0], "blend_factor": 0.5, "blend_mode": "normal"},
    },
    "5": {"class_type": "ImageInvert", "inputs": {"image": ["4", 0]}},
    "6": {"class_type": "PreviewImage", "inputs": {"images": ["5", 0]}},
}


@dataclass(frozen=True)
class Figure:
    """One line of the table. goal: the largest value that is good enough, None for a value told for comparison."""

    what: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def missed(self) -> bool:
        return self.goal is not None and self.value > self.goal


class Server:
    """The server under test, and one connection to it."""

    def __init__(self, base: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (base / "custom_nodes").mkdir()
        shutil.copy(REPO / "bench" / "packs" / "protocol_bench.py", base / "custom_nodes")
        command = [sys.executable, str(REPO / "main.py"), "--cpu", "--port", str(self.port)]
        self.log = base / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([*command, "--base-directory", str(base)], stdout=log, stderr=log)
        self.usage = psutil.Process(self.process.pid)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def wait_until_ready(self) -> None:
        """Wait for the nodes. Raises RuntimeError."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.get("/object_info/BenchWait")
                return
            except OSError:
                self.connection.close()
                time.sleep(0.1)
        raise RuntimeError(self.log.read_text(errors="replace")[-3000:])

    def request(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """(status, body, headers) of a request."""
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)

    def get(self, path: str) -> bytes:
        """The body of a 200."""
        status, body, _ = self.request("GET", path)
        if status != 200:
            raise RuntimeError(f"GET {path}: {status} {body[:300]!r}")
        return body

    def queue(self, class_type: str, client_id: str | None = None, **inputs: int) -> str:
        """Queue a prompt of one node; returns its id."""
        inputs["number"] = time.monotonic_ns() % (1 << 30)  # or it would come from the cache
        body = {"prompt": {"1": {"class_type": class_type, "inputs": inputs}}, "client_id": client_id}
        status, answer, _ = self.request("POST", "/prompt", body)
        if status != 200:
            raise RuntimeError(f"POST /prompt: {status} {answer[:500]!r}")
        return json.loads(answer)["prompt_id"]

    def cpu(self) -> float:
        """Seconds of processor time used so far."""
        times = self.usage.cpu_times()
        return times.user + times.system

    def settle(self) -> None:
        """Wait until the server has nothing left to do: the store writes what it was told, and forgets what went."""
        for _ in range(100):
            before = self.cpu()
            time.sleep(0.3)
            if self.cpu() - before <= 0.02:
                return

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def wall(operate: Callable[[], object], times: int) -> list[float]:
    """Milliseconds that each of several calls takes."""
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        operate()
        spent.append(1e3 * (time.perf_counter() - started))
    return spent


def measured(server: Server, operate: Callable[[], object], times: int) -> tuple[float, float]:
    """Milliseconds per call: of the server's processor time, and the median as the clock goes."""
    before = server.cpu()
    spent = wall(operate, times)
    return 1e3 * (server.cpu() - before) / times, statistics.median(spent)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@contextlib.contextmanager
def polling(server: Server, path: str) -> Iterator[None]:
    """Another process that asks for `path` again and again."""
    code = (
        "import http.client, sys\n"
        "c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]))\n"
        "while True:\n    c.request('GET', sys.argv[2]); c.getresponse().read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(server.port), path], stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def never_reads(port: int) -> socket.socket:
    """A client that shakes hands and then does not read."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", port))
    peer.sendall(
        b"GET /ws?clientId=deaf HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    peer.recv(256)
    return peer


# --- the figures -----------------------------------------------------------------------------------------------


def submission(server: Server) -> list[Figure]:
    """Posting a valid graph, many at a time, to an empty and to a long queue, with sockets attached."""
    url = f"ws://127.0.0.1:{server.port}/ws?clientId="
    sockets = [websocket.create_connection(f"{url}s{n}", timeout=PATIENCE) for n in range(SOCKETS)]
    drains = [threading.Thread(target=drain, args=(peer,), daemon=True) for peer in sockets]
    for thread in drains:
        thread.start()
    running = server.queue("BenchWait")
    while running not in [item[1] for item in json.loads(server.get("/queue"))["queue_running"]]:
        time.sleep(0.05)
    spent: dict[str, list[float]] = {"empty": [], "long": []}
    asyncio.run(post_many(server.port, SUBMITTED))  # warms up
    for _ in range(ROUNDS):
        for queue in ("empty", "long"):
            server.request("POST", "/queue", {"clear": True})
            if queue == "long":
                server.request("POST", "/bench/fill", {"prompt": PROMPT, "pending": DEEP, "history": 0})
            server.settle()
            before = server.cpu()
            asyncio.run(post_many(server.port, SUBMITTED))
            spent[queue].append(1e3 * (server.cpu() - before) / SUBMITTED)
    server.request("POST", "/queue", {"clear": True})
    server.request("POST", "/bench/release")
    for peer in sockets:
        peer.close()
    empty, long = statistics.median(spent["empty"]), statistics.median(spent["long"])
    what = f"POST /prompt of six nodes, {IN_FLIGHT} in flight, {SOCKETS} sockets, CPU per prompt"
    return [
        Figure(what, empty, "ms", 0.5),
        Figure(f"the same at {DEEP} pending", long, "ms"),
        Figure("the second to the first", long / empty, "x", 1.1),
    ]


def drain(peer: websocket.WebSocket) -> None:
    """Read a socket until it is closed."""
    with contextlib.suppress(websocket.WebSocketException, OSError):
        while True:
            peer.recv()


async def post_many(port: int, count: int) -> None:
    """Submit prompts that differ, IN_FLIGHT at a time."""
    numbers = iter(range(count))

    async def post(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            graph = {**SIX_NODES, "1": {**SIX_NODES["1"], "inputs": {**SIX_NODES["1"]["inputs"], "color": number}}}
            async with session.post(f"http://127.0.0.1:{port}/prompt", json={"prompt": graph}) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"POST /prompt: {answer.status} {await answer.text()}")
                await answer.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(post(session) for _ in range(IN_FLIGHT)))


def progress(server: Server) -> list[Figure]:
    """What reports cost a node, and what of them arrives."""
    deaf = never_reads(server.port)
    away = websocket.create_connection(f"ws://127.0.0.1:{server.port}/ws?clientId=bench-away&since=0", timeout=PATIENCE)
    while json.loads(away.recv())["type"] != "snapshot":
        pass
    away.close()
    reader = websocket.create_connection(f"ws://127.0.0.1:{server.port}/ws?clientId=bench", timeout=PATIENCE)
    prompt_id = server.queue("BenchProgress", "bench", updates=UPDATES)
    last: dict[str, float] = {}
    while True:
        message = json.loads(reader.recv())
        data = message["data"]
        if message["type"] == "bench.tick":
            last["event"] = data["value"]
        elif message["type"] == "progress":
            last["bar"] = data["value"]
        elif message["type"] == "progress_state":
            last["state"] = data["nodes"]["1"]["value"]
        elif message["type"] == "executing" and data["node"] is None:
            break
    reader.close()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deaf.close()
    entry = json.loads(server.get(f"/history/{prompt_id}"))[prompt_id]
    spent = {way["way"]: way for way in entry["outputs"]["1"]["bench"]}
    names = {
        "bar": "ProgressBar.update",
        "registry": "update_progress of the registry",
        "event": "send_sync to all, one never reads",
        "kept": "send_sync to one that is away and will ask",
    }
    figures = []
    for way, name in names.items():
        figures.append(Figure(f"{name}, each of {UPDATES}, CPU of the node's thread", spent[way]["cpu"], "µs", 10))
        figures.append(Figure(f"{name}, wall", spent[way]["wall"], "µs"))
    lost = sum(UPDATES - last.get(kind, 0) for kind in ("bar", "state", "event"))
    return [*figures, Figure("difference of the last value that arrived to the last reported", lost, "", 0)]


def encodings(server: Server) -> list[Figure]:
    """How often an event is encoded."""
    url = f"ws://127.0.0.1:{server.port}/ws?clientId="
    sockets = [websocket.create_connection(f"{url}s{n}", timeout=PATIENCE) for n in range(SOCKETS)]
    answer = json.loads(server.get("/bench/encodings"))
    for peer in sockets:
        peer.close()
    assert answer["sockets"] >= SOCKETS
    return [Figure(f"encodings of an event for {SOCKETS} sockets", answer["per_event"], "", 1)]


def long_queue(server: Server) -> list[Figure]:
    """Listing and changing a long queue, and a long history."""
    running = server.queue("BenchWait")
    while running not in [item[1] for item in json.loads(server.get("/queue"))["queue_running"]]:
        time.sleep(0.05)
    status, answer, _ = server.request(
        "POST", "/bench/fill", {"prompt": PROMPT, "pending": PENDING, "history": HISTORY}
    )
    if status != 200 or json.loads(answer) != {"pending": PENDING, "history": HISTORY}:
        raise RuntimeError(f"the queue cannot be filled: {status} {answer[:300]!r}")
    server.settle()
    size = len(server.get("/queue")) / 1e6
    cpu, spent = measured(server, lambda: server.get("/queue"), 40)
    figures = [
        Figure(f"GET /queue at {PENDING} pending ({size:.1f} MB), CPU", cpu, "ms", 20),
        Figure("the same, wall", spent, "ms"),
    ]
    jobs = [
        ("", 3),
        ("&status=completed,failed,cancelled", 3),
        ("&status=in_progress,pending", None),
        ("&sort_by=execution_duration", None),
        ("&workflow_id=none", None),
    ]
    for query, goal in jobs:
        path = f"/api/jobs?limit=50{query}"
        cpu, spent = measured(server, lambda path=path: server.get(path), 60)
        figures.append(Figure(f"GET {path} at {HISTORY} finished, CPU", cpu, "ms", goal))
        figures.append(Figure("the same, wall", spent, "ms"))
    with polling(server, "/queue"):
        spent = wall(lambda: server.get("/prompt"), 600)
    figures.append(Figure("GET /prompt while another polls /queue, p99", percentile(spent, 0.99), "ms", 30))
    operations = json.loads(server.get("/bench/operations"))
    figures += [Figure(f"{name} one by id", spent, "ms", 0.2) for name, spent in operations.items()]
    pending = [item[1] for item in json.loads(server.get("/queue"))["queue_pending"]]
    delete, cancel = iter(pending[:100]), iter(pending[100:200])
    requests = {
        "POST /queue {delete}": lambda: server.request("POST", "/queue", {"delete": [next(delete)]}),
        "POST /api/jobs/{id}/cancel": lambda: server.request("POST", f"/api/jobs/{next(cancel)}/cancel"),
        "GET /prompt": lambda: server.get("/prompt"),
    }
    for name, operate in requests.items():
        cpu, spent = measured(server, operate, 100)
        figures += [Figure(f"{name}, CPU", cpu, "ms"), Figure("the same, wall", spent, "ms")]
    server.request("POST", "/queue", {"clear": True})
    server.request("POST", "/bench/release")
    return figures


def definitions(server: Server, base: Path) -> list[Figure]:
    """The node definitions, with many files to choose from."""
    folder = base / "input"
    for number in range(FILES):
        (folder / f"picture_{number:05}.png").touch()
    time.sleep(1.1)  # a listing is kept only if the folder has been left alone for a moment
    _, body, headers = server.request("GET", "/object_info")
    tag = {"If-None-Match": headers.get("Etag", "-")}
    again, _, _ = server.request("GET", "/object_info", **tag)
    if f"picture_{FILES - 1:05}.png".encode() not in body:
        raise RuntimeError("the list does not hold the files")
    whole = measured(server, lambda: server.get("/object_info"), 30)
    unchanged = measured(server, lambda: server.request("GET", "/object_info", **tag), 30)
    with polling(server, "/object_info"):
        meanwhile = wall(lambda: server.get("/prompt"), 300)
    return [
        Figure(f"GET /object_info, {FILES} files in input ({len(body) / 1e6:.1f} MB), CPU", whole[0], "ms", 30),
        Figure("the same, wall", whole[1], "ms"),
        Figure("the same with If-None-Match, CPU", unchanged[0], "ms", 30),
        Figure("the same, wall", unchanged[1], "ms"),
        Figure("its status, less 304", abs(again - 304), "", 0),
        Figure("GET /prompt while another polls /object_info, p99", percentile(meanwhile, 0.99), "ms", 30),
    ]  # fmt: skip


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Measure what the server's HTTP side costs.")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    args = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        server = Server(base)
        try:
            server.wait_until_ready()
            for measure in (submission, progress, encodings, long_queue, lambda s: definitions(s, base)):
                figures += measure(server)
        finally:
            server.stop()
    width = max(len(figure.what) for figure in figures)
    for figure in figures:
        goal = "" if figure.goal is None else f"goal {figure.goal:g}" + ("  MISSED" if figure.missed else "")
        print(f"{figure.what:{width}}  {figure.value:9.3f} {figure.unit:2}  {goal}")
    return 1 if args.check and any(figure.missed for figure in figures) else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
