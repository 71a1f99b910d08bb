"""Requests the reference answers with 500, or with 200 and no effect (reference-quirks.md): here they are 4xx."""

import json

import pytest

GARBAGE = [b"", b"{", b"\xff"]


@pytest.mark.parametrize("body", GARBAGE)
@pytest.mark.parametrize(
    "path", ["/queue", "/history", "/free", "/settings", "/settings/x", "/users", "/api/jobs/cancel"]
)
async def test_bodies_that_are_not_json(running, path, body):
    status, answer, _ = await running.post(path, data=body)
    assert status == 400 and list(answer) == ["error"]


@pytest.mark.parametrize(
    "path, body",
    [
        ("/queue", []),
        ("/queue", {"delete": 5}),
        ("/queue", {"delete": "text"}),
        ("/queue", {"delete": [5]}),
        ("/history", []),
        ("/history", {"delete": "text"}),
        ("/free", []),
        ("/interrupt", []),
        ("/interrupt", {"prompt_id": ["x"]}),
        ("/settings", [1]),
        ("/users", {}),
        ("/users", {"username": 5}),
        ("/api/jobs/cancel", [1]),
    ],
)
async def test_bodies_of_the_wrong_shape(running, path, body):
    status, answer, _ = await running.post(path, json=body)
    assert status == 400 and list(answer) == ["error"]


@pytest.mark.parametrize("body", [{}, {"clientId": 5, "enabled": True}, {"clientId": "x", "enabled": "yes"}, []])
async def test_log_subscription_without_its_fields(running, body):
    assert (await running.request("PATCH", "/internal/logs/subscribe", json=body))[0] == 400


@pytest.mark.parametrize("query", ["max_items=abc", "offset=abc", "max_items=1.5"])
async def test_history_numbers(running, query):
    status, answer, _ = await running.get("/history?" + query)
    assert status == 400 and list(answer) == ["error"]


async def test_history_windows(running):
    queue = running.server.prompt_queue
    for i in range(3):
        await running.post("/prompt", json={"prompt": {"1": {"class_type": "Text", "inputs": {"text": str(i)}}}})
        _, task = queue.get()
        queue.finish(task, {"outputs": {}, "meta": {}}, ("success", True, []))
    everything = list((await running.get("/history"))[1])
    assert list((await running.get("/history?max_items=0"))[1]) == []
    assert list((await running.get("/history?max_items=2&offset=-5"))[1]) == everything[1:]
    assert list((await running.get("/history?max_items=1&offset=1"))[1]) == everything[1:2]


@pytest.mark.parametrize("path", ["/free", "/interrupt", "/upload/image", "/api/free"])
async def test_get_of_a_post_route_is_405(running, path):
    status, _, headers = await running.get(path)
    assert status == 405 and headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/none", "/queue/", "/api/none", "/x.png", "/%00", "/%ff%fe"])
async def test_unknown_paths_are_empty_404s(running, path):
    status, body, headers = await running.get(path)
    assert status == 404 and body == b""
    assert "86400" not in headers.get("Cache-Control", "")


async def test_node_that_cannot_describe_itself_is_left_out(running):
    status, answer, _ = await running.get("/object_info")
    assert status == 200 and list(answer) == ["Text"]
    assert answer["Text"]["highest"] is None  # infinity is not JSON
    assert (await running.get("/object_info/Broken"))[1] == {}
    assert (await running.get("/object_info/None"))[1] == {}


async def test_settings_file_that_is_damaged_is_kept_aside(running):
    folder = running.base / "user" / "default"
    folder.mkdir(parents=True)
    (folder / "comfy.settings.json").write_text('{"a": 1')
    assert (await running.get("/settings"))[1] == {}
    assert (await running.post("/settings/b", json=2))[0] == 200
    assert (await running.get("/settings"))[1] == {"b": 2}
    kept = [p for p in folder.iterdir() if ".damaged-" in p.name]
    assert len(kept) == 1 and kept[0].read_text() == '{"a": 1'


async def test_settings_written_at_once_all_arrive(running):
    import asyncio

    await asyncio.gather(*(running.post(f"/settings/k{i}", json=i) for i in range(20)))
    assert (await running.get("/settings"))[1] == {f"k{i}": i for i in range(20)}
    folder = running.base / "user" / "default"
    assert [p.name for p in folder.iterdir()] == ["comfy.settings.json"]
    assert json.loads((folder / "comfy.settings.json").read_text())["k3"] == 3


async def test_deleting_from_the_queue_leaves_the_rest(running):
    ids = []
    for i in range(3):
        body = {"prompt": {"1": {"class_type": "Text", "inputs": {"text": str(i)}}}}
        ids.append((await running.post("/prompt", json=body))[1]["prompt_id"])
    assert (await running.post("/queue", json={"delete": [ids[1], "unknown"]}))[:2] == (200, b"")
    assert [e[1] for e in (await running.get("/queue"))[1]["queue_pending"]] == [ids[0], ids[2]]
    assert (await running.post(f"/api/jobs/{ids[0]}/cancel"))[1] == {"cancelled": True}
    assert (await running.post(f"/api/jobs/{ids[0]}/cancel"))[1] == {"cancelled": False}
    assert (await running.post("/queue", json={"clear": True}))[0] == 200
    assert (await running.get("/queue"))[1] == {"queue_running": [], "queue_pending": []}


@pytest.mark.parametrize("which, hit", [("running", True), ("pending", False), ("unknown", False), (None, True)])
async def test_interrupt_hits_only_what_runs(running, which, hit):
    from comfy.interrupt import interrupt_current_processing, processing_interrupted

    body = {"prompt": {"1": {"class_type": "Text", "inputs": {"text": "x"}}}}
    ids = {"running": (await running.post("/prompt", json=body))[1]["prompt_id"], "unknown": "x"}
    running.server.prompt_queue.get()
    ids["pending"] = (await running.post("/prompt", json=body))[1]["prompt_id"]
    try:
        answer = await running.post("/interrupt", json={"prompt_id": ids[which]} if which else {})
        assert answer[:2] == (200, b"") and processing_interrupted() is hit
    finally:
        interrupt_current_processing(False)


DEEP = b"[" * 300 + b"]" * 300


@pytest.mark.parametrize("path", ["/queue", "/history", "/free", "/settings/x", "/users", "/api/jobs/cancel"])
async def test_bodies_that_are_nested_too_deeply(running, path):
    status, answer, _ = await running.post(path, data=DEEP)
    assert status == 400 and list(answer) == ["error"]


async def test_settings_file_that_is_nested_too_deeply_counts_as_damaged(running):
    folder = running.base / "user" / "default"
    folder.mkdir(parents=True)
    (folder / "comfy.settings.json").write_bytes(b'{"a": %s}' % DEEP)
    assert (await running.get("/settings"))[:2] == (200, {})


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("path", ["/prompt", "/queue", "/settings", "/userdata/x.json", "/upload/image"])
async def test_compressed_bodies_that_are_none(running, caplog, path, coding):
    headers = {"Content-Encoding": coding, "Content-Type": "multipart/form-data; boundary=b"}
    status, answer, _ = await running.request("POST", path, data=b"12345", headers=headers)
    assert status == 400 and "error" in answer
    assert not [record for record in caplog.records if record.levelno > 20 or record.exc_info], caplog.records


NO_HTTP = [
    b"FOO /prompt HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /prompt HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 90_000 + b"\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /prompt HTTP/1.1\r\n\r\n",
    b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{",
    b"POST /prompt HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\n12345",
]


@pytest.mark.parametrize("request_", NO_HTTP)
async def test_what_is_no_http_is_a_line_in_the_log(running, caplog, request_):
    import asyncio
    import logging

    caplog.set_level(logging.INFO)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
    # Not the first request of the connection: aiohttp is quieter about those.
    writer.write(b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b" 404 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(request_)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert b" 400 Bad Request" in answer
    assert (await running.get("/prompt"))[0] == 200
    assert not [record for record in caplog.records if record.levelno > logging.INFO or record.exc_info]
    assert any("Error handling request" in record.getMessage() for record in caplog.records)


BROKEN_OFF = {
    "download": b"GET /view?filename=big.bin&type=input HTTP/1.1\r\nHost: x\r\n\r\n",
    "body": b"POST /prompt HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
    "form": b"POST /upload/image HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    b"Content-Length: 100000\r\n\r\n--b\r\n"
    b'Content-Disposition: form-data; name="image"; filename="x.png"\r\n\r\nxxx',
    "user file": b"POST /userdata/x.json HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
    "handshake": b"GET /ws?clientId=z HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    "nonsense": b"\x16\x03\x01 what\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN_OFF)
async def test_clients_that_break_off_leave_no_traceback(running, caplog, kind):
    import asyncio
    import logging
    import socket
    import struct

    caplog.set_level(logging.DEBUG)
    (running.base / "input" / "big.bin").write_bytes(bytes(20_000_000))
    port = int(running.url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(BROKEN_OFF[kind])
    await writer.drain()
    await asyncio.sleep(0.05)
    # Closing with a reset, as a process that is killed does.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await asyncio.sleep(0.05)
    assert (await running.get("/prompt"))[0] == 200
    shown = [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]
    assert not [record for record in shown if record.levelno >= logging.INFO], shown
    assert sorted(path.name for path in (running.base / "input").iterdir()) == ["big.bin"]


async def test_forgetting_very_many_prompts_stalls_nobody(running, monkeypatch):
    import asyncio
    import time

    queue, forget = running.server.prompt_queue, running.server.prompt_queue.delete_history_item

    def slowly(prompt_id):
        time.sleep(0.001)
        forget(prompt_id)

    await running.post("/prompt", json={"prompt": {"1": {"class_type": "Text", "inputs": {"text": "x"}}}})
    entry, task = queue.get()
    queue.finish(task, {"outputs": {}, "meta": {}}, ("success", True, []))
    monkeypatch.setattr(queue, "delete_history_item", slowly)
    ids = [str(number) for number in range(1000)] + [entry.prompt_id]
    forgotten = asyncio.create_task(running.post("/history", json={"delete": ids}))
    longest = 0.0
    while not forgotten.done():
        began = time.perf_counter()
        assert (await running.get("/prompt"))[0] == 200
        longest = max(longest, time.perf_counter() - began)
    assert (await forgotten)[:2] == (200, b"") and longest < 0.5
    assert (await running.get("/history"))[1] == {}
