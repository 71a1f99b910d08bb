"""A real server process for tests: its own port, its own empty folders, the models of the checkout."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
MODEL_FILE = REPO / "models" / "checkpoints" / "darkroom-tiny.safetensors"
START_SECONDS = 180  # a loaded machine imports torch slowly
STOP_SECONDS = 180  # a process is gone only once what its threads write is on the disk, and disks stall


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """The environment of a test's processes: one thread for torch, so that the machine stays usable."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def server_arguments(folder: Path, port: int) -> list[str]:
    """Flags that give a server `folder` as its base directory, and the built-in model by an extra paths file."""
    paths_file = folder / "extra_paths.yaml"
    # JSON is YAML, and its quoting is easier to get right.
    paths_file.write_text(json.dumps({"darkroom": {"checkpoints": str(MODEL_FILE.parent)}}))
    return [
        *("--cpu", "--port", str(port), "--base-directory", str(folder)),
        *("--extra-model-paths-config", str(paths_file)),
    ]


class ServerProcess:
    """`python main.py` on a free port. Use as a context manager: leaving it ends the process.

    folder: an empty folder, the server's base directory.
    log: what the server printed; the file is in the folder.
    """

    def __init__(self, folder: Path, *flags: str):
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log_file = folder / "server.log"
        command = [sys.executable, "main.py", *server_arguments(folder, self.port), *flags]
        with open(self._log_file, "wb") as log:
            self.process = subprocess.Popen(
                command, cwd=REPO, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> ServerProcess:
        try:
            self.wait_until_answers("/queue")
            self.wait_until_answers("/object_info")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.stop()

    @property
    def log(self) -> str:
        """Everything the server has printed so far."""
        return self._log_file.read_text(errors="replace")

    def wait_until_answers(self, path: str, seconds: float = START_SECONDS) -> None:
        """Wait for a 200. Raises AssertionError, with the end of the log, if the server ends or stays silent."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log[-3000:]}")
            try:
                with urllib.request.urlopen(self.url + path, timeout=START_SECONDS) as answer:
                    answer.read()
                return
            except urllib.error.HTTPError as error:
                raise AssertionError(f"GET {path}: {error.code}\n{self.log[-3000:]}") from error
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"no answer to GET {path} in {seconds} s:\n{self.log[-3000:]}")

    def get(self, path: str) -> object:
        """The JSON answer of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """End the process with a signal; returns its exit status. Kills it if it does not obey."""
        self.process.send_signal(with_signal)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server ignored signal {with_signal}:\n{self.log[-3000:]}") from None
