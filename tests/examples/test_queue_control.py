"""The experiment that every queue must pass: cancelled, interrupted and retried jobs, against a real server."""

import subprocess
import sys

import pytest

from tests.examples.server_process import REPO

pytestmark = pytest.mark.slow

SCRIPT = REPO / "examples" / "queue_control.py"


def run(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(SCRIPT), *flags], capture_output=True, text=True, timeout=300)


def test_the_queue_passes(server):
    result = run("--server", server.url, "--steps", "60", "--every", "0.2")
    assert result.returncode == 0, result.stderr + result.stdout + server.log[-2000:]
    lines = result.stdout.splitlines()
    assert lines[-1] == "The queue passes."
    told = [line.split(" by ")[0] for line in lines if "attempt" in line]
    assert [line.rpartition(": ")[0].split(",")[0].strip() for line in told].count("attempt 1") == 5
    assert "attempt 1, in the queue: cancelled: interrupted" in told[2]
    assert told[3].startswith("   attempt 2") and told[3].endswith("completed")


def test_a_server_that_is_not_there(server):
    result = run("--server", "http://127.0.0.1:9")
    assert result.returncode == 1 and "127.0.0.1:9" in result.stderr and "Traceback" not in result.stderr
