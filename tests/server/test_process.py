"""The real process: HTTP before torch, exit codes, TLS."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.examples.server_process import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """main.py in a base directory of its own."""

    def __init__(self, base: Path, *flags: str, port: int | None = None, env: dict[str, str] | None = None):
        self.port = port or free_port()
        self.log = base / "log.txt"
        (base / "user").mkdir(exist_ok=True)
        command = [sys.executable, "main.py", "--cpu", "--port", str(self.port), "--base-directory", str(base)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--database-url", f"sqlite:///{base}/user/x.db", *flags],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            )

    def get(self, path: str, scheme: str = "http", timeout: float = 60, **kwargs):
        return urllib.request.urlopen(f"{scheme}://127.0.0.1:{self.port}{path}", timeout=timeout, **kwargs)

    def until_listening(self, timeout: float = 60, **kwargs) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.get("/queue", timeout=5, **kwargs).close()
                return
            except (OSError, urllib.error.URLError):
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    processes = []

    def start_process(*flags: str, **kwargs) -> Process:
        processes.append(Process(tmp_path, *flags, **kwargs))
        return processes[-1]

    yield start_process
    for p in processes:
        p.process.kill()
        p.process.wait()


def pack(base: Path, source: str) -> None:
    folder = base / "custom_nodes" / "slow_pack"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(source)


def test_http_answers_while_packs_are_still_loading(start, tmp_path):
    """A pack blocks its import until a file appears."""
    pack(
        tmp_path,
        "import os, time\nfrom aiohttp import web\nfrom server import PromptServer\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
        "@PromptServer.instance.routes.get('/late')\nasync def late(request): return web.Response(text='late')\n"
        "NODE_CLASS_MAPPINGS = {}\n",
    )
    server = start()
    server.until_listening()
    for path in ("/history", "/prompt", "/features", "/"):
        assert server.get(path, timeout=10).status == 200
    assert server.get("/health/live", timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.get("/health/ready", timeout=10)
    assert refused.value.code == 503 and refused.value.headers["Retry-After"] == "1"
    assert b"nodes are being loaded" in refused.value.read()
    with pytest.raises(OSError):
        server.get("/late", timeout=0.5)
    (tmp_path / "go").touch()
    assert server.get("/late").read() == b"late"
    assert server.get("/health/ready").status == 200
    assert server.get("/api/late").read() == b"late"
    assert b"EmptyImage" in server.get("/object_info").read()


def test_a_worker_that_cannot_run_ends_the_process(start, tmp_path):
    """Built-in nodes that cannot be imported: there is nothing to wait for, and the exit status says so."""
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch is not what it was')")
    server = start(env={"PYTHONPATH": str(broken.parent)})
    assert server.process.wait(120) == 1
    assert "libtorch is not what it was" in server.log.read_text()


def test_port_that_is_taken_ends_the_start(start):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start(port=taken.getsockname()[1])
        assert server.process.wait(60) == 1
    assert "cannot listen" in server.log.read_text()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_process_cleanly(start, tmp_path, sig):
    server = start()
    server.until_listening()
    assert (tmp_path / "temp").is_dir()
    server.process.send_signal(sig)
    assert server.process.wait(30) == 0
    assert not (tmp_path / "temp").exists()


def test_database_in_use_ends_the_start(start):
    first = start("--enable-assets")
    first.until_listening()
    second = start("--enable-assets")
    assert second.process.wait(60) == 1
    log = second.log.read_text()
    assert "x.db" in log and "Traceback" not in log


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_tls(start, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = start("--tls-keyfile", str(key), "--tls-certfile", str(certificate))
    trusted = ssl.create_default_context(cafile=certificate)
    server.until_listening(scheme="https", context=trusted)
    assert server.get("/features", scheme="https", context=trusted).status == 200


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--listen", " ,"], "names no address"),
        (["--tls-certfile", "/no/cert.pem", "--tls-keyfile", "/no/key.pem"], "/no/cert.pem"),
        (["--listen", "999.1.1.1"], "999.1.1.1"),
    ],
)
def test_addresses_and_certificates_that_cannot_be_used_are_named(start, flags, told):
    process = start(*flags)
    assert process.process.wait(60) == 1
    text = process.log.read_text()
    assert told in text and "Traceback" not in text
