"""The page, its files and general headers (http-api.md sections 1 and 11)."""

import gzip

import pytest

from gateway.headers import cache_control


@pytest.fixture
async def page(start, flags, tmp_path_factory):
    """A server with a front end of its own."""
    root = tmp_path_factory.mktemp("front")
    (root / "index.html").write_text("<p>page</p>")
    (root / "assets").mkdir()
    (root / "assets" / "a.js").write_text("1")
    (root / "extensions" / "core").mkdir(parents=True)
    (root / "extensions" / "core" / "b.js").write_text("2")
    (root / "x.webp").write_bytes(b"RIFF")
    flags(front_end_root=str(root))
    return await start(ready=False)


async def test_files_of_the_page_do_not_wait_for_nodes(page):
    assert (await page.get("/"))[1] == b"<p>page</p>"
    status, body, headers = await page.get("/assets/a.js")
    assert (status, body) == (200, b"1")
    assert headers["Content-Type"] == "text/javascript" and headers["Cache-Control"] == "no-store"
    assert (await page.get("/extensions/core/b.js"))[1] == b"2"
    assert (await page.get("/assets"))[0] == 403
    assert (await page.get("/x.webp"))[2]["Content-Type"] == "image/webp"
    etag = (await page.get("/x.webp"))[2]["Etag"]
    assert (await page.get("/x.webp", headers={"If-None-Match": etag}))[0] == 304


async def test_style_sheet_of_the_user(page):
    assert (await page.get("/user.css"))[:2] == (404, b"")
    await page.post("/userdata/user.css", data=b"a{}")
    status, body, headers = await page.get("/user.css")
    assert (status, body) == (200, b"a{}") and headers["Content-Type"] == "text/css"


async def test_scripts_of_packs_are_listed_and_served(page):
    import nodes

    web = page.base / "web"
    (web / "deep").mkdir(parents=True)
    (web / "deep" / "c.js").write_text("3")
    (web / "page.html").write_text("<p>")
    nodes.EXTENSION_WEB_DIRS["my pack"] = str(web)
    page.server.set_nodes_ready()
    listed = (await page.get("/extensions"))[1]
    assert listed == ["/extensions/core/b.js", "/extensions/my%20pack/deep/c.js"]
    assert (await page.get(listed[1]))[1] == b"3"
    assert (await page.get("/extensions/my%20pack/none.js"))[0] == 404


async def test_without_a_front_end_the_page_says_so(page):
    page.server.front_end.root = None
    status, body, _ = await page.get("/")
    assert status == 200 and b"not installed" in body


@pytest.mark.parametrize(
    "path, status, value",
    [
        ("/a.js", 200, "no-store"),
        ("/a.css", 404, "no-store"),
        ("/templates/index.fr.json", 200, "no-store"),
        ("/my-index.json", 200, None),
        ("/a.PNG", 200, "public, max-age=86400"),
        ("/a.webp", 206, "public, max-age=86400"),
        ("/a.png", 404, "public, max-age=3600"),
        ("/a.png", 302, "no-cache"),
        ("/a.png", 403, None),
        ("/view", 200, None),
    ],
)
def test_cache_rules(path, status, value):
    assert cache_control(path, status) == value


async def test_compression_is_for_json_and_text_only(start, flags):
    flags(enable_compress_response_body=True)
    running = await start()
    await running.upload("a.txt", b"x" * 5000)
    for path, compressed in (("/object_info", True), ("/view?type=input&filename=a.txt", False)):
        async with running.session.get(
            running.url + path, headers={"Accept-Encoding": "gzip"}, auto_decompress=False
        ) as response:
            body = await response.read()
            assert (response.headers.get("Content-Encoding") == "gzip") is compressed
            if compressed:
                assert b"Text" in gzip.decompress(body)


@pytest.mark.parametrize(
    "accepted, compressed",
    [
        ("br, GZIP;q=0.5", True),
        ("gzip;q=1.0", True),
        ("gzip;q=0", False),
        ("br, gzip; q=0.0, *", False),
        ("notgzip", False),
        ("", False),
    ],
)
async def test_compression_is_for_clients_that_want_it(start, flags, accepted, compressed):
    flags(enable_compress_response_body=True)
    running = await start()
    headers = {"Accept-Encoding": accepted}
    async with running.session.get(running.url + "/object_info", headers=headers, auto_decompress=False) as response:
        await response.read()
        assert (response.headers.get("Content-Encoding") == "gzip") is compressed
        assert response.headers["Vary"] == "Accept-Encoding"  # or a cache gives either to anybody


async def test_content_policy(start, flags):
    flags(disable_api_nodes=True)
    running = await start()
    for path in ("/", "/queue", "/none"):
        policy = (await running.get(path))[2]["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';") and policy.endswith("object-src 'self';")


async def test_feature_flags_of_the_command_line(start, flags):
    flags(feature_flag=["text=some words", "show_signin_button", "assets=true", "enable_telemetry=maybe"])
    features = (await (await start()).get("/features"))[1]
    assert features["text"] == "some words" and features["show_signin_button"] is True
    assert features["assets"] is False and "enable_telemetry" not in features
