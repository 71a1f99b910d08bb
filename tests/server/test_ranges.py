"""Parts of files, and conditions on them (RFC 9110, sections 13 and 14), on every route that sends files."""

import asyncio
import os
from email.utils import formatdate

import pytest

CONTENT = bytes(range(200))
CHANGED = 1_700_000_000  # seconds of the epoch
ROUTES = {
    "view": "/view?type=input&filename=x.bin",
    "user data": "/userdata/x.bin",
    "user data by query": "/userdata?file=x.bin",
    "page": "/index.html",
    "root": "/",
    "user.css": "/user.css",
    "pack": "/extensions/pack/x.bin",
    "template": "/api/workflow_templates/pack/x.json",
}


def at(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


async def fetch(served, route: str, headers=None, method: str = "GET"):
    """(status, body as it is, headers)."""
    async with served.session.request(method, served.url + ROUTES[route], headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers


@pytest.fixture
async def served(start, flags, tmp_path_factory):
    """A server with the same file behind each of its routes."""
    root = tmp_path_factory.mktemp("front")
    flags(front_end_root=str(root))
    running = await start()
    import nodes

    nodes.EXTENSION_WEB_DIRS["pack"] = str(running.base / "pack")
    pack, user = running.base / "custom_nodes" / "pack" / "example_workflows", running.base / "user" / "default"
    places = [running.base / "input" / "x.bin", user / "x.bin", user / "user.css", root / "index.html"]
    for path in (*places, running.base / "pack" / "x.bin", pack / "x.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
        os.utime(path, (CHANGED + 0.5, CHANGED + 0.5))
    return running


@pytest.mark.parametrize("route", ROUTES)
async def test_a_part_is_continued_only_of_the_same_file(served, route):
    tag = (await fetch(served, route))[2]["Etag"]
    asked = {"Range": "bytes=10-19"}
    for validator in (tag, at(CHANGED), None):
        headers = asked | ({"If-Range": validator} if validator else {})
        status, body, answer = await fetch(served, route, headers)
        assert (status, body) == (206, CONTENT[10:20]), validator
        assert answer["Content-Range"] == "bytes 10-19/200" and answer["Etag"] == tag
    for validator in ('"other"', "W/" + tag, f'"other", {tag}', at(CHANGED - 9), at(CHANGED + 9), "nonsense", "", "*"):
        for part in ("bytes=10-19", "bytes=500-", "bytes=9-1"):
            status, body, answer = await fetch(served, route, {"If-Range": validator, "Range": part})
            assert (status, body) == (200, CONTENT), validator
            assert "Content-Range" not in answer and answer["Etag"] == tag


@pytest.mark.parametrize(
    "asked, status, first, last",
    [
        ("bytes=0-0", 206, 0, 0),
        ("bytes=190-", 206, 190, 199),
        ("bytes=190-999", 206, 190, 199),
        ("bytes=190-" + "9" * 5000, 206, 190, 199),
        ("bytes=-5", 206, 195, 199),
        ("bytes=-500", 206, 0, 199),
        ("BYTES = 1-2", 206, 1, 2),
        ("bytes=,1-2,", 206, 1, 2),
        ("bytes=500-,1-2", 206, 1, 2),
        ("bytes=0-1,5-9", 200, 0, 199),
        ("bytes=" + "0-," * 1000, 200, 0, 199),
        ("lines=1-2", 200, 0, 199),
        ("nonsense", 200, 0, 199),
        ("bytes=200-", 416, None, None),
        ("bytes=" + "9" * 5000 + "-", 416, None, None),
        ("bytes=-0", 416, None, None),
        ("bytes=500-,600-700", 416, None, None),
        ("bytes=9-1", 416, None, None),
        ("bytes=-", 416, None, None),
        ("bytes=", 416, None, None),
        ("bytes=a-b", 416, None, None),
        ("bytes=1-2-3", 416, None, None),
        ("bytes=٣-٤", 416, None, None),
    ],
)
async def test_ranges(served, asked, status, first, last):
    got, body, headers = await fetch(served, "view", {"Range": asked})
    assert got == status
    if status == 416:
        assert body == b"" and headers["Content-Range"] == "bytes */200" and headers["Content-Length"] == "0"
    else:
        assert body == CONTENT[first : last + 1]
        assert headers.get("Content-Range") == (f"bytes {first}-{last}/200" if status == 206 else None)


@pytest.mark.parametrize("route", ROUTES)
async def test_head_tells_of_the_whole_file(served, route):
    status, body, headers = await fetch(served, route, {"Range": "bytes=1-2"}, "HEAD")
    assert (status, body) == (200, b"") and "Content-Range" not in headers
    assert headers["Content-Length"] == "200" and headers["Accept-Ranges"] == "bytes"
    whole = (await fetch(served, route))[2]
    for name in ("Etag", "Last-Modified", "Content-Type"):
        assert headers[name] == whole[name]
    assert headers["Last-Modified"] == at(CHANGED)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "conditions, status",
    [
        ({"If-None-Match": "TAG"}, 304),
        ({"If-None-Match": "W/TAG"}, 304),
        ({"If-None-Match": '"a", W/"b" , TAG'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"other"', "If-Modified-Since": at(CHANGED + 9)}, 200),
        ({"If-None-Match": "nonsense"}, 200),
        ({"If-None-Match": '"a,TAG'}, 200),
        ({"If-Modified-Since": at(CHANGED)}, 304),
        ({"If-Modified-Since": at(CHANGED - 1)}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-Modified-Since": "Mon, 99 Jan 99999 99:99:99 GMT"}, 200),
        ({"If-Match": "TAG"}, 200),
        ({"If-Match": "*"}, 200),
        ({"If-Match": "W/TAG"}, 412),
        ({"If-Match": '"other"'}, 412),
        ({"If-Match": '"other"', "If-Unmodified-Since": at(CHANGED)}, 412),
        ({"If-Unmodified-Since": at(CHANGED)}, 200),
        ({"If-Unmodified-Since": at(CHANGED - 1)}, 412),
        ({"If-Match": "TAG", "If-None-Match": "TAG"}, 304),
    ],
)
async def test_conditions(served, method, conditions, status):
    tag = (await fetch(served, "view"))[2]["Etag"]
    headers = {name: value.replace("TAG", tag) for name, value in conditions.items()}
    got, body, answer = await fetch(served, "view", headers, method)
    assert got == status and body == (CONTENT if (got, method) == (200, "GET") else b"")
    if status == 304:
        assert answer["Etag"] == tag and "Content-Length" not in answer
        part = headers | {"Range": "bytes=0-1"}
        assert (await fetch(served, "view", part, method))[0] == 304


async def test_tags_may_come_in_several_headers(served):
    tag = (await fetch(served, "view"))[2]["Etag"]
    headers = [("If-None-Match", '"a"'), ("If-None-Match", tag)]
    assert (await fetch(served, "view", headers))[0] == 304


async def test_empty_files(served):
    (served.base / "input" / "x.bin").write_bytes(b"")
    assert (await fetch(served, "view"))[:2] == (200, b"")
    status, _, headers = await fetch(served, "view", {"Range": "bytes=0-"})
    assert status == 416 and headers["Content-Range"] == "bytes */0"


async def test_another_file_that_looks_compressed_is_not_sent_instead(served):
    """`x.bin.gz` may be anybody's upload."""
    for ending in (".gz", ".br"):
        assert (await served.upload("x.bin" + ending, b"something else"))[0] == 200
    status, body, headers = await fetch(served, "view", {"Accept-Encoding": "gzip, br"})
    assert (status, body) == (200, CONTENT) and "Content-Encoding" not in headers


async def test_a_file_that_gets_shorter_ends_the_connection(served):
    """Or the client takes the next answer for the rest of the file."""
    path = served.base / "input" / "big.bin"
    path.write_bytes(b"x" * (64 << 20))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]), limit=1024)
    writer.write(b"GET /view?type=input&filename=big.bin HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    os.truncate(path, 1000)
    received = 0
    try:
        while chunk := await asyncio.wait_for(reader.read(1 << 20), 10):
            received += len(chunk)
    except ConnectionResetError:
        pass
    writer.close()
    assert received < 64 << 20
    assert (await served.get("/prompt"))[0] == 200
