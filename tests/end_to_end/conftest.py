"""One real server for this folder, with a pack of misbehaving nodes and a drawer of broken model files."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request

import pytest

from tests.end_to_end.broken_files import write_broken_checkpoints
from tests.examples.server_process import REPO, ServerProcess


class Server(ServerProcess):
    """A server process with the few calls that these tests make."""

    def post(self, path: str, body: object) -> tuple[int, dict]:
        """(status, JSON answer); `body` is sent as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            text = error.read()
            assert error.headers["Content-Type"].startswith("application/json"), text
            return error.code, json.loads(text)

    def run(self, prompt: dict, seconds: float = 120) -> dict:
        """Submit a prompt, wait for its end, return its history entry."""
        status, answer = self.post("/prompt", {"prompt": prompt})
        assert status == 200, answer
        return self.wait_for(answer["prompt_id"], seconds)

    def wait_for(self, prompt_id: str, seconds: float = 120) -> dict:
        """The history entry of a prompt, once it has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            entry = self.get(f"/history/{prompt_id}").get(prompt_id)
            if entry is not None:
                return entry
            time.sleep(0.02)
        raise AssertionError(f"the prompt did not end in {seconds} s:\n{self.log[-3000:]}")

    def error_of(self, prompt: dict) -> dict:
        """Run a prompt that must fail; returns the data of its execution_error."""
        entry = self.run(prompt)
        assert entry["status"]["status_str"] == "error", entry["status"]
        kinds = [kind for kind, _ in entry["status"]["messages"]]
        assert kinds == ["execution_start", "execution_cached", "execution_error"]
        return entry["status"]["messages"][-1][1]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("end_to_end")
    (folder / "custom_nodes").mkdir()
    shutil.copy(REPO / "tests" / "end_to_end" / "misbehaving_pack.py", folder / "custom_nodes")
    write_broken_checkpoints(folder / "models" / "checkpoints")
    with Server(folder) as process:
        yield process
        assert process.process.poll() is None, process.log[-3000:]
