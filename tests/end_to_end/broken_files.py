"""Checkpoints as they come from failed downloads and from people with bad intentions."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

HTML = b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>You need to log in</body></html>"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4265146304\n"

# File name -> a word that the error must have besides the name and the size.
CAUSES = {
    "page.safetensors": "HTML",
    "page.ckpt": "HTML",
    "pointer.safetensors": "git-lfs",
    "pointer.ckpt": "git-lfs",
    "empty.safetensors": "empty",
    "empty.ckpt": "empty",
    "cut.safetensors": "cut off",
    "cut_header.safetensors": "cut off",
    "random.safetensors": "safetensors",
    "huge_header.safetensors": "header",
    "no_json.safetensors": "header is damaged",
    "overlap.safetensors": "'b' overlaps",
    "shape.safetensors": "'a' of shape [64, 65]",
    "dtype.safetensors": "'F77'",
    "negative.safetensors": "'a' of shape [-64, 64]",
    "code.ckpt": "refused",
    "code_zip.pt": "refused",
    "unknown.safetensors": "some.strange.tensor",
}


class Payload:
    """Unpickling this writes a file: the proof that code ran."""

    def __init__(self, target: str):
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch '{self.target}'",))


def proof_file(folder: Path) -> Path:
    """What appears if the pickled code runs."""
    return folder / "code_ran"


def _safetensors(header: dict, data: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def write_broken_checkpoints(folder: Path) -> None:
    """Write one file for each entry of CAUSES."""
    folder.mkdir(parents=True, exist_ok=True)
    tensor = {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 64 * 64 * 4]}
    whole = _safetensors({"model.diffusion_model.input_blocks.0.0.weight": tensor}, bytes(64 * 64 * 4))
    code = pickle.dumps({"state_dict": Payload(str(proof_file(folder)))})
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("archive/data.pkl", code)
        archive.writestr("archive/version", "3\n")
    data = bytes(64 * 64 * 4)
    overlapping = {"a": tensor, "b": {**tensor, "data_offsets": [100, 64 * 64 * 4 + 100]}}
    contents = {
        "huge_header.safetensors": (2**62).to_bytes(8, "little") + b"{" + data,
        "no_json.safetensors": (30).to_bytes(8, "little") + b'{"a": what was this to be, '.ljust(30) + data,
        "overlap.safetensors": _safetensors(overlapping, bytes(64 * 64 * 4 + 100)),
        "shape.safetensors": _safetensors({"a": {**tensor, "shape": [64, 65]}}, data),
        "dtype.safetensors": _safetensors({"a": {**tensor, "dtype": "F77"}}, data),
        "negative.safetensors": _safetensors({"a": {**tensor, "shape": [-64, 64]}}, data),
        "page.safetensors": HTML,
        "page.ckpt": HTML,
        "pointer.safetensors": LFS_POINTER,
        "pointer.ckpt": LFS_POINTER,
        "empty.safetensors": b"",
        "empty.ckpt": b"",
        "cut.safetensors": whole[:-100],
        "cut_header.safetensors": whole[:40],
        "random.safetensors": bytes(range(256)) * 64,
        "code.ckpt": code,
        "code_zip.pt": zipped.getvalue(),
        "unknown.safetensors": _safetensors({"some.strange.tensor": tensor}, bytes(64 * 64 * 4)),
    }
    assert contents.keys() == CAUSES.keys()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
