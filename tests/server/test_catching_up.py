"""Events that a client misses, and how it learns of them (docs/clients.md)."""

import asyncio
import json

import pytest
from aiohttp import WSMsgType

from comfy_execution.prompt_queue import ExecutionStatus
from gateway import event_log


async def receive(ws, until: str) -> list[dict]:
    """JSON events up to the first of type `until`; binary frames as they are."""
    got = []
    while not (got and isinstance(got[-1], dict) and got[-1]["type"] == until):
        message = await asyncio.wait_for(ws.receive(), 10)
        assert message.type in (WSMsgType.TEXT, WSMsgType.BINARY), message
        got.append(json.loads(message.data) if message.type is WSMsgType.TEXT else message.data)
    return got


def connect(running, query: str):
    return running.session.ws_connect(f"{running.url}/ws?{query}")


async def leave(running, ws, sid: str = "me") -> None:
    await ws.close()
    while sid in running.server.sockets:
        await asyncio.sleep(0.005)


async def start_following(running) -> int:
    """Ask once, as client "me", and leave. Returns the number to continue after."""
    ws = await connect(running, "clientId=me&since=0")
    (_, snapshot) = await receive(ws, "snapshot")
    await leave(running, ws)
    return snapshot["data"]["seq"]


async def test_missed_events_are_replayed_in_order_then_life_goes_on(running):
    since = await start_following(running)
    send = running.server.send_sync
    for i in range(5):
        send("executing", {"node": str(i)}, "me")
        send("progress", {"value": i, "prompt_id": "p", "node": "1"}, "me")
    ws = await connect(running, f"clientId=me&since={since}")
    status, *missed, resumed = await receive(ws, "resumed")
    assert status["type"] == "status" and status["data"]["sid"] == "me" and "seq" not in status
    assert [event["data"]["node"] for event in missed] == list("01234")
    assert resumed["data"] == {"replayed": 5, "seq": missed[-1]["seq"]}
    send("end", {}, "me")
    (end,) = await receive(ws, "end")
    assert end["seq"] > missed[-1]["seq"]
    await leave(running, ws)
    send("later", {}, "me")
    ws = await connect(running, f"clientId=me&since={end['seq']}")
    assert [event["type"] for event in await receive(ws, "resumed")] == ["status", "later", "resumed"]
    await ws.close()


async def test_the_number_counts_even_if_the_connection_broke_before_more_was_read(running):
    ws = await connect(running, "clientId=me&since=0")
    await receive(ws, "snapshot")
    for i in range(3):
        running.server.send_sync("tick", {"i": i}, "me")
    first = (await receive(ws, "tick"))[-1]
    await leave(running, ws)
    ws = await connect(running, f"clientId=me&since={first['seq']}")
    assert [e["data"]["i"] for e in await receive(ws, "resumed") if e["type"] == "tick"] == [1, 2]
    await ws.close()


async def test_resume_as_a_message_at_any_time_and_flags_still_first(running):
    since = await start_following(running)
    running.server.send_sync("missed", {}, "me")
    async with running.ws("me") as ws:
        await receive(ws, "status")
        running.server.send_sync("live", {}, "me")
        assert await receive(ws, "live") == [{"type": "live", "data": {}}]
        await ws.send_json({"type": "resume", "data": {"since": since}})
        assert [e["type"] for e in await receive(ws, "resumed")] == ["missed", "live", "resumed"]
        await ws.send_json({"type": "feature_flags", "data": {}})
        assert (await receive(ws, "feature_flags"))[-1]["data"] == (await running.get("/features"))[1]
        running.server.send_sync("end", {}, "me")
        assert (await receive(ws, "end"))[-1]["seq"] > since


async def test_who_does_not_ask_sees_no_difference(running):
    """Neither another connection, nor another id, nor the same id once it has asked."""
    await start_following(running)
    async with running.ws("me") as me, running.ws("other") as other:
        for sid in ("me", "other", None):
            running.server.send_sync("event", {"x": 1}, sid)
        for ws in (me, other):
            await receive(ws, "status")
            for _ in range(2):
                message = await asyncio.wait_for(ws.receive(), 10)
                assert message.data == '{"type":"event","data":{"x":1}}'


async def test_events_to_all_carry_no_number(running):
    async with connect(running, "clientId=me&since=0") as ws:
        await receive(ws, "snapshot")
        running.server.send_sync("event", {})
        assert await receive(ws, "event") == [{"type": "event", "data": {}}]


async def test_pictures_are_replayed_and_previews_are_not(running):
    since = await start_following(running)
    from PIL import Image

    image = Image.new("RGB", (4, 4))
    running.server.send_sync(2, ("JPEG", image, None), "me")
    running.server.send_sync(2, ("PNG", image, None), "me")
    running.server.send_sync("logs", {"entries": []}, "me")
    ws = await connect(running, f"clientId=me&since={since}")
    frames = [frame for frame in await receive(ws, "resumed") if isinstance(frame, bytes)]
    assert [frame[:8] for frame in frames] == [b"\0\0\0\1\0\0\0\2"]
    await ws.close()


@pytest.mark.parametrize("since", ["0", "5", str(10**18)])
async def test_numbers_of_another_process_get_a_snapshot(running, since):
    await start_following(running)
    async with connect(running, f"clientId=me&since={since}") as ws:
        assert [e["type"] for e in await receive(ws, "snapshot")] == ["status", "snapshot"]


async def test_what_fell_out_gets_a_snapshot(running, monkeypatch):
    since = await start_following(running)
    monkeypatch.setattr(event_log, "MOST_EVENTS", 10)
    for _ in range(11):
        running.server.send_sync("event", {}, "me")
    async with connect(running, f"clientId=me&since={since}") as ws:
        assert (await receive(ws, "snapshot"))[-1]["type"] == "snapshot"


@pytest.mark.parametrize("data", [None, {}, {"since": "x"}, {"since": 1.5}, {"since": True}, {"since": -1}, [1]])
async def test_a_resume_message_without_a_number_gets_a_snapshot(running, data):
    async with running.ws("me") as ws:
        await ws.send_json({"type": "resume", "data": data})
        assert (await receive(ws, "snapshot"))[-1]["data"]["jobs"] == []


@pytest.mark.parametrize("since", ["", "x", "-1", "1.5", "9" * 30, "%F0%9D%9F%99"])
async def test_a_bad_number_in_the_query_is_refused(running, since):
    status, answer, _ = await running.get(f"/ws?clientId=me&since={since}")
    assert status == 400 and "since" in answer["error"]


async def submit(running, text: str, client_id: str = "me") -> str:
    prompt = {"1": {"class_type": "Text", "inputs": {"text": text}}}
    status, answer, _ = await running.post("/prompt", json={"prompt": prompt, "client_id": client_id})
    assert status == 200
    return answer["prompt_id"]


def end(running, outputs: dict) -> None:
    queue = running.server.prompt_queue
    _, task = queue.get()
    queue.finish(task, {"outputs": outputs, "meta": {}}, ExecutionStatus("success", True, []))


async def test_a_snapshot_tells_the_state_of_all_jobs_of_the_client(running):
    ended, large = await submit(running, "done"), await submit(running, "large")
    end(running, {"1": {"text": ["done"]}})
    end(running, {"1": {"text": ["x" * 100_000]}})
    current, waiting = await submit(running, "current"), await submit(running, "waiting")
    await submit(running, "foreign", "other")
    running.server.prompt_queue.get()
    running.server.client_id, running.server.last_prompt_id, running.server.last_node_id = "me", current, "7"
    running.server.run_outputs = (current, {"3": {"output": {"images": []}, "meta": {}}})
    async with connect(running, "clientId=me&since=0") as ws:
        _, snapshot = await receive(ws, "snapshot")  # no event `executing` in between
    jobs = {job["id"]: job for job in snapshot["data"]["jobs"]}
    assert snapshot["data"]["instance_id"] == running.server.jobs.instance_id
    assert list(jobs) == [ended, large, current, waiting] and snapshot["data"]["pending"] == 1
    assert [job["status"] for job in jobs.values()] == ["completed", "completed", "in_progress", "pending"]
    assert jobs[ended]["outputs"] == {"1": {"text": ["done"]}}
    assert "outputs" not in jobs[large] and jobs[large]["outputs_url"] == f"/api/jobs/{large}"
    assert jobs[current]["node"] == "7" and jobs[current]["outputs"] == {"3": {"images": []}}


async def test_a_snapshot_has_what_was_cancelled_while_it_waited(running):
    queue = running.server.prompt_queue
    queue.pause()
    for prompt_id in ("a", "b"):
        queue.put((1, prompt_id, {}, {"client_id": "me", "create_time": 5}, []))
    queue.delete_queue_items(["a"])
    async with connect(running, "clientId=me&since=0") as ws:
        _, snapshot = await receive(ws, "snapshot")
    cancelled, waiting = snapshot["data"]["jobs"]
    assert (cancelled["id"], cancelled["status"], cancelled["reason"]) == ("a", "cancelled", "interrupted")
    assert cancelled["outputs"] == {} and cancelled["create_time"] == 5
    assert (waiting["id"], waiting["status"]) == ("b", "pending")


async def test_what_happens_while_a_snapshot_is_made_comes_after_it(running, monkeypatch):
    import threading

    made = threading.Event()
    original = running.server.hub._snapshot
    monkeypatch.setattr(running.server.hub, "_snapshot", lambda sid: made.wait(10) and original(sid))
    async with connect(running, "clientId=me&since=0") as ws, running.ws("other") as other:
        await receive(ws, "status")
        for i in range(3):
            running.server.send_sync("tick", {"i": i}, "me")
        running.server.send_sync("end", {})
        await receive(other, "end")  # others need not wait
        await ws.send_json({"type": "resume", "data": {"since": 0}})  # asks twice, is told once
        made.set()
        told = await receive(ws, "end")
        assert [e["type"] for e in told] == ["snapshot", "tick", "tick", "tick", "end"]
        assert all(e["seq"] > told[0]["data"]["seq"] for e in told[1:4])


async def test_a_snapshot_that_cannot_be_made_ends_the_connection(running, monkeypatch):
    monkeypatch.setattr(running.server.hub, "_snapshot", lambda sid: 1 / 0)
    ws = await connect(running, "clientId=me&since=0")
    await receive(ws, "status")
    assert (await asyncio.wait_for(ws.receive(), 10)).type in (WSMsgType.CLOSED, WSMsgType.CLOSE, WSMsgType.ERROR)
    await ws.close()


async def test_shared_connections_get_the_events_beside_the_one_that_has_them(running):
    plain = await running.ws("me")
    shared = [await connect(running, "clientId=me&fanout=1") for _ in range(2)]
    for ws in (plain, *shared):
        await receive(ws, "status")
    running.server.send_sync("one", {}, "me")
    for ws in (plain, *shared):
        assert await receive(ws, "one") == [{"type": "one", "data": {}}]
    newer = await running.ws("me")  # takes over from the plain one
    await receive(newer, "status")
    running.server.send_sync("two", {}, "me")
    for ws in (newer, *shared):
        await receive(ws, "two")
    running.server.send_sync("end", {})
    assert [e["type"] for e in await receive(plain, "end")] == ["end"]
    await leave_all(plain, newer)
    while len(running.server.hub._connections) > 2:
        await asyncio.sleep(0.005)
    running.server.send_sync("three", {}, "me")
    for ws in shared:
        assert [e["type"] for e in await receive(ws, "three")][-1] == "three"
    await leave_all(*shared)


async def leave_all(*sockets) -> None:
    for ws in sockets:
        await ws.close()


async def test_events_over_the_size_limit_say_where_to_read_the_rest(running, monkeypatch):
    from gateway import events

    monkeypatch.setattr(events, "LARGEST_EVENT", 10_000)
    huge = "x" * 20_000
    async with running.ws("me") as ws:
        await receive(ws, "status")
        running.server.send_sync("executed", {"node": "1", "output": {"text": [huge]}, "prompt_id": "p"}, "me")
        error = {"prompt_id": "p", "node_id": "1", "exception_message": huge, "traceback": [huge] * 99}
        running.server.send_sync("execution_error", {**error, "current_inputs": {"a": [huge]}}, "me")
        running.server.send_sync("pack.event", {"text": huge}, "me")
        executed, failed, own = await receive(ws, "pack.event")
    where = executed["data"]["output"]["oversized"]
    assert executed["data"]["node"] == "1" and where[0]["url"] == "/history/p" and where[0]["bytes"] > 20_000
    assert failed["data"]["exception_message"] == "x" * 10_000 and failed["data"]["node_id"] == "1"
    assert own["data"]["text"] == huge  # what a pack sends on purpose stays whole
