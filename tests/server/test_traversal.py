"""No route that takes a file name leads out of its folder."""

import pytest

import folder_paths

NAMES = [
    "../secret.txt", "../../secret.txt", "..%2fsecret.txt", "%2e%2e%2fsecret.txt", "%252e%252e%252fsecret.txt",
    "..%5csecret.txt", "/secret.txt", "%2fetc%2fpasswd", "a/../../secret.txt", "a%2f..%2f..%2fsecret.txt",
    "%00", "x%00.png", "C:%5csecret.txt", "....//secret.txt", "~%2fsecret.txt",
]  # fmt: skip
GET_ROUTES = [
    "/view?filename={}",
    "/view?filename={}&type=input",
    "/view?filename=secret.txt&type=input&subfolder={}",
    "/view?filename=secret.txt&subfolder=%2e%2e/{}",
    "/userdata/{}",
    "/v2/userdata?path={}",
    "/userdata?dir={}",
    "/view_metadata/loras?filename={}.safetensors",
    "/models/{}",
    "/experiment/models/{}",
    "/experiment/models/preview/loras/0/{}",
    "/extensions/pack/{}",
    "/api/workflow_templates/pack/{}",
    "/templates/{}",
    "/docs/{}",
    "/internal/files/{}",
    "/{}",
]


@pytest.fixture
async def planted(running):
    """Secrets around the folders that routes serve."""
    (running.base / "secret.txt").write_text("SECRET")
    (running.base / "secret.txt.safetensors").write_text("SECRET")
    (running.base / "user" / "secret.txt").write_text("SECRET")
    (running.base / "models" / "secret.txt").write_text("SECRET")
    web = running.base / "pack" / "web"
    web.mkdir(parents=True)
    (running.base / "pack" / "secret.txt").write_text("SECRET")
    import nodes

    nodes.EXTENSION_WEB_DIRS["pack"] = str(web)
    pack = running.base / "custom_nodes" / "pack" / "workflows"
    pack.mkdir(parents=True)
    (running.base / "custom_nodes" / "secret.txt").write_text("SECRET")
    return running


@pytest.mark.parametrize("route", GET_ROUTES)
async def test_reading(planted, route):
    for name in NAMES:
        status, body, _ = await planted.get(route.format(name))
        assert status < 500, name
        assert b"SECRET" not in (body if isinstance(body, bytes) else str(body).encode()), name


def everything(base) -> set:
    return {p for p in base.rglob("*") if p.is_file() and "default" not in p.parts}


@pytest.mark.parametrize("name", NAMES)
async def test_writing_user_data(planted, name):
    before = everything(planted.base)
    await planted.post("/userdata/ok.txt", data=b"ok")
    statuses = [
        (await planted.post(f"/userdata/{name}", data=b"EVIL"))[0],
        (await planted.post(f"/userdata/ok.txt/move/{name}"))[0],
        (await planted.request("DELETE", f"/userdata/{name}"))[0],
    ]
    assert all(s < 500 for s in statuses)
    assert everything(planted.base) == before
    assert "SECRET" in (planted.base / "user" / "secret.txt").read_text()


@pytest.mark.parametrize(
    "name", ["../evil.png", "..\\evil.png", "a/../../evil.png", "../../evil", "..", ".", "a\0b", ""]
)
async def test_uploading(planted, name):
    before = everything(planted.base)
    status, answer, _ = await planted.upload(name, b"EVIL")
    assert status == 400 and list(answer) == ["error"]
    assert everything(planted.base) == before


@pytest.mark.parametrize("subfolder", ["..", "../..", "/etc", "a/../../b", "C:\\x", "a\0b", "a\tb", "a\x7f"])
async def test_uploading_into_a_subfolder(planted, subfolder):
    before = everything(planted.base)
    assert (await planted.upload("x.png", b"EVIL", subfolder=subfolder))[0] == 400
    assert everything(planted.base) == before


async def test_links_that_lead_out_are_not_followed(planted, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.txt").write_text("SECRET")
    (planted.base / "input" / "link").symlink_to(outside)
    (planted.base / "input" / "file.txt").symlink_to(outside / "x.txt")
    assert (await planted.get("/view?filename=x.txt&type=input&subfolder=link"))[0] == 403
    assert (await planted.get("/view?filename=file.txt&type=input"))[0] == 403
    assert (await planted.upload("y.txt", b"EVIL", subfolder="link"))[0] == 400
    for query in ("filename=x.txt&subfolder=link", "filename=file.txt"):
        assert (await planted.request("DELETE", f"/view?type=input&{query}"))[0] == 403
    assert not folder_paths.exists_annotated_filepath("link/x.txt")
    with pytest.raises(folder_paths.PathOutsideFolder):
        folder_paths.get_annotated_filepath("file.txt [input]")
    assert [p.name for p in outside.iterdir()] == ["x.txt"]


async def test_links_that_stay_inside_are_followed(planted):
    folder = planted.base / "input"
    (folder / "real").mkdir()
    (folder / "real" / "x.txt").write_text("inside")
    (folder / "link").symlink_to(folder / "real")
    assert (await planted.get("/view?filename=x.txt&type=input&subfolder=link"))[1] == b"inside"
    assert folder_paths.exists_annotated_filepath("link/x.txt")


async def test_links_that_lead_out_may_be_allowed(start, flags, tmp_path_factory):
    flags(follow_links=True)
    running = await start()
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.txt").write_text("shared")
    (running.base / "input" / "link").symlink_to(outside)
    assert (await running.get("/view?filename=x.txt&type=input&subfolder=link"))[1] == b"shared"
    assert (await running.upload("y.txt", b"new", subfolder="link"))[0] == 200 and (outside / "y.txt").exists()
    assert folder_paths.exists_annotated_filepath("link/x.txt")
    assert (await running.get("/view?filename=x.txt&type=input&subfolder=link/.."))[0] in (400, 403, 404)


@pytest.mark.parametrize(
    "reference", ['{"filename": "../secret.txt"}', '{"filename": "secret.txt", "subfolder": ".."}']
)
async def test_masks_of_images_outside(planted, reference):
    assert (await planted.upload("m.png", b"x", "/upload/mask", original_ref=reference))[0] == 400
