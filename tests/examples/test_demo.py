"""How the server starts, draws its demonstration picture, and ends: the processes and signals of a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from PIL import Image

from tests.examples.server_process import REPO, ServerProcess, environment, free_port, server_arguments

pytestmark = pytest.mark.slow

DEMO_SECONDS = 240


class Terminal:
    """A process whose controlling terminal is a pty of ours."""

    def __init__(self, command: list[str]):
        self.output = ""
        self.pid, self._master = pty.fork()
        if self.pid == 0:  # the child, which must not return
            try:
                os.chdir(REPO)
                os.execvpe(command[0], command, environment())
            finally:
                os._exit(127)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._master)  # hangs up: whatever still runs in the terminal ends
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, pattern: str, seconds: float) -> re.Match:
        """Read until the output matches. Raises AssertionError with the output if it does not come to that."""
        deadline = time.monotonic() + seconds
        while (match := re.search(pattern, self.output)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {seconds} s:\n{self.output}"
            if not self._read(0.2) and self._ended():
                raise AssertionError(f"ended without {pattern!r}:\n{self.output}")
        return match

    def wait(self, seconds: float) -> int:
        """The exit status, once the process has ended by itself."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still running after {seconds} s:\n{self.output}")

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.output += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def _ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@pytest.fixture
def port() -> int:
    return free_port()


def check_demo(terminal: Terminal, port: int, folder) -> None:
    """The demo's lines are right: the picture is there, the page answers, the curl line works as printed."""
    terminal.read_until(r"Ctrl-C ends the server", DEMO_SECONDS)
    picture = re.search(r"Picture +(\S+)", terminal.output).group(1)
    assert os.path.dirname(picture) == str(folder / "output")
    assert Image.open(picture).size == (128, 128)
    url = re.search(r"Browser +(\S+)", terminal.output).group(1)
    assert url == f"http://127.0.0.1:{port}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"<html" in answer.read().lower()
    line = re.search(r"Shell +(curl .*)", terminal.output).group(1)
    again = subprocess.run(line, shell=True, cwd=REPO, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0 and '"prompt_id"' in again.stdout, again


def test_demo_goes_on_serving_until_ctrl_c(tmp_path, port):
    with Terminal([sys.executable, "main.py", "--demo", *server_arguments(tmp_path, port)]) as terminal:
        check_demo(terminal, port, tmp_path)
        terminal.type(b"\x03")
        assert terminal.wait(30) == 0, terminal.output
        assert "Traceback" not in terminal.output


def test_make_run_ends_with_status_0_on_ctrl_c(tmp_path, port):
    """`make` must not report an interrupted recipe: the server takes the terminal, and Ctrl-C reaches it alone."""
    if not (REPO / ".venv" / "bin" / "python").exists():
        pytest.skip("`make run` would install packages first; run `make install`")
    flags = " ".join(server_arguments(tmp_path, port))
    # -o: take the environment for complete, whatever the age of its mark.
    with Terminal(["make", "-o", ".venv/.installed", "run", f"ARGS={flags}"]) as terminal:
        check_demo(terminal, port, tmp_path)
        terminal.type(b"\x03")
        assert terminal.wait(30) == 0, terminal.output
        assert "Error" not in terminal.output and "Interrupt" not in terminal.output


def test_ctrl_c_while_the_nodes_load(tmp_path, port):
    with Terminal([sys.executable, "main.py", *server_arguments(tmp_path, port)]) as terminal:
        terminal.read_until(r"Listening on", 60)
        terminal.type(b"\x03")
        assert terminal.wait(30) == 0, terminal.output


def test_sigterm_ends_with_status_0(tmp_path):
    with ServerProcess(tmp_path) as server:
        assert server.stop(signal.SIGTERM) == 0, server.log
        assert "Traceback" not in server.log


def test_sigterm_while_a_prompt_runs_ends_with_status_0(tmp_path):
    with ServerProcess(tmp_path) as server:
        body = (REPO / "examples" / "text_to_image.json").read_bytes().replace(b'"steps": 20', b'"steps": 2000')
        with urllib.request.urlopen(f"{server.url}/prompt", body, timeout=30) as answer:
            assert answer.status == 200
        deadline = time.monotonic() + 60
        while not server.get("/queue")["queue_running"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert server.stop(signal.SIGTERM) == 0, server.log


def test_taken_port_ends_with_status_1_and_says_so(tmp_path, port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        command = [sys.executable, "main.py", *server_arguments(tmp_path, port)]
        result = subprocess.run(command, cwd=REPO, env=environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in result.stderr
    assert "Traceback" not in result.stderr
