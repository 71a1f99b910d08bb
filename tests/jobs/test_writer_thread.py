"""The thread that writes for the job store."""

import time

from jobs.writer import Writer


def test_a_thread_with_nothing_to_write_sleeps(monkeypatch):
    """Not even a few times a second: with many threads that compute, each wake-up takes the interpreter from them."""
    written = []
    writer = Writer(written.append)
    writer.add("first")
    waits = []
    wait = writer._wake.wait
    monkeypatch.setattr(writer._wake, "wait", lambda seconds=None: waits.append(seconds) or wait(seconds))
    deadline = time.monotonic() + 10
    while not (written and waits and waits[-1] is None):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    count = len(waits)
    time.sleep(0.6)
    assert len(waits) == count
    writer.add("second")  # by no event loop, and nobody waits for it
    while len(written) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.close()
