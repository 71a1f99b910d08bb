"""Model folders, headers and previews; what packs bring (http-api.md sections 7 and 11)."""

import base64
import io
import json

import pytest
from PIL import Image


def safetensors(metadata, header_size: int | None = None) -> bytes:
    raw = json.dumps({"__metadata__": metadata}).encode()
    return (header_size or len(raw)).to_bytes(8, "little") + raw


def picture(form: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(out, form)
    return out.getvalue()


@pytest.fixture
def loras(base):
    folder = base / "models" / "loras"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        b"<html>",
        safetensors(None),
        safetensors([1]),
        safetensors({}, 1 << 40),
        b"\x05\0\0\0\0\0\0\0{{{{{",
    ],
)
async def test_headers_without_metadata(loras, running, content):
    (loras / "x.safetensors").write_bytes(content)
    assert (await running.get("/view_metadata/loras?filename=x.safetensors"))[0] == 404


async def test_preview_beside_or_inside_a_model(loras, running):
    covers = json.dumps([base64.b64encode(picture()).decode()])
    (loras / "inside.safetensors").write_bytes(safetensors({"ssmd_cover_images": covers}))
    (loras / "beside.safetensors").write_bytes(safetensors({}))
    (loras / "beside.preview.jpg").write_bytes(picture("JPEG"))
    (loras / "broken.safetensors").write_bytes(safetensors({"ssmd_cover_images": '["!"]'}))
    (loras / "damaged.safetensors").write_bytes(b"")
    (loras / "damaged.png").write_bytes(b"no image")
    for name, status in (("inside", 200), ("beside", 200), ("broken", 404), ("damaged", 404), ("none", 404)):
        got, body, _ = await running.get(f"/experiment/models/preview/loras/0/{name}.safetensors")
        assert got == status, name
        if status == 200:
            assert body[:4] == b"RIFF" and body[8:12] == b"WEBP"


async def test_sources_of_packs_are_not_listed(running):
    (running.base / "custom_nodes" / "pack.py").write_text("secret = 1")
    assert (await running.get("/models/custom_nodes"))[1] == []
    assert (await running.get("/experiment/models/custom_nodes"))[0] == 404
    assert (await running.get("/models/unet"))[0] == 404


async def test_contents_of_packs(running):
    pack = running.base / "custom_nodes" / "pack"
    for name, text in {
        "workflows/W.json": "{}",
        "examples/E.json": "{}",
        "locales/en/main.json": '{"a": {"x": 1, "y": 1}}',
        "locales/en/nodeDefs.json": '{"Text": {"display_name": "T"}}',
        "locales/de/main.json": "not json",
        "subgraphs/S.json": '{"s": 1}',
    }.items():
        (pack / name).parent.mkdir(parents=True, exist_ok=True)
        (pack / name).write_text(text)
    other = running.base / "custom_nodes" / "zz" / "locales" / "en"
    other.mkdir(parents=True)
    (other / "main.json").write_text('{"a": {"y": 2}}')
    off = running.base / "custom_nodes" / "off.disabled" / "workflows"
    off.mkdir(parents=True)
    (off / "X.json").write_text("{}")
    assert (await running.get("/workflow_templates"))[1] == {"pack": ["E", "W"]}
    assert (await running.get("/api/workflow_templates/pack/W.json"))[0] == 200
    assert (await running.get("/api/workflow_templates/off.disabled/X.json"))[0] == 404
    assert (await running.get("/i18n"))[1] == {
        "en": {"a": {"x": 1, "y": 2}, "nodeDefs": {"Text": {"display_name": "T"}}}
    }
    ((ident, entry),) = (await running.get("/global_subgraphs"))[1].items()
    assert entry == {"source": "custom_node", "name": "S", "info": {"node_pack": "custom_nodes.pack"}}
    assert (await running.get(f"/global_subgraphs/{ident}"))[1] == {**entry, "data": '{"s": 1}'}
    assert (await running.get("/global_subgraphs/none"))[1] is None
