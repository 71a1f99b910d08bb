"""Reading and writing image files: formats, errors, metadata, names."""

from __future__ import annotations

import io
import json
import struct
import threading
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

import folder_paths
import nodes
from comfy.cli_args import args
from nodes import image_save, png16
from nodes.image_decode import ImageFileError, decode


def save(images, prefix="p", **kwargs):
    return nodes.SaveImage().save_images(images, prefix, **kwargs)["ui"]["images"]


def png_bytes(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG file around filtered rows."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def filter_rows(pixels: np.ndarray, kinds: list[int]) -> bytes:
    """PNG's row filters, straight from the specification (section 9.2), one byte at a time."""
    height, width, channels = pixels.shape
    raw = pixels.astype(">u2").tobytes()
    stride, step = width * channels * 2, channels * 2
    out = bytearray()
    for y in range(height):
        row = raw[y * stride : (y + 1) * stride]
        above = raw[(y - 1) * stride : y * stride] if y else bytes(stride)
        out.append(kinds[y])
        for i, value in enumerate(row):
            a = row[i - step] if i >= step else 0
            b = above[i]
            c = above[i - step] if i >= step else 0
            p = a + b - c
            nearest = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            out.append((value - (0, a, b, (a + b) // 2, nearest)[kinds[y]]) & 255)
    return bytes(out)


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_16_bit_png_keeps_all_its_bits(tmp_path, colour, channels):
    rng = np.random.default_rng(colour)
    pixels = rng.integers(0, 65536, (10, 7, channels), dtype=np.uint16)
    kinds = [0, 1, 2, 3, 4, 4, 3, 2, 1, 0]
    path = tmp_path / "deep.png"
    path.write_bytes(png_bytes(7, 10, 16, colour, filter_rows(pixels, kinds)))
    assert np.array_equal(png16.read(str(path)), pixels)
    decoded = decode(str(path))
    colours = pixels[..., :3] if channels > 2 else np.repeat(pixels[..., :1], 3, axis=-1)
    assert torch.equal(decoded.images[0], torch.from_numpy(colours.astype(np.float32) / 65535))
    assert decoded.has_alpha is (channels in (2, 4))


def test_other_png_files_are_left_to_pillow(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    Image.new("I;16", (4, 4)).save(tmp_path / "b.png")
    assert png16.read(str(tmp_path / "a.png")) is None
    assert png16.read(str(tmp_path / "b.png")) is None


def test_a_16_bit_png_that_is_cut_off(tmp_path):
    path = tmp_path / "cut.png"
    path.write_bytes(png_bytes(9, 9, 16, 2, filter_rows(np.zeros((4, 9, 3), np.uint16), [0] * 4)))
    with pytest.raises(ImageFileError, match=r"cut\.png.*cut off"):
        decode(str(path))


@pytest.mark.parametrize(
    ("mode", "colour", "value"),
    [("RGB", (150, 0, 255), 150 / 255), ("L", 100, 100 * 256 / 65535), ("1", 1, 255 * 256 / 65535)],
)
def test_exact_values(tmp_path, mode, colour, value):
    Image.new(mode, (40, 30), colour).save(tmp_path / "x.png")
    decoded = decode(str(tmp_path / "x.png"))
    assert decoded.images.shape == (1, 30, 40, 3) and decoded.images.dtype == torch.float32
    assert decoded.images[0, 0, 0, 0].item() == pytest.approx(value, abs=1e-7)
    assert torch.equal(decoded.mask, torch.zeros(1, 64, 64)) and not decoded.has_alpha


def test_alpha_becomes_an_inverted_mask(tmp_path):
    Image.new("RGBA", (8, 6), (1, 2, 3, 64)).save(tmp_path / "rgba.png")
    decoded = decode(str(tmp_path / "rgba.png"))
    assert decoded.mask.shape == (1, 6, 8)
    assert decoded.mask[0, 0, 0].item() == pytest.approx(1 - 64 / 255, abs=1e-6)


def test_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (16, 8)).save(tmp_path / "r.jpg", exif=exif)
    assert decode(str(tmp_path / "r.jpg")).images.shape == (1, 16, 8, 3)


def test_float_tiff_keeps_its_values(tmp_path):
    values = np.array([[0.0, 0.25], [0.5, 2.0]], np.float32)
    Image.fromarray(values).save(tmp_path / "f.tiff")
    assert decode(str(tmp_path / "f.tiff")).images[0, :, :, 1].tolist() == [[0.0, 0.25], [0.5, 1.0]]


@pytest.mark.parametrize("frames", [2, 4])
@pytest.mark.parametrize("suffix", ["gif", "webp", "png"])
def test_animations_are_batches(tmp_path, suffix, frames):
    colours = [(60 * i, 0, 255 - 60 * i) for i in range(frames)]
    images = [Image.new("RGB", (32, 32), colour) for colour in colours]
    images[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=images[1:], duration=100)
    decoded = decode(str(tmp_path / f"a.{suffix}"))
    assert decoded.images.shape == (frames, 32, 32, 3)
    assert decoded.mask.shape[0] == frames


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.png", b"", "empty"),
        ("page.png", b"<!DOCTYPE html><html></html>", "web page"),
        ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        ("noise.jpg", bytes(range(256)), "256 bytes"),
    ],
)
def test_files_that_are_no_images(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageFileError, match=message) as caught:
        decode(str(tmp_path / name))
    assert name in str(caught.value) and str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif"])
def test_cut_off_files_are_errors(tmp_path, suffix):
    rng = np.random.default_rng(0)
    path = tmp_path / f"half.{suffix}"
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ImageFileError, match=path.name):
        decode(str(path))


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    Image.new("1", (100, 100)).save(tmp_path / "bomb.png")
    with pytest.raises(ImageFileError, match="too many pixels"):
        decode(str(tmp_path / "bomb.png"))


# --- LoadImage --------------------------------------------------------------------------------------


def test_load_image_fingerprint_follows_the_content(folders):
    import os

    path = folders / "input" / "a.png"
    Image.new("RGB", (4, 4), (255, 0, 0)).save(path)
    stamp = path.stat()
    before = nodes.LoadImage.IS_CHANGED("a.png")
    Image.new("RGB", (4, 4), (0, 255, 0)).save(path)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert nodes.LoadImage.IS_CHANGED("a.png") != before


@pytest.mark.parametrize("kind", ["CLASSIC", "LRU", "RAM_PRESSURE"])
@pytest.mark.parametrize("loader", ["LoadImage", "LoadImageMask", "LoadImageOutput"])
def test_a_run_after_a_file_has_changed_has_its_new_pixels(folders, loader, kind):
    """The new file has the name, the size and the time of the old one; a file that stays the same is not read again."""
    import os

    from comfy_execution.caching import CacheType
    from tests.engine.engine_kit import FakeServer, Runner, n

    path = folders / ("output" if loader == "LoadImageOutput" else "input") / "a.png"
    extra = {"channel": "red"} if loader == "LoadImageMask" else {}
    shown = {"image": "a.png [output]" if loader == "LoadImageOutput" else "a.png", **extra}
    prompt = {"l": n(loader, **shown), "s": n("SaveImage", images=("l", 0), filename_prefix="seen")}
    if loader == "LoadImageMask":
        prompt |= {"m": n("MaskToImage", mask=("l", 0)), "s": n("SaveImage", images=("m", 0), filename_prefix="seen")}
    runner = Runner(FakeServer(), CacheType[kind], lru=10)
    seen, stamp = [], None
    for colour in ((255, 0, 0), (255, 0, 0), (0, 255, 0)):
        Image.new("RGB", (4, 4), colour).save(path, compress_level=0)
        stamp = stamp or path.stat()
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (stamp.st_size, stamp.st_mtime_ns)
        (item,) = runner.good(prompt)["s"]["images"]
        with Image.open(folders / "output" / item["filename"]) as image:
            seen.append((item["filename"], image.convert("RGB").getpixel((0, 0))[0]))
    assert [red for _, red in seen] == [255, 255, 0]
    assert seen[0] == seen[1] and seen[2][0] != seen[0][0]


@pytest.mark.parametrize(
    "name", ["missing.png", "../secret.png", "/etc/passwd", "a.png [output]", "", ".", "a\0b.png", None, 5]
)
def test_load_image_refuses(folders, name):
    (folders / "secret.png").write_bytes(b"x")
    Image.new("RGB", (4, 4)).save(folders / "input" / "a.png")
    for cls in (nodes.LoadImage, nodes.LoadImageMask):
        assert cls.VALIDATE_INPUTS(name) == f"Invalid image file: {name}"


def test_load_image_accepts(folders):
    Image.new("RGB", (4, 4)).save(folders / "input" / "a.png")
    Image.new("RGB", (5, 4)).save(folders / "temp" / "b.png")
    assert nodes.LoadImage.VALIDATE_INPUTS("a.png") is True
    assert nodes.LoadImage.VALIDATE_INPUTS("b.png [temp]") is True
    assert nodes.LoadImage().load_image("b.png [temp]")[0].shape == (1, 4, 5, 3)


def test_load_image_lists_the_folder_itself(folders):
    for name in ("b.png", "a.exr", "c.svg", "d.txt", "e.mp4", "sub/f.png"):
        path = folders / "input" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    choices = nodes.LoadImage.INPUT_TYPES()["required"]["image"][0]
    assert {"b.png", "c.svg"} <= set(choices) and choices == sorted(choices)
    assert not {"d.txt", "e.mp4", "sub/f.png"} & set(choices)


# --- SaveImage --------------------------------------------------------------------------------------


def test_metadata(folders):
    prompt = {"1": {"class_type": "X", "inputs": {"text": "é 日本", "seed": 2**64 - 1}}}
    extra = {"workflow": {"id": "w", "n": [1.5]}, "other": "x"}
    (item,) = save(torch.zeros(1, 4, 4, 3), prompt=prompt, extra_pnginfo=extra)
    data = (folders / "output" / item["filename"]).read_bytes()
    assert data.isascii() or b"\xc3" not in data[:200]
    with Image.open(folders / "output" / item["filename"]) as image:
        assert json.loads(image.text["prompt"]) == prompt
        assert json.loads(image.text["workflow"]) == extra["workflow"]
        assert json.loads(image.text["other"]) == "x"
        assert list(image.text) == ["prompt", "workflow", "other"]


@pytest.mark.parametrize("extra", [None, {}, [], "text"])
def test_metadata_without_extra_information(folders, extra):
    (item,) = save(torch.zeros(1, 4, 4, 3), prompt={}, extra_pnginfo=extra)
    with Image.open(folders / "output" / item["filename"]) as image:
        assert image.text == {"prompt": "{}"}


def test_metadata_is_valid_json_whatever_a_fingerprint_was(folders):
    prompt = {"1": {"is_changed": [float("nan")], "inputs": {"a": float("inf"), "b": {1, 2}}}}
    (item,) = save(torch.zeros(1, 4, 4, 3), prompt=prompt)

    def refuse(name):
        raise AssertionError(name)

    with Image.open(folders / "output" / item["filename"]) as image:
        read = json.loads(image.text["prompt"], parse_constant=refuse)
    assert read == {"1": {"is_changed": [None], "inputs": {"a": None, "b": "{1, 2}"}}}


def test_metadata_can_be_switched_off(folders, monkeypatch):
    monkeypatch.setattr(args, "disable_metadata", True)
    (item,) = save(torch.zeros(1, 4, 4, 3), prompt={"1": {}}, extra_pnginfo={"workflow": {}})
    with Image.open(folders / "output" / item["filename"]) as image:
        assert image.text == {}


@pytest.mark.parametrize("prefix", ["../x", "/etc/x", "a/../../x", "sub\0x"])
def test_a_prefix_cannot_leave_the_folder(folders, prefix):
    with pytest.raises((folder_paths.PathOutsideFolder, ValueError)):
        save(torch.zeros(1, 4, 4, 3), prefix)
    assert not [path for path in folders.rglob("*") if path.is_file()]


@pytest.mark.parametrize("prefix", ["x" * 300, "sub/" + "é" * 120, "y" * 300 + "/x"])
def test_a_prefix_that_is_too_long_is_named_as_such(folders, prefix):
    with pytest.raises(ValueError, match="prefix is too long") as error:
        save(torch.zeros(1, 4, 4, 3), prefix)
    assert str(folders) not in str(error.value)
    assert save(torch.zeros(1, 4, 4, 3), "x" * 220)[0]["filename"] == "x" * 220 + "_00001_.png"


def test_names(folders):
    images = torch.zeros(2, 6, 9, 3)
    assert save(images, "sub/a") == [
        {"filename": f"a_0000{i}_.png", "subfolder": "sub", "type": "output"} for i in (1, 2)
    ]
    assert save(images[:1], "sub/a")[0]["filename"] == "a_00003_.png"
    assert save(images[:1], "%width%x%height%")[0]["filename"] == "9x6_00001_.png"
    assert [i["filename"] for i in save(images, "b%batch_num%")] == ["b0_00001_.png", "b1_00002_.png"]
    assert save(images[:1], "%date:yyyy%")[0]["filename"] == "%date:yyyy%_00001_.png"


def test_batch_numbers_never_overwrite(folders):
    """The counter cannot see files of a prefix that holds %batch_num%, so names are taken one by one."""
    first = save(torch.zeros(1, 4, 4, 3), "b%batch_num%")
    second = save(torch.ones(1, 4, 4, 3), "b%batch_num%")
    assert first[0]["filename"] != second[0]["filename"]


def test_two_writers_never_share_a_name(folders):
    results, barrier = [], threading.Barrier(4)

    def write(value: float):
        barrier.wait()
        results.extend((item["filename"], value) for item in save(torch.full((5, 4, 4, 3), value), "same"))

    threads = [threading.Thread(target=write, args=(i / 4,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({name for name, _ in results}) == 20
    for name, value in results:
        with Image.open(folders / "output" / name) as image:
            assert image.getpixel((0, 0))[0] == int(value * 255)


class FullDisk(io.BytesIO):
    def write(self, data):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("link_works", [True, False])
def test_a_failed_write_leaves_no_file(folders, monkeypatch, link_works):
    def no_links(*_):
        raise OSError(95, "Operation not supported")

    def full(*_):
        raise OSError(28, "No space left on device")

    files = image_save.OutputFiles("p", str(folders / "output"))
    if link_works:
        monkeypatch.setattr(image_save, "open", lambda *_: FullDisk(), raising=False)
    else:
        monkeypatch.setattr(image_save.os, "link", no_links)
        monkeypatch.setattr(image_save.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        files.write(b"x", "png")
    assert not list((folders / "output").iterdir())


def test_where_there_are_no_links(folders, monkeypatch):
    def no_links(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(image_save.os, "link", no_links)
    files = image_save.OutputFiles("p", str(folders / "output"))
    (folders / "output" / "p_00001_.png").write_bytes(b"taken")
    assert files.write(b"new", "png") == "p_00002_.png"
    assert {path.name: path.read_bytes() for path in (folders / "output").iterdir()} == {
        "p_00001_.png": b"taken",
        "p_00002_.png": b"new",
    }


def test_pixels_are_cut_off_not_rounded(folders):
    image = torch.tensor([0.999, 0.5, -1.0, 2.0, float("nan")]).reshape(1, 1, 5, 1).repeat(1, 1, 1, 3)
    (item,) = save(image)
    with Image.open(folders / "output" / item["filename"]) as saved:
        assert [saved.getpixel((x, 0))[0] for x in range(5)] == [254, 127, 0, 255, 0]


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_channels(folders, channels, mode):
    (item,) = save(torch.zeros(1, 4, 4, channels))
    with Image.open(folders / "output" / item["filename"]) as image:
        assert image.mode == mode


def test_preview_is_temporary(folders):
    items = nodes.PreviewImage().save_images(torch.zeros(2, 4, 4, 3))["ui"]["images"]
    assert [item["type"] for item in items] == ["temp", "temp"]
    assert all((folders / "temp" / item["filename"]).is_file() for item in items)


# --- latents ----------------------------------------------------------------------------------------


def test_latents_survive_a_file(folders):
    samples = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    result = nodes.SaveLatent().save({"samples": samples}, "latents/x", {"1": {}}, {"workflow": {"id": 1}})
    (item,) = result["ui"]["latents"]
    path = folders / "output" / "latents" / item["filename"]
    assert item == {"filename": "x_00001_.latent", "subfolder": "latents", "type": "output"}
    (loaded,) = nodes.LoadLatent().load(f"latents/{item['filename']} [output]")
    assert torch.equal(loaded["samples"], samples)
    (size,) = struct.unpack("<Q", path.read_bytes()[:8])
    head = json.loads(path.read_bytes()[8 : 8 + size])
    assert json.loads(head["__metadata__"]["workflow"]) == {"id": 1}


def test_latent_files_that_are_none(folders):
    (folders / "input" / "a.latent").write_bytes(b"<html>")
    with pytest.raises(ValueError, match=r"a\.latent"):
        nodes.LoadLatent().load("a.latent")
    assert nodes.LoadLatent.VALIDATE_INPUTS("../x.latent") == "Invalid latent file: ../x.latent"
