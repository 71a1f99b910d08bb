"""Deleting files of the output, input and temp folders over HTTP."""

import pytest


@pytest.fixture
def files(running):
    for folder in ("output", "input", "temp"):
        (running.base / folder / "sub").mkdir()
        for name in ("a.png", "sub/b.png", ".hidden", "图 é.png"):
            (running.base / folder / name).write_bytes(b"x")
    return running


def left(running) -> set[str]:
    return {str(path.relative_to(running.base)) for path in running.base.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "query, gone",
    [
        ("filename=a.png", "output/a.png"),
        ("filename=a.png&type=input", "input/a.png"),
        ("filename=a.png%20[temp]", "temp/a.png"),
        ("filename=b.png&subfolder=sub&type=temp", "temp/sub/b.png"),
        ("filename=%E5%9B%BE%20%C3%A9.png&type=output&subfolder=", "output/图 é.png"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/api"])
async def test_a_file_goes_and_nothing_else(files, query, gone, prefix):
    before = left(files)
    assert (await files.request("DELETE", f"{prefix}/view?{query}"))[:2] == (204, b"")
    assert left(files) == before - {gone}
    status, answer, _ = await files.request("DELETE", f"{prefix}/view?{query}")
    assert status == 404 and "error" in answer
    assert (await files.get(f"/view?{query}"))[0] == 404


@pytest.mark.parametrize(
    "query, status",
    [
        ("", 400),
        ("filename=", 400),
        ("filename=..", 400),
        ("filename=../input/a.png", 400),
        ("filename=/etc/hostname", 400),
        ("filename=a.png&type=models", 400),
        ("filename=a.png&subfolder=..", 403),
        ("filename=a.png&subfolder=../input", 403),
        ("filename=a.png&subfolder=/", 403),
        ("filename=sub", 404),
        ("filename=.&type=temp", 404),
        ("filename=none.png", 404),
        ("filename=.hidden", 400),
        ("filename=blake3:" + "0" * 64, 404),
        ("filename=a%00.png", 400),
    ],
)
async def test_what_is_no_file_of_the_folders_is_refused(files, query, status):
    before = left(files)
    got, answer, _ = await files.request("DELETE", f"/view?{query}")
    assert got == status and answer["error"] and str(files.base) not in answer["error"]
    assert left(files) == before


async def test_of_a_link_the_link_goes(files):
    (files.base / "output" / "link.png").symlink_to(files.base / "output" / "a.png")
    before = left(files)
    assert (await files.request("DELETE", "/view?filename=link.png"))[0] == 204
    assert left(files) == before - {"output/link.png"} and (files.base / "output" / "a.png").exists()
