"""Requests of foreign web pages (http-api.md section 1)."""

import aiohttp
import pytest

from gateway.origin import LoopbackNames


async def test_opaque_origin_is_refused_on_loopback(running):
    assert (await running.get("/queue", headers={"Origin": "null"}))[0] == 403


@pytest.mark.parametrize("host", ["192.0.2.7:1", "comfy.example", "localhost:1"])
async def test_opaque_origin_changes_nothing_whatever_the_host(running, host):
    headers = {"Host": host, "Origin": "null"}
    for method, path in (("POST", "/prompt"), ("POST", "/interrupt"), ("DELETE", "/view?filename=x&type=output")):
        assert (await running.request(method, path, headers=headers, data=b"{}"))[0] == 403


async def test_opaque_origin_is_allowed_with_the_checks_off(start, flags):
    flags(enable_cors_header="*")
    running = await start()
    assert (await running.post("/queue", headers={"Origin": "null"}, json={}))[0] == 200


@pytest.mark.parametrize(
    "host, origin, status",
    [
        ("localhost:1", "http://localhost:1", 200),
        ("localhost:1", "http://localhost:2", 403),
        ("localhost:1", "http://LOCALHOST:1", 200),
        ("localhost", "http://localhost:5", 200),
        ("127.9.9.9:1", "http://127.9.9.9:1", 200),
        ("127.9.9.9:1", "http://evil.example", 403),
        ("[::1]:1", "http://[::1]:1", 200),
        ("[::1]:1", "http://evil.example:1", 403),
        ("[::1", "http://x", 403),
        ("localhost:1", "http://[bad", 403),
        ("localhost:1", "garbage", 403),
        ("sub.localhost:1", "http://evil.example:1", 403),
        ("192.0.2.7:1", "http://evil.example", 200),
    ],
)
async def test_origins(running, host, origin, status):
    assert (await running.get("/queue", headers={"Host": host, "Origin": origin}))[0] == status


async def test_websocket_of_a_foreign_page(running):
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        await running.ws("x", headers={"Origin": "http://evil.example"})
    assert error.value.status == 403


async def test_options_needs_no_route(running):
    status, body, headers = await running.request("OPTIONS", "/anything", headers={"Origin": "http://evil.example"})
    assert (status, body) == (200, b"") and "Access-Control-Allow-Origin" not in headers


async def test_cors_headers_are_on_errors_too(start, flags):
    flags(enable_cors_header="http://app.example")
    running = await start()
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    for path, status in (("/queue", 200), ("/none", 404), ("/free", 405), ("/history?offset=x", 400)):
        got, _, headers = await running.get(path, headers=foreign)
        assert got == status and headers["Access-Control-Allow-Origin"] == "http://app.example"


async def test_names_are_resolved_once(monkeypatch):
    names = LoopbackNames()
    asked = []

    async def resolve(name):
        asked.append(name)
        return name == "here.example"

    monkeypatch.setattr(names, "_resolve", resolve)
    assert [await names.contains("here.example") for _ in range(3)] == [True] * 3
    assert await names.contains("there.example") is False
    assert asked == ["here.example", "there.example"]
