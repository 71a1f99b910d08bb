"""The end of a real server process: what runs, what waits, the sockets, the exit status (field case O-01)."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from tests.examples.server_process import ServerProcess
from tests.jobs.conftest import Life

pytestmark = pytest.mark.slow

PACK = """
import os, time, folder_paths
from comfy.model_management import throw_exception_if_processing_interrupted

def mark(name):
    with open(os.path.join(folder_paths.get_user_directory(), "ran.txt"), "a") as file:
        file.write(name + "\\n")

class Deaf:
    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "run", True
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT", {}), "tag": ("STRING", {})}}
    def run(self, seconds, tag):
        mark("begin " + tag)
        self.wait(seconds)
        mark("end " + tag)
        return {"ui": {"text": [tag]}}
    def wait(self, seconds):
        time.sleep(seconds)

class Polite(Deaf):
    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            throw_exception_if_processing_interrupted()

class Greedy(Deaf):
    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

NODE_CLASS_MAPPINGS = {"Deaf": Deaf, "Polite": Polite, "Greedy": Greedy}
"""


class Server(ServerProcess):
    """A server process with the nodes above."""

    def post(self, path: str, body: object = None) -> tuple[int, object, object]:
        """(status, JSON answer, headers)."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None, answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def submit(self, class_type: str, seconds: float, tag: str, **body: object) -> str:
        prompt = {"1": {"class_type": class_type, "inputs": {"seconds": seconds, "tag": tag}}}
        status, answer, _ = self.post("/prompt", {"prompt": prompt, **body})
        assert status == 200, answer
        return answer["prompt_id"]

    @property
    def ran(self) -> list[str]:
        marks = self.folder / "user" / "ran.txt"
        return marks.read_text().splitlines() if marks.exists() else []

    def until(self, condition, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.01)

    def queue(self) -> list[str]:
        """Ids: what runs, then what waits."""
        found = self.get("/queue")
        return [item[1] for item in (*found["queue_running"], *found["queue_pending"])]


@pytest.fixture
def start(tmp_path):
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "holding.py").write_text(PACK)
    (tmp_path / "user").mkdir()
    servers = []

    def start_server(*flags: str, ready: bool = True) -> Server:
        """A server that answers, with `ready=False` as early as that is possible."""
        server = Server(tmp_path, *flags)
        servers.append(server)
        server.wait_until_answers("/object_info" if ready else "/queue")
        return server

    yield start_server
    for server in servers:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("class_type", ["Polite", "Deaf", "Greedy"])
def test_what_runs_is_put_back_and_what_waits_is_kept(start, class_type):
    server = start()
    ids = [server.submit(class_type, 600, f"{i}", number=number) for i, number in enumerate((1, 4, 3, 2))]
    server.until(lambda: server.ran)
    assert server.stop() == 0
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", server.port))
    assert "Traceback" not in server.log and "holds up" not in server.log
    assert server.ran == ["begin 0"]
    again = Life(server.folder / "user" / "jobs.db", "pause")
    try:
        assert again.waiting() == [ids[0], *reversed(ids[1:])]
        assert [entry[0] for entry in again.queue.queue] == [1, 2, 3, 4]
        (attempt,) = again.ledger.find(ids[0]).attempts
        assert (attempt.result, attempt.reason) == ("put_back", "shutdown")
    finally:
        again.stop()


SLOW_DISK = """
import os, time, folder_paths
from jobs.sqlite_store import SqliteStore

class Slow(SqliteStore):
    def apply(self, changes):
        if os.path.exists(os.path.join(folder_paths.get_user_directory(), "slow")):
            time.sleep(3)
        apply(self, changes)

apply, SqliteStore.apply = SqliteStore.apply, Slow.apply
NODE_CLASS_MAPPINGS = {}
"""


@pytest.mark.parametrize("client", ["no client", "a client that stays"])
def test_what_a_slow_disk_has_to_take_is_waited_for(start, tmp_path, client):
    (tmp_path / "custom_nodes" / "slow_disk.py").write_text(SLOW_DISK)
    server = start()
    running = server.submit("Deaf", 600, "a")
    server.until(lambda: server.ran)
    waiting = server.submit("Deaf", 600, "b")
    (server.folder / "user" / "slow").touch()
    with socket.create_connection(("127.0.0.1", server.port)) as stays:
        if client != "no client":
            stays.sendall(b"POST /prompt HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
        assert server.stop() == 0
    again = Life(server.folder / "user" / "jobs.db", "pause")
    try:
        assert again.waiting() == [running, waiting]
        (attempt,) = again.ledger.find(running).attempts
        assert (attempt.result, attempt.reason) == ("put_back", "shutdown")
    finally:
        again.stop()


def test_what_runs_may_end_in_time(start):
    server = start("--drain-seconds", "60")
    first, second = [server.submit("Polite", 2.0, tag) for tag in "ab"]
    server.until(lambda: server.ran)
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: "may take 60 s more" in server.log)
    status, answer, headers = server.post("/prompt", {"prompt": {}})
    assert (status, answer["error"]["type"]) == (503, "server_stopping") and int(headers["Retry-After"]) >= 60
    assert server.process.wait(60) == 0
    assert server.ran == ["begin a", "end a"]
    again = start("--on-restart", "pause")
    assert again.queue() == [second]
    assert again.get(f"/api/jobs/{first}")["status"] == "completed"


def test_a_second_signal_ends_the_wait(start):
    server = start("--drain-seconds", "600")
    server.submit("Polite", 600, "a")
    server.until(lambda: server.ran)
    server.process.send_signal(signal.SIGINT)
    server.until(lambda: "may take 600 s more" in server.log)
    assert server.stop(signal.SIGINT) == 0


def test_sockets_hear_that_the_server_goes_away(start):
    server = start()

    async def listen() -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(server.url + "/ws?clientId=c") as ws,
            session.ws_connect(server.url + "/ws?clientId=deaf", autoclose=False),
        ):
            await ws.receive()
            server.process.send_signal(signal.SIGTERM)
            while (message := await ws.receive(timeout=30)).type not in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSED,
            ):
                pass
            return message.data if message.type is aiohttp.WSMsgType.CLOSE else ws.close_code

    assert asyncio.run(listen()) == 1001
    assert server.process.wait(30) == 0
    assert "holds up" not in server.log


def test_a_stuck_node_ends_the_process_if_that_is_wanted(start):
    server = start("--on-stuck", "exit", "--stuck-seconds", "0.5")
    stuck = server.submit("Deaf", 600, "a")
    waiting = server.submit("Polite", 0, "b")
    server.until(lambda: server.ran)
    assert server.post(f"/api/jobs/{stuck}/cancel?full=true")[1]["state"] == "stopping"
    assert server.process.wait(60) == 75
    again = start()
    again.until(lambda: again.get(f"/api/jobs/{waiting}")["status"] == "completed")
    job = again.get(f"/api/jobs/{stuck}")
    assert (job["status"], job["reason"]) == ("cancelled", "interrupted") and job["by"]["route"].endswith("/cancel")
    assert server.ran == ["begin a", "begin b", "end b"]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_come_before_the_server_is_up(tmp_path, sent):
    """At any moment of the start the process ends well; what it was importing leaves no traceback."""
    ends = []
    for step in range(10):
        folder = tmp_path / str(step)
        folder.mkdir()
        server = Server(folder)
        # From when main.py runs on: the interpreter itself takes a moment before.
        server.until(lambda process=server.process: catches(process.pid, signal.SIGTERM))
        time.sleep(step * 0.08)
        ends.append((server.stop(sent), "Traceback" in server.log, len(server.log.strip().splitlines())))
    assert {end[:2] for end in ends} == {(0, False)}, ends
    assert ends[0][2] == 1 and "came before the server was up" in (tmp_path / "0" / "server.log").read_text()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return (
        bool(int(caught.split()[1], 16) >> (number - 1) & 1) and "main.py" in Path(f"/proc/{pid}/cmdline").read_text()
    )


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_further_signals_do_not_cut_off_the_end(start, sent):
    server = start()
    for number in range(10_000):  # which take a moment to delete
        (server.folder / "temp" / f"{number}.png").touch()
    while server.process.poll() is None:
        server.process.send_signal(sent)
        time.sleep(0.01)
    assert server.process.returncode == 0, server.log[-3000:]
    assert not (server.folder / "temp").exists() and "Traceback" not in server.log


def test_stacks_are_printed_when_that_is_wanted(start):
    server = start("--debug-hang")
    assert server.stop(signal.SIGINT) == 0
    assert "Current thread" in server.log and "main.py" in server.log


def test_a_worker_that_never_had_a_chance(start):
    """Told to stop while the nodes are still being loaded."""
    server = start(ready=False)
    assert server.stop() == 0
