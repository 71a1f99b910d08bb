"""What a real server does by itself while nobody asks for anything, and what is left of one that was killed."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from tests.jobs.test_shutdown_process import Server

pytestmark = pytest.mark.slow

PACK = """
import os, time

class Quick:
    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "run", True
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT", {}), "tag": ("STRING", {})}}
    def run(self, seconds, tag):
        return {"ui": {"text": [tag]}}

class Forks(Quick):
    def run(self, seconds, tag):
        child = os.fork()
        if child == 0:
            time.sleep(seconds)
            os._exit(0)
        return {"ui": {"text": [str(child)]}}

NODE_CLASS_MAPPINGS = {"Quick": Quick, "Forks": Forks}
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "quick.py").write_text(PACK)
    servers = []

    def start_server(*flags: str) -> Server:
        servers.append(Server(tmp_path, *flags))
        servers[-1].wait_until_answers("/object_info")
        return servers[-1]

    yield start_server
    for server in servers:
        server.process.kill()
        server.process.wait()


def total(server: Server) -> int:
    return server.get("/api/jobs?limit=1")["pagination"]["total"]


def run(server: Server, class_type: str, tag: str, seconds: float = 0) -> dict:
    """Submit a prompt; its outputs, once it has ended."""
    ident = server.submit(class_type, seconds, tag)
    server.until(lambda: server.get(f"/history/{ident}"))
    return server.get(f"/history/{ident}")[ident]["outputs"]["1"]


def test_an_idle_server_deletes_what_is_old_and_misses_its_file(start):
    server = start()
    for number in range(5):
        run(server, "Quick", str(number))
    server.stop(signal.SIGKILL)
    server = start("--keep-history", "3")
    server.until(lambda: total(server) == 3)
    os.remove(server.folder / "user" / "jobs.db")
    server.until(lambda: server.get("/health")["status"] == "degraded")
    problem = server.get("/health")["store"]["problem"]
    assert "jobs.db was removed or replaced while the server used it" in problem and problem in server.log
    assert total(server) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_what_a_node_has_forked_off_is_not_in_the_next_servers_way(start):
    server = start()
    (child,) = run(server, "Forks", "x", 60)["text"]
    server.stop(signal.SIGKILL)
    try:
        os.kill(int(child), 0)  # it lives
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", server.port))
            free.listen()
        started = time.monotonic()
        again = start()
        store = again.get("/health")["store"]
        assert store["state"] == "ok" and store["persistent"], store
        assert time.monotonic() - started < 60
    finally:
        os.kill(int(child), signal.SIGKILL)
