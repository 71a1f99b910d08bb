"""Weight files: what is read, and what is said about files that are none."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

import comfy.utils
from comfy.weights import (
    MissingWeightsError,
    NotWeightsError,
    TruncatedWeightsError,
    UnsafeWeightsError,
)

TENSORS = {"a.weight": torch.arange(12.0).reshape(3, 4).half(), "b": torch.ones(5, dtype=torch.int64)}


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.safetensors"
    save_file(TENSORS, path, metadata={"author": "x"})
    return path


def same(sd: dict) -> bool:
    return sd.keys() == TENSORS.keys() and all(
        torch.equal(sd[k], v) and sd[k].dtype == v.dtype for k, v in TENSORS.items()
    )


def test_safetensors(good):
    sd, metadata = comfy.utils.load_torch_file(str(good), return_metadata=True)
    assert same(sd)
    assert metadata == {"author": "x"}


def test_safetensors_is_mapped_not_copied(good):
    with open("/proc/self/maps") as f:
        before = f.read().count(str(good))
    sd = comfy.utils.load_torch_file(good)
    with open("/proc/self/maps") as f:
        assert f.read().count(str(good)) > before
    assert same(sd)


def test_writing_to_a_mapped_tensor_leaves_the_file_alone(good):
    sd = comfy.utils.load_torch_file(good)
    sd["a.weight"].zero_()
    assert same(comfy.utils.load_torch_file(good))


@pytest.fixture
def no_room_to_map(monkeypatch):
    """As on a machine whose memory is smaller than the file."""
    import comfy.weights

    def refuse(path, **kwargs):
        raise RuntimeError(f"unable to mmap 45802674672 bytes from file <{path}>: Cannot allocate memory (12)")

    monkeypatch.setattr(comfy.weights.safetensors, "safe_open", refuse)


def test_a_file_larger_than_the_memory(tmp_path, no_room_to_map):
    tensors = {
        **TENSORS,
        "byte": torch.tensor([True, False, True]),  # what follows begins at an odd byte
        "half": torch.arange(3.0).bfloat16(),
        "scalar": torch.tensor(0.5),
        "none": torch.zeros(0, 3),
        "small": torch.ones(2, 2).to(torch.float8_e4m3fn),
    }
    path = tmp_path / "large.safetensors"
    save_file(tensors, path, metadata={"author": "x"})
    sd, metadata = comfy.utils.load_torch_file(path, return_metadata=True)
    assert metadata == {"author": "x"} and sd.keys() == tensors.keys()
    for name, value in tensors.items():
        assert sd[name].dtype == value.dtype and torch.equal(sd[name].float(), value.float())
    with open("/proc/self/maps") as f:
        assert str(path) in f.read()
    sd["a.weight"].zero_()
    again = comfy.utils.load_torch_file(path)
    assert torch.equal(again["a.weight"], TENSORS["a.weight"])


def test_a_file_that_cannot_be_mapped_at_all(good, no_room_to_map, monkeypatch):
    import comfy.weights

    def refuse(*args, **kwargs):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(comfy.weights.mmap, "mmap", refuse)
    with pytest.raises(comfy.weights.WeightsFileError, match=r"good\.safetensors.*not enough memory to map it"):
        comfy.utils.load_torch_file(good)


def test_without_memory_map(good, monkeypatch):
    import comfy.weights

    monkeypatch.setattr(comfy.weights.args, "disable_mmap", True)
    sd, metadata = comfy.utils.load_torch_file(good, return_metadata=True)
    assert same(sd)
    assert metadata == {"author": "x"}


def test_safetensors_under_another_name(good):
    other = good.rename(good.with_suffix(".ckpt"))
    assert same(comfy.utils.load_torch_file(other))


@pytest.mark.parametrize("contents", [TENSORS, {"state_dict": TENSORS, "epoch": 3}, {"model": TENSORS}])
@pytest.mark.parametrize("new_format", [True, False])
def test_pickles(tmp_path, contents, new_format):
    path = tmp_path / "model.ckpt"
    torch.save(contents, path, _use_new_zipfile_serialization=new_format)
    assert same(comfy.utils.load_torch_file(path))


def test_numbers_of_training_programs_are_allowed(tmp_path):
    import numpy as np

    path = tmp_path / "model.ckpt"
    torch.save({"state_dict": TENSORS, "lr": np.float64(0.5)}, path)
    assert same(comfy.utils.load_torch_file(path))


class Evil:
    def __reduce__(self):
        return (print, ("this must never run",))


@pytest.mark.parametrize("name", ["evil.ckpt", "evil.pt", "evil.bin"])
def test_pickle_with_code_is_refused(tmp_path, capsys, name):
    torch.save({**TENSORS, "x": Evil()}, tmp_path / name)
    with pytest.raises(UnsafeWeightsError, match="would run code") as caught:
        comfy.utils.load_torch_file(tmp_path / name)
    assert "never" not in capsys.readouterr().out
    assert "print" in caught.value.cause


def header_of(tensors: dict) -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header


ENTRY = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
BROKEN = {
    "empty.safetensors": (b"", NotWeightsError, "empty"),
    "page.safetensors": (b"<!DOCTYPE html><html><body>Sign in</body></html>", NotWeightsError, "HTML"),
    "page.ckpt": (b"\n  <html><head></head></html>", NotWeightsError, "HTML"),
    "pointer.safetensors": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4265146304\n",
        NotWeightsError,
        "git-lfs",
    ),
    "answer.safetensors": (b'{"error": "access denied"}', NotWeightsError, "JSON"),
    "cut_header.safetensors": (header_of(ENTRY)[:30], TruncatedWeightsError, "cut off"),
    "short.safetensors": (b"\x10\0\0", TruncatedWeightsError, "cut off"),
    "cut_data.safetensors": (header_of(ENTRY) + b"\0" * 7, TruncatedWeightsError, "announces"),
    "noise.safetensors": (b"\xff" * 100, NotWeightsError, "safetensors header"),
    "text.safetensors": (b"hello, these are no weights at all", NotWeightsError, "safetensors header"),
    "bad_json.safetensors": (struct.pack("<Q", 9) + b"{nonsense", NotWeightsError, "damaged"),
    "bad_entry.safetensors": (header_of({"w": 3}), NotWeightsError, "damaged"),
    "bad_dtype.safetensors": (
        header_of({"w": {**ENTRY["w"], "dtype": "F33"}}) + b"\0" * 16,
        NotWeightsError,
        "'F33'",
    ),
    "zeros.safetensors": (b"\0" * 4096, NotWeightsError, "zeros"),
    "zeros.ckpt": (b"\0" * 4096, NotWeightsError, "zeros"),
    "gguf.safetensors": (b"GGUF\x03\0\0\0", NotWeightsError, "GGUF"),
    "text.ckpt": (b"hello, these are no weights at all", NotWeightsError, "neither"),
    "zip.safetensors": (b"PK\x03\x04" + b"\0" * 60, NotWeightsError, "wrong extension"),
    "half.ckpt": (b"PK\x03\x04" + b"\0" * 60, TruncatedWeightsError, "cut off"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_explained(tmp_path, name):
    contents, kind, cause = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(contents)
    with pytest.raises(kind) as caught:
        comfy.utils.load_torch_file(str(path))
    assert cause in caught.value.cause
    assert name in str(caught.value) and str(tmp_path) not in str(caught.value) and caught.value.path == str(path)
    assert f"({len(contents):,} bytes)" in str(caught.value)


def test_cut_off_pickle(tmp_path):
    path = tmp_path / "model.ckpt"
    torch.save({"w": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(TruncatedWeightsError, match="cut off"):
        comfy.utils.load_torch_file(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(MissingWeightsError, match="no such file"):
        comfy.utils.load_torch_file(str(tmp_path / "nothing.safetensors"))
    with pytest.raises(FileNotFoundError, match="folder"):
        comfy.utils.load_torch_file(str(tmp_path))


def test_pickle_without_named_tensors(tmp_path):
    path = tmp_path / "list.pt"
    torch.save([torch.zeros(1)], path)
    with pytest.raises(NotWeightsError, match="holds a list"):
        comfy.utils.load_torch_file(path)


def test_save_and_header(tmp_path):
    path = str(tmp_path / "out.safetensors")
    comfy.utils.save_torch_file({"t": torch.ones(4, 6).t()}, path, metadata={"k": "v"})
    assert torch.equal(comfy.utils.load_torch_file(path)["t"], torch.ones(6, 4))
    assert json.loads(comfy.utils.safetensors_header(path))["__metadata__"] == {"k": "v"}
    assert comfy.utils.safetensors_header(path, max_size=3) is None


@pytest.mark.parametrize("length", [0x80, 0x4B50])
def test_length_of_a_header_may_look_like_a_pickle(tmp_path, length):
    """One header in 32 has a length whose first byte is a pickle's (0x80); some begin as a zip file does ("PK")."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}).encode().ljust(length)
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + header + struct.pack("<3f", 1, 2, 3))
    assert comfy.utils.load_torch_file(str(path))["x"].tolist() == [1, 2, 3]
