"""The asset store and what its routes refuse (http-api.md section 12)."""

import errno
import json
import sqlite3
import uuid

import pytest

import assets
from assets.database import Database, DatabaseUnavailable
from assets.store import AssetStore


@pytest.fixture
async def running(start, flags, base, monkeypatch):
    flags(enable_assets=True, database_url=f"sqlite:///{base}/user/assets.db")
    monkeypatch.setattr(assets, "_store", None)
    yield await start()
    assets.store()._database.close()


async def upload(running, data: bytes, name: str = "a.txt", **texts):
    return await running.upload(name, data, "/api/assets", "file", **{"tags": "input", **texts})


def code(answer) -> str:
    assert set(answer["error"]) == {"code", "message", "details"}
    return answer["error"]["code"]


async def test_same_content_is_stored_once(running):
    status, first, _ = await upload(running, b"same", "a.txt")
    assert status == 201 and first["created_new"] is True and first["loader_path"] == "a.txt"
    status, second, _ = await upload(running, b"same", "b.txt", user_metadata='{"k": 1}')
    assert status == 200 and second["created_new"] is False and second["name"] == "b.txt"
    assert second["id"] != first["id"] and second["hash"] == first["hash"]
    assert [p.name for p in (running.base / "input").iterdir()] == ["a.txt"]
    assert (await running.request("DELETE", f"/api/assets/{first['id']}"))[0] == 204
    assert (await running.get(f"/api/assets/{second['id']}/content"))[1] == b"same"


async def test_overwritten_file_is_not_served_under_the_old_hash(running):
    _, old, _ = await running.upload("x.png", b"old")
    await running.upload("x.png", b"new", overwrite="true")
    assert (await running.get(f"/view?filename={old['asset']['hash']}"))[0] == 404


async def test_model_tag_decides_the_folder(running):
    status, asset, _ = await upload(running, b"weights", "m.safetensors", tags='["models", "loras"]')
    assert status == 201 and (running.base / "models" / "loras" / "m.safetensors").read_bytes() == b"weights"
    assert asset["loader_path"] == "m.safetensors" and asset["tags"] == ["loras", "models"]


@pytest.mark.parametrize(
    "texts, expected",
    [
        ({"tags": ""}, "INVALID_BODY"),
        ({"tags": "input,output"}, "INVALID_BODY"),
        ({"tags": "models"}, "INVALID_BODY"),
        ({"tags": "models,custom_nodes"}, "INVALID_BODY"),
        ({"tags": "[1]"}, "INVALID_BODY"),
        ({"user_metadata": "{"}, "INVALID_BODY"),
        ({"user_metadata": "[]"}, "INVALID_BODY"),
        ({"hash": "md5:1"}, "INVALID_HASH"),
        ({"hash": "blake3:" + "0" * 64}, "HASH_MISMATCH"),
        ({"surprise": "x"}, "UNSUPPORTED_FIELD"),
    ],
)
async def test_refused_uploads(running, texts, expected):
    status, answer, _ = await upload(running, b"data", **texts)
    assert status == 400 and code(answer) == expected
    assert not (running.base / "input" / "a.txt").exists()
    assert list((running.base / "temp").iterdir()) == []


async def test_pages_cover_everything_once(running):
    ids = {(await upload(running, b"%d" % i, f"{i}.txt"))[1]["id"] for i in range(7)}
    for sort in ("created_at", "name", "size", "updated_at", "last_access_time"):
        for order in ("asc", "desc"):
            seen, after = [], ""
            while True:
                page = (await running.get(f"/api/assets?limit=3&sort={sort}&order={order}&after={after}"))[1]
                seen += [a["id"] for a in page["assets"]]
                assert page["total"] == 7
                if not page["has_more"]:
                    break
                after = page["next_cursor"]
            assert len(seen) == 7 and set(seen) == ids
    by_name = (await running.get("/api/assets?sort=name&limit=2"))[1]["next_cursor"]
    assert code((await running.get(f"/api/assets?sort=size&after={by_name}"))[1]) == "INVALID_CURSOR"


async def test_filters(running):
    await upload(running, b"1", "50%_a.txt", tags="input,red", user_metadata='{"n": 1, "s": "x", "flag": true}')
    await upload(running, b"2", "500a.txt", tags="input,blue", user_metadata='{"n": 2}')

    async def names(query: str) -> list[str]:
        return sorted(a["name"] for a in (await running.get("/api/assets?" + query))[1]["assets"])

    assert await names("tags_all=input,red") == ["50%_a.txt"]
    assert await names("include_tags=RED") == ["50%_a.txt"]
    assert await names("tags_any=red,blue") == ["50%_a.txt", "500a.txt"]
    assert await names("tags_none=red") == ["500a.txt"]
    assert await names("name_contains=0%25_") == ["50%_a.txt"]
    for wanted, found in (
        ({"n": 1}, 1),
        ({"n": [1, 2]}, 2),
        ({"s": None}, 1),
        ({"s": "x", "n": 2}, 0),
        ({"flag": True}, 1),
    ):
        from urllib.parse import quote

        assert len(await names("metadata_filter=" + quote(json.dumps(wanted)))) == found, wanted
    assert (await running.get("/api/assets/tags/refine?tags_all=input"))[1]["tag_counts"] == {
        "input": 2,
        "blue": 1,
        "red": 1,
    }


@pytest.mark.parametrize(
    "query",
    ["limit=501", "limit=x", "offset=-1", "sort=bogus", "order=up", "metadata_filter={", "metadata_filter=[]",
     "offset=9223372036854775808", 'metadata_filter={"a":' + "9" * 400 + "}", 'metadata_filter={"a":"\\ud800"}',
     'metadata_filter={"\\ud800":1}', "metadata_filter=" + "[" * 400 + "]" * 400],
)  # fmt: skip
async def test_bad_queries(running, query):
    status, answer, _ = await running.get("/api/assets?" + query)
    assert status == 400 and code(answer) == "INVALID_QUERY"


async def test_hostile_metadata_keys_are_data(running):
    await upload(running, b"1")
    from urllib.parse import quote

    for key in ("'; DROP TABLE assets; --", '"', "$", "a.b[0]", "", "\0", "a\\b"):
        status, answer, _ = await running.get("/api/assets?metadata_filter=" + quote(json.dumps({key: 1})))
        assert status == 200 and answer["total"] == 0
    assert (await running.get("/api/assets"))[1]["total"] == 1


async def test_whatever_metadata_holds_it_is_found_by_it(running):
    from urllib.parse import quote

    held = {"a.b[0]": 1, 'q"q': "x", "list": [1, {"c": 2}], "deep": {"a": [None]}, "nan": float("nan"), "é": True}
    await upload(running, b"1", "nan.txt", user_metadata=json.dumps(held))
    for name, value in (("a.b[0]", 1), ('q"q', "x"), ("list", [[1, {"c": 2}]]), ("nan", None), ("é", True)):
        answer = (await running.get("/api/assets?metadata_filter=" + quote(json.dumps({name: value}))))[1]
        assert answer["total"] == 1, name
    # A row that an older version wrote does not take the search from all.
    with assets.store()._database.transaction() as db:
        db.execute("UPDATE assets SET user_metadata = '{\"x\": NaN'")
    answer = (await running.get("/api/assets/tags/refine?metadata_filter=" + quote(json.dumps({"x": 1}))))[:2]
    assert answer == (200, {"tag_counts": {}})


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", "x" * 600),
        ("name", "\ud800"),
        ("tags", ["\ud800"]),
        ("tags", ["x" * 600]),
        ("preview_id", "\ud800"),
        ("mime_type", "text/html\r\nX-Evil: 1"),
        ("mime_type", "x" * 600),
        ("mime_type", "image"),
        ("user_metadata", [[]] * 2),
        ("user_metadata", "deep"),
    ],
)
async def test_texts_that_cannot_be_stored_or_told(running, field, value):
    _, asset, _ = await upload(running, b"1")
    sent = json.dumps({field: value, "hash": asset["hash"]})
    if value == "deep":
        sent = sent.replace('"deep"', '{"a":' * 300 + "1" + "}" * 300)
    if field != "mime_type":
        for method, path in (("PUT", ""), ("POST", "/tags"), ("DELETE", "/tags")):
            if field == "tags" if path else field != "tags":
                status, answer, _ = await running.request(method, f"/api/assets/{asset['id']}{path}", data=sent)
                assert status == 400 and code(answer) in ("INVALID_BODY", "INVALID_JSON"), (method, path)
        if field != "preview_id":
            status, answer, _ = await running.post("/api/assets/from-hash", data=sent)
            assert status == 400 and code(answer) in ("INVALID_BODY", "INVALID_JSON")
    if isinstance(value, str) and value.isascii() and value != "deep":
        status, answer, _ = await upload(running, b"2", **{field: value})
        assert status == 400 and code(answer) == "INVALID_BODY"
    assert (await running.get("/api/assets"))[1]["total"] == 1
    assert (await running.get(f"/api/assets/{asset['id']}/content"))[:2] == (200, b"1")


async def test_cursors_that_were_not_given(running):
    import base64

    for raw in (b"[" * 50_000, b'["created_at", true, "\\ud800", "x"]', b'["created_at", true, {}, []]', b"\xff"):
        status, answer, _ = await running.get("/api/assets?after=" + base64.urlsafe_b64encode(raw).decode()[:6000])
        assert status == 400 and code(answer) in ("INVALID_CURSOR", "INVALID_QUERY"), raw[:50]


async def test_seeding_finds_files_once(running):
    (running.base / "input" / "found.txt").write_text("x")
    (running.base / "models" / "loras").mkdir(parents=True, exist_ok=True)
    (running.base / "models" / "loras" / "l.safetensors").write_bytes(b"x")
    status, answer, _ = await running.post("/api/assets/seed?wait=true", json={"roots": ["input", "models"]})
    assert status == 200 and answer["progress"] == {"scanned": 2, "created": 2, "skipped": 0}
    assert (await running.post("/api/assets/seed?wait=true"))[1]["progress"]["created"] == 0
    assert (await running.get("/api/assets?tags_all=models,loras"))[1]["total"] == 1
    assert (await running.get("/api/assets/seed/status"))[1]["state"] == "idle"
    assert (await running.post("/api/assets/seed", json={"roots": ["/etc"]}))[0] == 400
    (running.base / "input" / "found.txt").unlink()
    assert (await running.post("/api/assets/prune"))[1]["removed"] == 1


async def test_tags_round_trip(running):
    ident = (await upload(running, b"1"))[1]["id"]
    answer = (await running.post(f"/api/assets/{ident}/tags", json={"tags": ["New", "input", "new"]}))[1]
    assert answer == {"added": ["new"], "already_present": ["input"], "total_tags": ["input", "new"]}
    answer = (await running.request("DELETE", f"/api/assets/{ident}/tags", json={"tags": ["new", "no"]}))[1]
    assert answer == {"removed": ["new"], "not_present": ["no"], "total_tags": ["input"]}
    tags = (await running.get("/api/tags?order=name_asc"))[1]["tags"]
    assert tags == [{"name": "input", "count": 1}, {"name": "new", "count": 0}]
    assert (await running.get("/api/tags?include_zero=false"))[1]["total"] == 1
    assert (await running.post(f"/api/assets/{ident}/tags", json={"tags": "x"}))[0] == 400
    assert (await running.post(f"/api/assets/{uuid.uuid4()}/tags", json={"tags": ["x"]}))[0] == 404


ACTIVE = [
    "text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "image/svg+xml", "text/xsl", "application/xml",
    "application/atom+xml", "multipart/x-mixed-replace;boundary=x", "multipart/related", "message/rfc822",
    "text/javascript", "text/jscript", "application/x-ecmascript", "text/livescript", "text/javascript1.5",
]  # fmt: skip


@pytest.mark.parametrize("mime", ACTIVE)
async def test_active_content_is_not_inline(running, mime):
    uploaded = (await upload(running, b"<script>", "x.bin", mime_type=mime))[1]
    routes = [f"/api/assets/{uploaded['id']}/content?disposition=inline", f"/view?filename={uploaded['hash']}"]
    for route in routes:
        status, _, headers = await running.get(route)
        assert status == 200 and headers["Content-Type"] == "application/octet-stream", route
        assert (
            headers["Content-Disposition"].startswith("attachment;") and headers["X-Content-Type-Options"] == "nosniff"
        )


async def test_content_whose_file_is_gone(running):
    ident = (await upload(running, b"1"))[1]["id"]
    (running.base / "input" / "a.txt").unlink()
    status, answer, _ = await running.get(f"/api/assets/{ident}/content")
    assert status == 404 and code(answer) == "FILE_NOT_FOUND"


def test_one_process_per_file_and_data_survives(tmp_path):
    path = str(tmp_path / "x.db")
    file = tmp_path / "f.txt"
    file.write_text("x")
    first = Database(path)
    ident = AssetStore(first).add_file(str(file), tags=["input"])["id"]
    with pytest.raises(DatabaseUnavailable, match=r"x\.db"):
        Database(path)
    first.close()
    again = Database(path)
    assert AssetStore(again).get(ident, "")["tags"] == ["input"]
    again.close()


def test_file_that_is_no_database(tmp_path):
    (tmp_path / "x.db").write_text("this is not a database, only text" * 100)
    with pytest.raises(DatabaseUnavailable):
        Database(str(tmp_path / "x.db"))


@pytest.mark.parametrize(
    "error, status, expected",
    [
        (sqlite3.OperationalError("disk I/O error"), 503, "DATABASE_ERROR"),
        (OSError(errno.ENOSPC, "No space left on device"), 507, "STORAGE_ERROR"),
    ],
)
async def test_trouble_with_disk_or_database_is_no_500(running, monkeypatch, error, status, expected):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(AssetStore, "list", fail)
    got, answer, _ = await running.get("/api/assets")
    assert got == status and code(answer) == expected


async def test_files_of_an_ended_prompt_become_assets(running, tmp_path):
    from assets.finished import FinishedFiles

    output = running.base / "output"
    (output / "sub").mkdir()
    for path, data in (("a.png", b"a"), ("sub/b.png", b"b"), ("other.png", b"o")):
        (output / path).write_bytes(data)
    (tmp_path / "secret.txt").write_text("x")
    outputs = {
        "1": {"images": [{"filename": "a.png", "subfolder": "", "type": "output"}] * 2, "text": ["a", None]},
        "2": {"images": [{"filename": "b.png", "subfolder": "sub", "type": "output"}], "animated": (True,)},
        "3": {"images": [{"filename": "t.png", "type": "temp"}, {"filename": "gone.png", "type": "output"}]},
        "4": {"images": [{"filename": "../secret.txt", "type": "output"}, {"type": "output"}, {"filename": 5}, "x"]},
        "5": None,
    }
    finished = FinishedFiles(assets.store())
    finished.prompt_ended("job-1", outputs).result(10)
    finished.prompt_ended("job-2", outputs).result(10)  # from the cache: the files are known
    found = (await running.get("/api/assets?tags_all=output&sort=name&order=asc"))[1]["assets"]
    assert [(a["name"], a["job_id"], a["loader_path"]) for a in found] == [
        ("a.png", "job-1", "a.png"),
        ("b.png", "job-1", "sub/b.png"),
    ]
    assert found[0]["hash"].startswith("blake3:")
    assert (await running.request("DELETE", "/view?filename=a.png&type=output"))[0] == 204
    assert [a["name"] for a in (await running.get("/api/assets?tags_all=output"))[1]["assets"]] == ["b.png"]
    finished.close()
