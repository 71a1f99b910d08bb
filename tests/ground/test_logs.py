"""logs: what the console showed, for /internal/logs and its subscribers."""

import io
import logging
import sys

import pytest

import logs
from comfy.cli_args import finish, parser


class Console:
    """Streams that stand for the console; `setup` runs logs.setup on them."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.out, self.err = io.StringIO(), io.StringIO()

    def setup(self, *flags: str) -> None:
        # During the test's own call, since pytest swaps the streams between its phases.
        self.monkeypatch.setattr(sys, "stdout", self.out)
        self.monkeypatch.setattr(sys, "stderr", self.err)
        logs.setup(finish(parser.parse_args(list(flags)), parser))


@pytest.fixture
def console(monkeypatch):
    monkeypatch.setattr(logs, "buffer", logs.LogBuffer(5))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield Console(monkeypatch)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_prints_and_log_records_are_kept(console):
    console.setup()
    print("from a node")
    logging.info("from the server")
    logging.debug("not shown")
    text = "".join(e["m"] for e in logs.buffer.entries())
    assert "from a node" in text and "from the server" in text and "not shown" not in text
    assert "from a node" in console.out.getvalue()
    assert "INFO from the server" in console.err.getvalue()


def test_only_the_newest_are_kept(console):
    console.setup()
    for i in range(9):
        sys.stdout.write(f"{i}")
    assert [e["m"] for e in logs.buffer.entries()] == list("45678")


def test_listeners_get_what_came_since_the_last_flush(console):
    console.setup()
    got = []
    logs.buffer.listen(got.append)
    sys.stdout.write("a")
    sys.stdout.write("b")
    sys.stdout.flush()
    sys.stdout.flush()
    assert [[e["m"] for e in batch] for batch in got] == [["a", "b"]]
    logs.buffer.unlisten(got.append)


def test_a_listener_that_raises_is_dropped_and_harms_nobody(console):
    console.setup()

    def bad(_entries):
        raise RuntimeError("listener")

    logs.buffer.listen(bad)
    print("x", flush=True)
    print("y", flush=True)
    assert "y" in console.out.getvalue()


def test_log_stdout_splits_by_level(console):
    console.setup("--log-stdout")
    logging.info("quiet")
    logging.error("loud")
    out, err = console.out.getvalue(), console.err.getvalue()
    assert "quiet" in out and "quiet" not in err and "loud" in err and "loud" not in out


def test_log_files_have_their_own_level(console, tmp_path):
    console.setup("--verbose", "DEBUG", str(tmp_path / "all.log"), "--verbose", "INFO", str(tmp_path / "no" / "x.log"))
    logging.debug("deep")
    assert "deep" in (tmp_path / "all.log").read_text()
    assert "deep" not in console.err.getvalue()
    assert "cannot log to" in console.err.getvalue()


def test_characters_the_console_cannot_show_do_not_raise(console):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    logs._Tee(narrow, logs.buffer).write("grün")
    narrow.flush()
    assert narrow.buffer.getvalue() == b"gr\\xfcn"
