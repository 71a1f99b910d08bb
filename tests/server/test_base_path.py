"""Below a path, as behind a reverse proxy that passes it on; and proxies that decode what is encoded."""

import pytest


@pytest.fixture
async def below(start, flags):
    flags(base_path="/tools/comfy")
    return await start()


async def test_every_route_answers_below_the_path_and_at_the_root(below):
    for base in ("", "/tools/comfy"):
        for path in ("/prompt", "/api/queue", "/api/jobs?limit=5", "/object_info", "/internal/logs"):
            assert (await below.get(base + path))[0] == 200, base + path
        assert (await below.get(base + "/nothing"))[0] == 404
        assert (await below.get(base + "/history?max_items=abc"))[0] == 400
    prompt = {"1": {"class_type": "Text", "inputs": {"text": "x"}}}
    assert (await below.post("/tools/comfy/api/prompt", json={"prompt": prompt}))[0] == 200
    async with below.session.ws_connect(below.url + "/tools/comfy/ws?clientId=me") as ws:
        assert (await ws.receive_json())["data"]["sid"] == "me"


async def test_the_page_is_reached_with_a_slash_at_the_end(below):
    async with below.session.get(below.url + "/tools/comfy", allow_redirects=False) as answer:
        assert answer.status == 308 and answer.headers["Location"] == "/tools/comfy/"
    status, page, _ = await below.get("/tools/comfy/")
    assert status == 200 and b"<" in page


async def test_names_and_queries_come_through_as_they_were_sent(below):
    name = "workflows%2Fa%20b%3F%C3%A9.json"
    assert (await below.post(f"/tools/comfy/api/userdata/{name}", data=b"{}"))[0] == 200
    listed = (await below.get("/tools/comfy/userdata?dir=workflows&split=false"))[1]
    assert listed == ["a b?é.json"]
    assert (await below.get(f"/tools/comfy/userdata/{name}"))[1] in (b"{}", {})
    assert (await below.get("/tools/comfy/view?filename=%E5%9B%BE.png&type=input"))[0] == 404


@pytest.mark.parametrize("path", ["/tools/comfyx/prompt", "/tools/prompt", "/comfy/prompt", "/tools/comfy//prompt"])
async def test_paths_beside_it_are_unknown(below, path):
    assert (await below.get(path))[0] == 404


async def test_without_the_flag_there_is_no_such_path(running):
    assert (await running.get("/tools/comfy/prompt"))[0] == 404


async def use_file(server, path, other) -> None:
    """Write, read, move and delete a file of the user, by paths written so."""
    assert (await server.post(f"/api/userdata/{path}", data=b"[1]"))[:2] == (200, "workflows/deep/a.json")
    assert (await server.get(f"/api/userdata/{path}"))[1] == [1]
    assert (await server.post(f"/api/userdata/{path}/move/{other}"))[:2] == (200, "other/b.json")
    assert (await server.request("DELETE", f"/api/userdata/{other}"))[0] == 204
    assert (await server.get(f"/api/userdata/{other}"))[0] == 404


@pytest.mark.parametrize("slash", ["%2F", "/"])
async def test_paths_of_user_files_may_come_decoded_through_a_proxy(below, slash):
    await use_file(below, slash.join(("workflows", "deep", "a.json")), slash.join(("other", "b.json")))
    assert (await below.get("/userdata/..%2F..%2Fx"))[0] == 403 and (await below.get("/userdata/%2Fetc/x"))[0] == 403


async def test_paths_of_user_files_may_come_in_the_query(running):
    await use_file(running, "workflows%2Fdeep%2Fa.json", "other%2Fb.json")
    query = "?file=workflows%2Fa.json"
    assert (await running.post(f"/userdata{query}", data=b"[1]"))[:2] == (200, "workflows/a.json")
    assert (await running.post(f"/userdata{query}&overwrite=false", data=b"[2]"))[0] == 409
    assert (await running.get(f"/api/userdata{query}"))[1] == [1]
    assert (await running.request("DELETE", f"/userdata{query}"))[0] == 204
    assert (await running.get(f"/userdata{query}"))[0] == 404
    for bad, status in (("", 400), ("?file=", 400), ("?file=..%2Fx", 403)):
        assert (await running.post(f"/userdata{bad}", data=b"x"))[0] == status
        assert (await running.request("DELETE", f"/userdata{bad}"))[0] == status


@pytest.mark.parametrize("text", ["/comfy", "comfy", "/comfy/", "/a/b.c_d-e~1"])
def test_spellings_of_the_flag(text):
    from comfy import cli_args

    assert cli_args.parser.parse_args(["--base-path", text]).base_path == "/" + text.strip("/")


@pytest.mark.parametrize("text", ["/a b", "/a?x", "/../x", "/a//b", "http://host/x", "/é"])
def test_what_is_no_path_is_refused(text, capsys):
    from comfy import cli_args

    with pytest.raises(SystemExit):
        cli_args.parser.parse_args(["--base-path", text])
    assert "is not a path" in capsys.readouterr().err
