"""Routes of custom nodes, registered while the server is already listening."""

import asyncio

import pytest
from aiohttp import web


def add_ping(server, path="/pack/ping/{name}"):
    @server.routes.get(path)
    async def ping(request):
        return web.json_response({"pong": request.match_info["name"], "app": request.app is server.app})


async def test_late_routes_answer_with_and_without_api(start):
    running = await start(ready=False)
    early = asyncio.create_task(running.get("/pack/ping/a%2Fb"))
    await asyncio.sleep(0.05)
    assert not early.done()  # a pack may yet own the path
    add_ping(running.server)
    running.server.set_nodes_ready()
    assert (await early)[1] == {"pong": "a/b", "app": True}
    assert (await running.get("/api/pack/ping/x"))[1]["pong"] == "x"
    assert (await running.request("HEAD", "/pack/ping/x"))[0] == 200
    status, _, headers = await running.post("/pack/ping/x")
    assert status == 405 and "GET" in headers["Allow"]


async def test_routes_static_folders_and_middlewares_of_the_application(start):
    running = await start(ready=False)
    folder = running.base / "web"
    folder.mkdir()
    (folder / "a.js").write_text("1")
    seen = []

    @web.middleware
    async def watch(request, handler):
        seen.append(request.path)
        response = await handler(request)
        response.headers["X-Pack"] = "1"
        return response

    async def other(request):
        return web.Response(text="other")

    running.server.app.router.add_get("/other", other)
    running.server.app.add_routes([web.static("/mine", str(folder))])
    running.server.routes.static("/table", str(folder))
    running.server.app.middlewares.append(watch)
    running.server.set_nodes_ready()
    await running.server.nodes_ready.wait_async()
    for path in ("/other", "/mine/a.js", "/table/a.js", "/api/table/a.js", "/queue"):
        status, _, headers = await running.get(path)
        assert status == 200 and headers["X-Pack"] == "1", path
    assert "/queue" in seen and "/other" in seen


async def test_one_bad_route_does_not_take_the_others_along(start):
    running = await start(ready=False)
    running.server.routes.get("no-slash")(lambda request: None)
    add_ping(running.server)
    running.server.set_nodes_ready()
    assert (await running.get("/pack/ping/x"))[0] == 200


async def test_a_failing_route_is_a_plain_500(start):
    running = await start(ready=False)

    @running.server.routes.get("/fail")
    async def fail(request):
        raise RuntimeError("secret detail")

    running.server.set_nodes_ready()
    status, body, headers = await running.get("/fail")
    assert status == 500 and headers["Content-Type"].startswith("text/plain")
    assert b"Server got itself in trouble" in body and b"secret" not in body


async def test_packs_cannot_shadow_built_in_routes(start):
    running = await start(ready=False)

    @running.server.routes.get("/queue")
    async def shadow(request):
        return web.json_response({})

    running.server.set_nodes_ready()
    assert "queue_running" in (await running.get("/queue"))[1]


async def test_http_before_the_nodes_are_there(start):
    running = await start(ready=False)
    for path in ("/queue", "/history", "/prompt", "/features", "/users", "/settings", "/", "/scripts/app.js"):
        assert (await asyncio.wait_for(running.get(path), 5))[0] == 200, path
    waiting = [asyncio.create_task(running.get(p)) for p in ("/object_info/Text", "/extensions", "/node_replacements")]
    waiting.append(asyncio.create_task(running.post("/prompt", json={"prompt": {}})))
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    running.server.set_nodes_ready()
    assert [(await task)[0] for task in waiting] == [200, 200, 200, 400]


async def test_nodes_that_never_come_are_reported(start):
    running = await start(ready=False)
    waiting = asyncio.create_task(running.get("/object_info"))
    await asyncio.sleep(0.02)
    running.server.nodes_ready.fail(RuntimeError("no torch"))
    status, answer, _ = await waiting
    assert status == 503 and "no torch" in answer["error"]
    assert (await running.get("/queue"))[0] == 200


async def test_shutdown_callbacks_of_packs_run(start):
    running = await start(ready=False)
    calls = []

    async def record(app):
        calls.append("startup" if not calls else "shutdown")

    running.server.app.on_startup.append(record)
    running.server.app.on_shutdown.append(record)
    running.server.set_nodes_ready()
    await running.get("/none")
    await running.server.close()
    assert calls == ["startup", "shutdown"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("x")])
async def test_handlers_of_packs_do_not_end_the_server(start, error):
    running = await start(ready=False)

    @running.server.routes.get("/pack/exit")
    async def leave(request):
        raise error

    def handle(body):
        raise error

    async def begin(app):
        raise error

    running.server.add_on_prompt_handler(handle)
    running.server.app.on_startup.append(begin)
    running.server.set_nodes_ready()
    assert (await running.get("/pack/exit"))[0] == 500
    prompt = {"1": {"class_type": "Text", "inputs": {"text": "x"}}}
    assert (await running.post("/prompt", json={"prompt": prompt}))[0] == 200


async def test_packs_can_tell_where_the_server_listens(running):
    assert running.url == f"http://{running.server.address}:{running.server.port}"
