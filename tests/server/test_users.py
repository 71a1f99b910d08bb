"""Users and their files (http-api.md section 9)."""

import asyncio
import json

import pytest


@pytest.fixture
async def multi(start, flags):
    """A multi-user server with two users; gives (running, headers of one, headers of the other)."""
    flags(multi_user=True)
    running = await start()
    ids = [(await running.post("/users", json={"username": name}))[1] for name in ("Ann", "Bob B")]
    return running, {"comfy-user": ids[0]}, {"comfy-user": ids[1]}


@pytest.mark.parametrize("user", [None, "", "nobody", "__system", "default", "../default"])
async def test_unknown_users_get_nothing(multi, user):
    running, _, _ = multi
    headers = {} if user is None else {"comfy-user": user}
    for method, path, status in (
        ("GET", "/settings", 401),
        ("GET", "/settings/x", 401),
        ("POST", "/settings/x", 401),
        ("GET", "/userdata?dir=a", 401),
        ("GET", "/userdata/a", 401),
        ("POST", "/userdata/a", 401),
        ("DELETE", "/userdata/a", 401),
        ("POST", "/userdata/a/move/b", 401),
        ("GET", "/v2/userdata", 403),
    ):
        got, _, _ = await running.request(method, path, headers=headers, data=b"{}" if method == "POST" else None)
        assert got == status, path
    assert sorted(p.name for p in (running.base / "user").iterdir()) == ["users.json"]


async def test_users_are_stored_and_apart(multi):
    running, ann, bob = multi
    assert json.loads((running.base / "user" / "users.json").read_text()) == (await running.get("/users"))[1]["users"]
    assert bob["comfy-user"].startswith("Bob-B_")
    await running.post("/settings/x", json=1, headers=ann)
    assert (await running.get("/settings", headers=bob))[1] == {}
    assert (await running.post("/users", json={"username": " Ann "}))[0] == 400
    assert (await running.post("/users", json={"username": "__x"}))[0] == 400
    assert (await running.post("/users", json={"username": "n" * 1000}))[0] == 400


async def test_empty_user_header_is_the_only_user(running):
    await running.post("/settings/x", json=1, headers={"Comfy-User": ""})
    assert (await running.get("/settings/x"))[1] == 1


async def test_folders_are_no_files(running):
    await running.post("/userdata/dir%2Fa.txt", data=b"1")
    assert (await running.get("/userdata/dir"))[0] == 404
    assert (await running.request("DELETE", "/userdata/dir"))[0] == 409
    assert (await running.post("/userdata/dir", data=b"x"))[0] == 409
    assert (await running.post("/userdata/dir%2Fa.txt/move/dir"))[0] == 409
    assert (await running.post("/userdata/dir%2Fa.txt%2Fb", data=b"x"))[0] in (400, 409)
    assert (await running.post("/userdata/" + "n" * 300, data=b"x"))[0] == 400
    assert (await running.get("/userdata/dir%2Fa.txt"))[1] == b"1"


async def test_overwrite_false_is_exclusive(running):
    answers = await asyncio.gather(
        *(running.post("/userdata/one.txt?overwrite=false", data=b"%d" % i) for i in range(10))
    )
    assert sorted(status for status, _, _ in answers) == [200] + [409] * 9
    winner = next(i for i, (status, _, _) in enumerate(answers) if status == 200)
    assert (await running.get("/userdata/one.txt"))[1] == b"%d" % winner


async def test_hidden_files_are_readable_but_not_listed(running):
    await running.post("/userdata/workflows%2F.index.json", data=b"{}")
    await running.post("/userdata/workflows%2Fw.json", data=b"{}")
    assert (await running.get("/userdata?dir=workflows&recurse=true"))[1] == ["w.json"]
    assert (await running.get("/userdata/workflows%2F.index.json"))[0] == 200
    assert [e["path"] for e in (await running.get("/v2/userdata"))[1]] == ["workflows", "workflows/w.json"]


async def test_move_onto_itself_and_over_others(running):
    await running.post("/userdata/a.txt", data=b"a")
    await running.post("/userdata/b.txt", data=b"b")
    assert (await running.post("/userdata/a.txt/move/a.txt"))[0] == 200
    assert (await running.post("/userdata/a.txt/move/b.txt?overwrite=false"))[0] == 409
    assert (await running.get("/userdata/a.txt"))[1] == b"a"
    assert (await running.post("/userdata/a.txt/move/b.txt"))[0] == 200
    assert (await running.get("/userdata/b.txt"))[1] == b"a"
    assert (await running.get("/userdata/a.txt"))[0] == 404


async def test_v2_of_a_user_without_files(running):
    assert (await running.get("/v2/userdata"))[1] == []


async def test_links_in_circles_end(running):
    await running.post("/userdata/dir%2Fa.txt", data=b"1")
    folder = running.base / "user" / "default" / "dir"
    (folder / "loop").symlink_to(folder)
    (folder / "gone").symlink_to(folder / "nothing")
    assert (await running.get("/userdata?dir=dir&recurse=true"))[1] == ["a.txt"]
    status, entries, _ = await running.get("/v2/userdata")
    assert status == 200 and [e["path"] for e in entries if e["type"] == "file"] == ["dir/a.txt"]


async def test_entries_that_cannot_be_looked_at_do_not_hide_the_others(running):
    """Links in a circle, which the system refuses to follow, in each folder that a route lists."""
    user = running.base / "user" / "default"
    for folder in (user / "workflows", running.base / "input", running.base / "models" / "loras"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.safetensors").write_text("x")
        (folder / "one.safetensors").symlink_to("two.safetensors")
        (folder / "two.safetensors").symlink_to("one.safetensors")
    found = {
        "/userdata?dir=workflows&recurse=true": ["a.safetensors"],
        "/internal/files/input": ["a.safetensors [input]"],
    }
    for path, names in found.items():
        assert (await running.get(path))[:2] == (200, names), path
    entries = (await running.get("/v2/userdata?path=workflows"))[1]
    assert [entry["name"] for entry in entries] == ["a.safetensors"]
    assert "a.safetensors" in (await running.get("/models/loras"))[1]
    described = (await running.get("/experiment/models/loras"))[1]
    assert [model["name"] for model in described] == ["a.safetensors"]


async def test_folders_in_folders_end_somewhere(running):
    for levels, expected in ((100, 200), (300, 400), (1500, 400)):
        path = "%2F".join(["d"] * levels + ["x.json"])
        assert (await running.post(f"/userdata/{path}", data=b"1"))[0] == expected, levels
        await running.post("/userdata/y.json", data=b"1")
        assert (await running.post(f"/userdata/y.json/move/{path}"))[0] == expected, levels
        status, _, _ = await running.upload("x.png", b"1", subfolder="/".join(["d"] * levels))
        assert status == expected, levels
    assert (await running.get("/userdata?dir=d&recurse=true"))[0] == 200
    assert (await running.get("/v2/userdata"))[0] == 200
