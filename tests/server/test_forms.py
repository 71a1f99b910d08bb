"""Forms that are more than they should be: many parts, lines that belong to none, no end."""

import asyncio
import time

import pytest

HEADERS = {"Content-Type": "multipart/form-data; boundary=b"}
PART = b'--b\r\nContent-Disposition: form-data; name="k%d"\r\n\r\n\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\n\r\nxxx\r\n'
FORMS = {
    "parts": FILE + b"".join(PART % number for number in range(10_000)) + b"--b--\r\n",
    "files": FILE * 10_000 + b"--b--\r\n",
    "lines before the first part": b"\r\n" * 1_000_000 + FILE + b"--b--\r\n",
    "headers": b"".join(FILE.replace(b"\r\n\r\n", b"\r\n" + b"a: b\r\n" * 100 + b"\r\n") for _ in range(900)),
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("path", ["/upload/image", "/upload/mask"])
async def test_forms_of_very_many_things_are_refused_and_stall_nobody(running, path, kind):
    waits = []

    async def others() -> None:
        while True:
            began = time.perf_counter()
            try:
                assert (await running.get("/prompt"))[0] == 200
            finally:  # also when it still waits at the end
                waits.append(time.perf_counter() - began)

    task = asyncio.create_task(others())
    status, answer, _ = await running.post(path, data=FORMS[kind], headers=HEADERS)
    task.cancel()
    assert status == 400 and "the form has more than" in answer["error"]
    assert len(waits) > 3 and max(waits) < 1
    assert not list((running.base / "temp").glob(".upload*")) and not list((running.base / "input").iterdir())


async def test_all_of_a_form_counts(start, flags):
    """Also what comes in no part, or in names and headers; sent in chunks, so that its size is not known before."""
    flags(max_upload_size=1)
    running = await start()

    async def body(piece: bytes):
        for _ in range(300):
            yield piece

    for piece in (b"x" * 10_000 + b"\r\n", FILE + b"", b"--b\r\nContent-Disposition: form-data; name=" + b"n" * 7000):
        pieces = body(piece if piece.startswith(b"x") else piece + b"\r\n\r\n" + b"v" * 5000 + b"\r\n")
        status, _, _ = await running.post("/upload/image", data=pieces, headers=HEADERS)
        assert status == 413, piece[:50]
    assert not list((running.base / "temp").glob(".upload*")) and not list((running.base / "input").iterdir())


async def test_many_fields_are_no_mistake(running):
    form = b"".join(PART % number for number in range(500)) + FILE + b"--b--\r\n"
    assert (await running.post("/upload/image", data=form, headers=HEADERS))[0] == 200
