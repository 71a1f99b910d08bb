"""The WebSocket hub: order, addressees, slow and dead peers (websocket.md, reference-quirks.md)."""

import asyncio
import json
import threading

import pytest

import gateway.events
import gateway.hub
from gateway import outbox


async def events(ws, until: str, timeout: float = 10) -> list[dict]:
    """Events up to and including the first of type `until`."""
    got = []
    while not got or got[-1]["type"] != until:
        got.append(json.loads((await asyncio.wait_for(ws.receive(), timeout)).data))
    return got


async def eventually(condition, timeout: float = 10) -> None:
    """Wait until `condition()` holds."""
    deadline = asyncio.get_running_loop().time() + timeout
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it never happened"
        await asyncio.sleep(0.01)


async def test_greeting_and_made_up_ids(running):
    async with running.ws("me") as ws:
        first = await ws.receive_json()
        assert first["data"] == {"status": {"exec_info": {"queue_remaining": 0}}, "sid": "me"}
    async with running.ws("") as ws:
        assert len((await ws.receive_json())["data"]["sid"]) == 32


async def test_reconnecting_client_learns_the_running_node(running):
    running.server.client_id, running.server.last_node_id = "me", "7"
    async with running.ws("me") as ws, running.ws("other") as other:
        await ws.receive_json()
        assert await ws.receive_json() == {"type": "executing", "data": {"node": "7"}}
        await other.receive_json()
        running.server.send_sync("end", {})
        assert [e["type"] for e in await events(other, "end")] == ["end"]


async def test_events_from_threads_keep_their_order(running):
    async with running.ws("me") as ws:

        def work():
            for i in range(500):
                running.server.send_sync("tick", {"i": i}, "me")
            running.server.send_sync("end", {}, "me")

        thread = threading.Thread(target=work)
        thread.start()
        got = [e["data"]["i"] for e in await events(ws, "end") if e["type"] == "tick"]
        assert got == list(range(500))
        thread.join()


async def test_events_reach_only_whom_they_are_for(running):
    async with running.ws("a") as a, running.ws("b") as b:
        running.server.send_sync("secret", {}, "a")
        running.server.send_sync("end", {})
        assert [e["type"] for e in await events(a, "end")] == ["status", "secret", "end"]
        assert [e["type"] for e in await events(b, "end")] == ["status", "end"]


@pytest.mark.parametrize("bad", [object(), b"x", {1}, {"x": object()}])
async def test_an_unsendable_event_ends_nothing(running, bad):
    async with running.ws("me") as ws:
        running.server.send_sync("bad", bad, "me")
        running.server.send_sync("bad", {}, ["unhashable"])
        running.server.send_sync(2, ("PNG", "not an image", None), "me")
        running.server.send_sync("end", {}, "me")
        assert [e["type"] for e in await events(ws, "end")] == ["status", "end"]


async def test_nan_is_sent_as_null(running):
    async with running.ws("me") as ws:
        running.server.send_sync("end", {"x": float("nan")}, "me")
        assert (await events(ws, "end"))[-1]["data"] == {"x": None}


async def test_closing_the_old_connection_keeps_the_new_one(running):
    old, new = await running.ws("me"), await running.ws("me")
    await old.close()
    await eventually(lambda: len(running.server.hub._connections) == 1)
    running.server.send_sync("end", {}, "me")
    assert (await events(new, "end"))[-1]["type"] == "end"
    assert set(running.server.sockets) == {"me"}
    await new.close()


async def test_newest_connection_takes_over_and_gives_back(running):
    first, second = await running.ws("me"), await running.ws("me")
    running.server.send_sync("one", {}, "me")
    assert (await events(second, "one"))[-1]["type"] == "one"
    await second.close()
    await eventually(lambda: len(running.server.hub._connections) == 1)
    running.server.send_sync("two", {}, "me")
    assert [e["type"] for e in await events(first, "two")] == ["status", "two"]
    await first.close()


async def test_a_slow_reader_holds_up_nobody_and_keeps_its_terminal_events(running):
    """The slow client's sockets and buffers fill up; the quick one gets everything meanwhile."""
    slow = await running.ws("slow", max_msg_size=0)
    slow_id = running.server.hub._by_id["slow"][0]
    padding = "x" * 20_000
    async with running.ws("quick") as quick:
        for i in range(2000):
            running.server.send_sync("progress", {"i": i, "padding": padding, "prompt_id": "p", "node": "1"})
            if i % 500 == 0:
                running.server.send_sync("executed", {"i": i})
                await asyncio.sleep(0)
        running.server.send_sync("end", {})
        got = await events(quick, "end", 30)
        assert [e["data"]["i"] for e in got if e["type"] == "executed"] == [0, 500, 1000, 1500]
    assert len(slow_id.outbox) <= outbox.SOFT_FRAMES + 8
    got = await events(slow, "end", 30)
    assert [e["data"]["i"] for e in got if e["type"] == "executed"] == [0, 500, 1000, 1500]
    assert [e["data"]["i"] for e in got if e["type"] == "progress"][-1] == 1999
    await slow.close()


async def test_an_event_is_encoded_once_for_all_sockets(running, monkeypatch):
    sockets = [await running.ws(str(i)) for i in range(5)]
    calls = []
    encode = gateway.events.encode_event
    monkeypatch.setattr(gateway.events, "encode_event", lambda *a: calls.append(a[0]) or encode(*a))
    running.server.send_sync("end", {"big": "x" * 1000})
    for ws in sockets:
        await events(ws, "end")
        await ws.close()
    assert calls == ["end"]
    running.server.send_sync("nobody", {}, "not connected")
    assert calls == ["end"]


async def test_status_bursts_are_gathered_but_never_overtaken(running, monkeypatch):
    monkeypatch.setattr(running.server.prompt_queue, "get_tasks_remaining", lambda: next(counts))
    counts = iter(range(1, 1000))
    async with running.ws("me") as ws:
        await ws.receive_json()
        for _ in range(200):
            running.server.queue_updated()
        running.server.send_sync("executing", {"node": None}, "me")
        got = await events(ws, "executing")
        status = [e["data"]["status"]["exec_info"]["queue_remaining"] for e in got if e["type"] == "status"]
        assert status[:2] == [2, 3] and status[-1] == 201  # 1 was the greeting
        assert len(status) < 30


async def test_held_status_is_sent_without_another_event(running, monkeypatch):
    monkeypatch.setattr(running.server.prompt_queue, "get_tasks_remaining", lambda: next(counts))
    counts = iter(range(1, 1000))
    async with running.ws("me") as ws:
        for _ in range(100):
            running.server.queue_updated()
        counts_seen = []
        while 101 not in counts_seen:
            event = await asyncio.wait_for(ws.receive_json(), 10)
            counts_seen.append(event["data"]["status"]["exec_info"]["queue_remaining"])
        assert len(counts_seen) < 30


async def test_feature_flags_answer_and_odd_frames(running):
    async with running.ws("me") as ws:
        await ws.receive_json()
        await ws.send_str("not json")
        await ws.send_bytes(b"\0\1")
        await ws.send_json({"type": "feature_flags", "data": 5})
        answer = await ws.receive_json()
        assert answer["type"] == "feature_flags" and answer["data"] == (await running.get("/features"))[1]
        assert running.server.sockets_metadata["me"] == {"feature_flags": {}}
        for text in ("{", "hello", "5", "null", "[]", '{"type": 5}', "[" * 5000):
            await ws.send_str(text)
        running.server.send_sync("end", {})
        await events(ws, "end")


async def test_later_feature_flags_count_though_they_are_not_answered(running):
    async with running.ws("me") as ws:
        await ws.receive_json()
        await ws.send_json({"type": "hello"})
        await ws.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
        await eventually(lambda: running.server.sockets_metadata["me"]["feature_flags"])
        assert running.server.sockets_metadata["me"]["feature_flags"] == {"supports_preview_metadata": True}
        running.server.send_sync("end", {})
        assert [e["type"] for e in await events(ws, "end")] == ["end"]


async def test_text_goes_to_the_running_prompts_client_only(running):
    async with running.ws("a") as a, running.ws("b") as b:
        running.server.client_id = "a"
        running.server.send_progress_text("hello", "12")
        running.server.client_id = None
        running.server.send_progress_text("to nobody", "12")
        running.server.send_sync("end", {})
        await a.receive_json()
        assert (await a.receive()).data == b"\0\0\0\x03\0\0\0\x0212hello"
        assert [e["type"] for e in await events(a, "end")] == ["end"]
        assert [e["type"] for e in await events(b, "end")] == ["status", "end"]


async def test_dead_peers_are_dropped_and_living_ones_kept(start, monkeypatch):
    monkeypatch.setattr(gateway.hub, "PING_EVERY", 0.05)
    monkeypatch.setattr(gateway.hub, "PEER_SILENT", 0.5)
    running = await start()
    alive = await running.ws("alive")
    dead = await running.ws("dead", autoping=False)  # reads, but answers no ping
    reading = asyncio.create_task(alive.receive_json())  # greeting; the client answers pings while it reads
    await reading
    reading = asyncio.create_task(alive.receive())
    await eventually(lambda: "dead" not in running.server.sockets)
    assert "alive" in running.server.sockets
    reading.cancel()
    await dead.close()
    await alive.close()


async def test_logs_subscriptions_of_nobody_are_forgotten(running):
    import logs

    feed = running.server.log_feed
    ws = await running.ws("me")
    for client_id in ("me", *(f"nobody {number}" for number in range(50))):
        body = {"clientId": client_id, "enabled": True}
        assert (await running.request("PATCH", "/internal/logs/subscribe", json=body))[0] == 200
    logs.buffer.write("a line\n")
    logs.buffer.flush()
    assert feed._clients == {"me"}
    assert (await events(ws, "logs"))[-1]["data"]["entries"][-1]["m"] == "a line\n"
    await ws.close()


async def test_logs_subscription_ends_with_the_connection(running):
    import logs

    ws = await running.ws("me")
    await running.request("PATCH", "/internal/logs/subscribe", json={"clientId": "me", "enabled": True})
    logs.buffer.write("a line\n")
    logs.buffer.flush()
    got = (await events(ws, "logs"))[-1]["data"]
    assert [e["m"] for e in got["entries"]] == ["a line\n"] and got["size"] is None
    await ws.close()
    await eventually(lambda: not running.server.sockets)
    assert running.server.log_feed._clients == frozenset()
