"""Nothing that a node does ends the worker or the server: its prompt fails, the next one runs."""

from __future__ import annotations

import http.client
import json

import pytest

from tests.end_to_end.misbehaving_pack import RAISES, RETURNS

pytestmark = pytest.mark.slow

GOOD = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 255}},
    "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
}
EXCEPTION_TYPES = {
    "OutOfMemoryError": "torch.OutOfMemoryError",
    "Unspeakable": "UnspeakableError",
    "StopIteration": "StopAsyncIteration",
}
# An accepted way to say "nothing to show", not a fault.
HARMLESS = {"ui None"}


def assert_works(server):
    assert server.run(GOOD)["status"]["status_str"] == "success"


@pytest.mark.parametrize("kind", RAISES)
def test_exceptions(server, kind):
    error = server.error_of({"1": {"class_type": "MisRaise", "inputs": {"kind": kind}}})
    assert error["node_id"] == "1" and error["node_type"] == "MisRaise"
    assert error["exception_type"].endswith(EXCEPTION_TYPES.get(kind, kind))
    assert_works(server)


@pytest.mark.parametrize("kind", sorted(RETURNS.keys() - HARMLESS))
def test_returns(server, kind):
    error = server.error_of({"1": {"class_type": "MisReturn", "inputs": {"kind": kind}}})
    assert error["node_id"] == "1"
    assert_works(server)
    json.dumps(server.get("/history"), allow_nan=False)


def test_not_a_number_becomes_null(server):
    entry = server.run({"1": {"class_type": "MisNaN", "inputs": {}}})
    assert entry["outputs"]["1"]["values"] == [None, None, 1.5]


def test_bodies_that_are_no_http(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/prompt", body=b'{"prompt": ' + b"[" * 200_000)
    assert connection.getresponse().status == 400
    assert_works(server)


def test_the_server_answers_while_a_node_keeps_the_interpreter(server, tmp_path):
    """The node ends only after the answers have come, so they were given while it computed."""
    flag = tmp_path / "go on"
    flag.touch()
    try:
        status, answer = server.post(
            "/prompt", {"prompt": {"1": {"class_type": "MisBusy", "inputs": {"path": str(flag)}}}}
        )
        assert status == 200
        for _ in range(50):
            queue = server.get("/queue")
            assert [entry[1] for entry in queue["queue_running"] + queue["queue_pending"]] == [answer["prompt_id"]]
    finally:
        flag.unlink()
    shown = server.wait_for(answer["prompt_id"])["outputs"]["1"]
    assert shown["rounds"][0] > 0
    assert shown["switch_seconds"] == [pytest.approx(0.001)], "a request waits for the interpreter more than once"
