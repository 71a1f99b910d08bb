"""A connection that breaks during a run: the client learns everything all the same, in the middle and afterwards."""

from __future__ import annotations

import asyncio
import json
import time
import uuid

import pytest
import websocket

from examples.follow_through_drops import Job, follow

pytestmark = pytest.mark.slow


def chain(seconds: float) -> dict:
    """Two nodes that sleep, one after the other; both show something."""
    tag = uuid.uuid4().hex
    return {
        "1": {"class_type": "MisSleep", "inputs": {"seconds": seconds, "tag": tag}},
        "2": {"class_type": "MisSleep", "inputs": {"seconds": seconds, "tag": ["1", 0]}},
    }


class Connection:
    """A client that asks for numbers."""

    def __init__(self, server, client_id: str, since: int):
        self.socket = websocket.create_connection(
            f"{server.url.replace('http', 'ws')}/ws?clientId={client_id}&since={since}", timeout=60
        )
        self.seq = since

    def until(self, kind: str, **data) -> list[dict]:
        """Events up to the first of this type with this data."""
        got = []
        while True:
            event = json.loads(self.socket.recv())
            self.seq = event.get("seq", self.seq)
            got.append(event)
            if event["type"] == kind and data.items() <= event["data"].items():
                return got


def wait_ended(server, prompt_id: str) -> None:
    while prompt_id not in server.get(f"/history/{prompt_id}"):
        time.sleep(0.05)


@pytest.mark.parametrize("asked_before", [True, False])
@pytest.mark.parametrize("when", ["during the run", "after it"])
def test_drop_and_return(server, when, asked_before):
    client = uuid.uuid4().hex
    if asked_before:
        first = Connection(server, client, 0)
        first.seq = first.until("snapshot")[-1]["data"]["seq"]
    else:
        first = Connection.__new__(Connection)
        first.socket = websocket.create_connection(f"{server.url.replace('http', 'ws')}/ws?clientId={client}")
        first.seq = 0
    status, answer = server.post("/prompt", {"prompt": chain(0.7), "client_id": client})
    assert status == 200, answer
    prompt_id = answer["prompt_id"]
    first.until("executing", node="1")
    since = first.seq if asked_before else 0
    first.socket.close()
    if when == "after it":
        wait_ended(server, prompt_id)
    else:  # node 1 ends and node 2 begins while nobody is connected
        time.sleep(1.0)
    back = Connection(server, client, since)
    if asked_before:
        events = back.until("execution_success")
        told = [(e["type"], e["data"].get("node")) for e in events if e["type"] in ("executed", "executing")]
        assert told == [("executed", "1"), ("executing", "2"), ("executed", "2")]
    else:
        (job,) = back.until("snapshot")[-1]["data"]["jobs"]
        assert job["id"] == prompt_id and job["outputs"]["1"] == {"slept": [0.7]}
        if when == "after it":
            assert job["status"] == "completed" and job["outputs"]["2"] == {"slept": [0.7]}
        else:
            assert job["status"] == "in_progress" and job["node"] == "2"
            back.until("execution_success")
    back.socket.close()
    wait_ended(server, prompt_id)


def test_outputs_of_a_running_job(server):
    prompt_id = server.post("/prompt", {"prompt": chain(1.0)})[1]["prompt_id"]
    job = {}
    while not job.get("outputs"):
        job = server.get(f"/api/jobs/{prompt_id}?full=true")
        assert job["status"] in ("pending", "in_progress"), job
    assert job["outputs"] == {"1": {"slept": [1.0]}}
    wait_ended(server, prompt_id)
    assert server.get(f"/api/jobs/{prompt_id}")["outputs"] == {"1": {"slept": [1.0]}, "2": {"slept": [1.0]}}


class BreakingProxy:
    """Forwards TCP to a server and breaks every connection after a while."""

    def __init__(self, port: int, seconds: float):
        self._port, self._seconds = port, seconds
        self.broken = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exception):
        self._server.close()

    async def _forward(self, reader, writer):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def pump(source, target):
            while data := await source.read(4096):
                target.write(data)

        tasks = [asyncio.create_task(pump(reader, far_writer)), asyncio.create_task(pump(far_reader, writer))]
        await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        self.broken += 1
        for task in tasks:
            task.cancel()
        for end in (writer, far_writer):
            end.transport.abort()


def test_the_example_follows_through_drops(server):
    client = uuid.uuid4().hex
    prompt_id = server.post("/prompt", {"prompt": chain(1.0), "client_id": client})[1]["prompt_id"]

    async def through_a_bad_line():
        async with BreakingProxy(server.port, 0.3) as proxy:
            job = await asyncio.wait_for(follow(proxy.url, client, Job(prompt_id), lambda line: None), 60)
            return job, proxy.broken

    job, broken = asyncio.run(through_a_bad_line())
    assert job.status == "completed" and broken >= 2
    assert job.outputs == {"1": {"slept": [1.0]}, "2": {"slept": [1.0]}}
