"""Uploads and masks (http-api.md section 8; reference-quirks.md)."""

import asyncio
import io
import json

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def png(color=(10, 20, 30, 255), size=(4, 3), mode="RGBA", **texts) -> bytes:
    info = PngInfo()
    for key, value in texts.items():
        info.add_text(key, value)
    out = io.BytesIO()
    Image.new(mode, size, color).save(out, "PNG", pnginfo=info)
    return out.getvalue()


async def test_staged_files_leave_nothing_behind(running):
    assert (await running.upload("a.png", b"1"))[0] == 200
    assert (await running.upload("a.png", b"1", type="bogus"))[0] == 400
    assert (await running.upload("a.png", b"1", subfolder=".."))[0] == 400
    assert [p.name for p in (running.base / "input").iterdir()] == ["a.png"]
    assert list((running.base / "temp").iterdir()) == []


@pytest.mark.parametrize("kind", ["", "bogus", "user", "../output"])
async def test_unknown_type(running, kind):
    status, answer, _ = await running.upload("a.png", b"1", type=kind)
    assert status == 400 and "type" in answer["error"]


@pytest.mark.parametrize("body", [b"", b"--x\r\n", b"garbage"])
async def test_malformed_forms(running, body):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert (await running.post("/upload/image", data=body, headers=headers))[0] == 400
    assert (await running.post("/upload/image", data=body, headers={"Content-Type": "multipart/form-data"}))[0] == 400
    assert (await running.post("/upload/image", json={}))[0] == 400


async def test_image_as_a_text_field(running):
    import aiohttp

    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("image", "text")
    assert (await running.post("/upload/image", data=form))[0] == 400


NO_NAMES = ["n" * 300, "\u00fc" * 200, "no-such-folder/x.png", "con\ntrol.png", "a..png"]
MEANS_ANOTHER = ["x.png [temp]", "x [output]", "a [input]", "blake3:00.png"]  # to /view and the loaders


@pytest.mark.parametrize("name", NO_NAMES + MEANS_ANOTHER)
async def test_names_that_cannot_be_used(running, name):
    status, answer, _ = await running.upload(name, b"1")
    assert status == 400 and list(answer) == ["error"]


@pytest.mark.parametrize(
    "name", [".hidden.png", "\u56fe\u7247 \u00e9.png", "\U0001f600.png", "sp ace.png", "no-extension"]
)
async def test_odd_names_survive_the_round_trip(running, name):
    from urllib.parse import quote

    assert (await running.upload(name, b"data"))[1]["name"] == name
    status, body, headers = await running.get(f"/view?type=input&filename={quote(name)}")
    assert status == 200 and body == b"data"
    if not name.isascii():
        assert headers["Content-Disposition"].endswith(f"filename*=UTF-8''{quote(name, safe='')}")


async def test_subfolder_is_answered_as_stored(running):
    assert (await running.upload("a.png", b"1", subfolder="a/../b/"))[1]["subfolder"] == "b"
    assert (running.base / "input" / "b" / "a.png").is_file()


async def test_same_name_at_once_never_mixes_contents(running):
    contents = [b"%d" % i * 1000 for i in range(8)]
    answers = await asyncio.gather(*(running.upload("dup.png", c) for c in contents))
    names = [a["name"] for _, a, _ in answers]
    assert len(set(names)) == 8
    for name, content in zip(names, contents, strict=True):
        assert (running.base / "input" / name).read_bytes() == content


async def test_limit_counts_all_parts(start, flags):
    flags(max_upload_size=0.01)
    running = await start()
    assert (await running.upload("a.png", b"x" * 20_000))[0] == 413
    assert (await running.upload("a.png", b"x" * 1000, note="y" * 15_000))[0] == 413
    assert (await running.upload("a.png", b"x" * 1000))[0] == 200
    assert list((running.base / "temp").iterdir()) == []


async def test_mask_keeps_the_originals_texts(running):
    await running.upload("o.png", png(prompt='{"1": {}}'), type="output")
    reference = json.dumps({"filename": "o.png"})
    mask = png((9, 9, 9, 77), size=(8, 6))
    status, answer, _ = await running.upload("m.png", mask, "/upload/mask", original_ref=reference)
    assert status == 200 and answer == {"name": "m.png", "subfolder": "", "type": "input"}
    with Image.open(running.base / "input" / "m.png") as image:
        assert image.mode == "RGBA" and image.getpixel((1, 1)) == (10, 20, 30, 77)
        assert image.text["prompt"] == '{"1": {}}'


@pytest.mark.parametrize(
    "reference, status",
    [
        (None, 400),
        ("not json", 400),
        ("[]", 400),
        ("{}", 400),
        ('{"filename": 5}', 400),
        ('{"filename": "o.png", "type": "bogus"}', 400),
        ('{"filename": "none.png"}', 404),
        ('{"filename": "text.png", "type": "input"}', 400),
    ],
)
async def test_bad_mask_references_write_nothing(running, reference, status):
    await running.upload("text.png", b"not an image")
    texts = {} if reference is None else {"original_ref": reference}
    assert (await running.upload("m.png", png(), "/upload/mask", **texts))[0] == status
    assert not (running.base / "input" / "m.png").exists()


# --- view -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["preview=webp", "preview=jpeg;90", "channel=rgb", "channel=a"])
@pytest.mark.parametrize("data", [b"", b"<html></html>", png()[:40]])
async def test_converting_what_is_no_image(running, query, data):
    await running.upload("x.png", data)
    status, answer, _ = await running.get(f"/view?type=input&filename=x.png&{query}")
    assert status == 415 and answer["error"].startswith("not an image: ") and str(running.base) not in answer["error"]


async def test_decompression_bomb(running):
    out = io.BytesIO()
    Image.new("1", (13_400, 13_400)).save(out, "PNG")
    await running.upload("bomb.png", out.getvalue())
    assert (await running.get("/view?type=input&filename=bomb.png&preview=webp"))[0] == 415


@pytest.mark.parametrize("query, form", [("preview=webp;80", "WEBP"), ("channel=rgb", "PNG")])
async def test_conversion_turns_pictures_upright(running, query, form):
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (16, 8), (255, 0, 0)).save(out, "JPEG", exif=exif)
    await running.upload("turned.jpg", out.getvalue())
    _, body, _ = await running.get(f"/view?type=input&filename=turned.jpg&{query}")
    with Image.open(io.BytesIO(body)) as image:
        assert image.size == (8, 16) and image.format == form


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "I;16", "CMYK", "F"])
async def test_every_mode_can_be_previewed(running, mode):
    out = io.BytesIO()
    form = "TIFF" if mode in ("CMYK", "F", "I;16") else "PNG"
    Image.new(mode, (4, 4)).save(out, form)
    await running.upload("m.img", out.getvalue())
    for query in ("preview=webp", "preview=jpeg", "channel=rgb", "channel=a"):
        status, body, _ = await running.get(f"/view?type=input&filename=m.img&{query}")
        assert status == 200
        with Image.open(io.BytesIO(body)) as image:
            assert image.size == (4, 4)


async def test_bad_quality_falls_back(running):
    await running.upload("x.png", png())
    for quality in ("abc", "-5", "0", "1000", ""):
        assert (await running.get(f"/view?type=input&filename=x.png&preview=jpeg;{quality}"))[0] == 200


async def test_range_beyond_the_file(running):
    await running.upload("x.bin", b"12345")
    assert (await running.get("/view?type=input&filename=x.bin", headers={"Range": "bytes=10-20"}))[0] == 416
    status, body, _ = await running.get("/view?type=input&filename=x.bin", headers={"Range": "bytes=1-2"})
    assert (status, body) == (206, b"23")


async def test_without_a_limit_everything_is_taken(start, flags):
    flags(max_upload_size=0)
    running = await start()
    data = b"x" * 3_000_000
    assert (await running.upload("a.bin", data))[0] == 200
    assert (await running.post("/userdata/a.bin", data=data))[0] == 200
    assert (running.base / "input" / "a.bin").read_bytes() == data
