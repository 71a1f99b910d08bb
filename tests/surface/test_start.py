"""A start asks nobody on the network for anything, and HTTP answers while a node keeps the interpreter busy."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.end_to_end.conftest import Server
from tests.examples.server_process import REPO, environment, free_port, server_arguments

pytestmark = pytest.mark.slow

# Put into every Python process of the start: connections to other machines fail, and are written down.
NO_NETWORK = """
import os, socket
_connect, _resolve = socket.socket.connect, socket.getaddrinfo

def _note(what):
    with open(os.environ["NETWORK_NOTES"], "a") as file:
        file.write(f"{what}\\n")

def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
        _note(address)
        raise OSError("no network")
    return _connect(self, address)

def getaddrinfo(host, *args, **kwargs):
    if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::"):
        _note(host)
        raise socket.gaierror("no network")
    return _resolve(host, *args, **kwargs)

socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo
"""

BUSY = """
import time

class BusyLoop:
    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seconds": ("FLOAT", {})}}

    def run(self, seconds):
        end = time.monotonic() + seconds
        count = 0
        while time.monotonic() < end:
            count += 1
        return {"ui": {"count": [count]}}

NODE_CLASS_MAPPINGS = {"BusyLoop": BusyLoop}
"""


def test_a_start_needs_no_network(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    notes = tmp_path / "notes"
    env = {**environment(), "PYTHONPATH": str(tmp_path / "site"), "NETWORK_NOTES": str(notes)}
    command = [sys.executable, "main.py", *server_arguments(tmp_path, free_port()), "--quick-test-for-ci"]
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not notes.exists(), notes.read_text()
    # The probe works: a process that does ask is found out.
    asks = "import socket; socket.create_connection(('example.invalid', 80))"
    asked = subprocess.run([sys.executable, "-c", asks], env=env, capture_output=True, text=True)
    assert asked.returncode != 0 and "example.invalid" in notes.read_text()


def test_http_answers_while_a_node_is_busy(tmp_path):
    (tmp_path / "custom_nodes").mkdir()
    (tmp_path / "custom_nodes" / "busy.py").write_text(BUSY)
    with Server(tmp_path) as server:
        prompt = {"1": {"class_type": "BusyLoop", "inputs": {"seconds": 4.0}}}
        status, answer = server.post("/prompt", {"prompt": prompt})
        assert status == 200
        answered_while_busy = 0
        while not server.get(f"/history/{answer['prompt_id']}"):
            answered_while_busy += bool(server.get("/queue")["queue_running"])
            time.sleep(0.02)
        assert answered_while_busy >= 3
        assert server.get(f"/history/{answer['prompt_id']}")[answer["prompt_id"]]["status"]["completed"]
