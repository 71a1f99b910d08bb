"""Weight files: reading, writing, and saying what is wrong with one.

A safetensors file is memory-mapped: its tensors are views of the file, nothing is copied, and pages come into
memory when they are used. A pickle (.ckpt, .pt, .bin) is only ever opened with `weights_only=True`; one that
asks for code is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import pickle
import re
import struct
import sys
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch

import folder_paths
from comfy import ledger
from comfy.cli_args import args
from comfy.devices import is_oom
from comfy.quantized_files import with_markers

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
SAFETENSORS_EXTENSIONS = (".safetensors", ".sft")
_LENGTH_BYTES = 8


class WeightsFileError(ValueError):
    """A weight file cannot be used. `path`, `size` (bytes, None if unknown) and `cause` say why.

    The message names the file as the user knows it, below its model folder: it goes to clients, who need not learn
    where on this machine that folder is.
    """

    def __init__(self, path: str, size: int | None, cause: str):
        self.path = path
        self.size = size
        self.cause = cause
        described = "" if size is None else f" ({size:,} bytes)"
        super().__init__(f"Cannot load {_shown(path)}{described}: {cause}")


class MissingWeightsError(WeightsFileError, FileNotFoundError):
    """There is no such file."""


class TruncatedWeightsError(WeightsFileError):
    """The file ends before its contents do."""


class NotWeightsError(WeightsFileError):
    """The file holds something else: a web page, a pointer of git-lfs, text, nothing."""


class UnsafeWeightsError(WeightsFileError):
    """The file is a pickle that would run code."""


# What reading shapes ends in where a tensor is missing, or has another number of dimensions.
_MISFITS = (ValueError, LookupError, TypeError, ArithmeticError, StopIteration)


@contextlib.contextmanager
def refusing(path: str, error: type[WeightsFileError]) -> Iterator[None]:
    """What is built from a file's tensors inside: where they do not fit together, `error` naming the file is raised.
    Errors that name a file already, and those of the machine (no memory left), pass."""
    try:
        yield
    except WeightsFileError:
        raise
    except _MISFITS as e:
        raise error(path, _size(path), f"its tensors do not fit: {_misfit(e)}") from e


def _misfit(error: Exception) -> str:
    if isinstance(error, KeyError) and error.args:
        # Its text is the name alone, in quotes; some are sentences.
        name = str(error.args[0])
        return name if " " in name else f"the file lacks {name}"
    if type(error).__module__ == "builtins":
        return f"a part is missing or of another shape than such models have ({error!r})"
    return str(error)


# A node runs in inference mode, but weights outlive it: only ordinary tensors can be parameters and be patched.
@torch.inference_mode(False)
def load_torch_file(
    ckpt: str | os.PathLike,
    safe_load: bool = False,
    device: torch.device | None = None,
    return_metadata: bool = False,
) -> Any:
    """The named tensors of a weight file; with `return_metadata` also the file's metadata (dict or None).

    safe_load changes nothing: loading is always safe. A pickle's `state_dict` entry, or the only entry when
    it is a mapping, is taken for the tensors.

    Raises WeightsFileError (see its subclasses), naming file, size and likely cause.
    """
    path = os.fspath(ckpt)
    device = torch.device("cpu") if device is None else torch.device(device)
    _require_file(path)
    metadata = None
    if path.lower().endswith(SAFETENSORS_EXTENSIONS) or _looks_like_safetensors(path):
        sd, metadata = _load_safetensors(path, device)
        sd = with_markers(sd, metadata)
    else:
        sd = _tensors_of(path, load_pickle(path, device))
    _note_read(path, sd)
    return (sd, metadata) if return_metadata else sd


def _note_read(path: str, sd: Any) -> None:
    """For the ledger: that a file was read, and, on its tensors, which one."""
    ledger.files.disk_reads += 1
    ledger.files.disk_bytes += _size(path) or 0
    if isinstance(sd, dict):
        for tensor in sd.values():
            if isinstance(tensor, torch.Tensor):
                tensor.weights_file = path


def source_of(tensors: Iterable[torch.Tensor]) -> str | None:
    """The file that tensors were read from; None if none of them knows."""
    return next((path for tensor in tensors if (path := getattr(tensor, "weights_file", None))), None)


def load_pickle(path: str, device: torch.device | str = "cpu") -> Any:
    """Whatever a torch file holds, of tensors, containers and plain values. Raises WeightsFileError."""
    _require_file(path)
    _refuse_other_content(path)
    mmap = bool(args.mmap_torch_files) and zipfile.is_zipfile(path)
    try:
        with torch.serialization.safe_globals(_harmless_globals()):
            return torch.load(path, map_location=device, weights_only=True, mmap=mmap or None)
    except pickle.UnpicklingError as e:
        raise UnsafeWeightsError(path, _size(path), _pickle_cause(e)) from e
    except (EOFError, zipfile.BadZipFile) as e:
        raise TruncatedWeightsError(path, _size(path), _TRUNCATED) from e
    except (RuntimeError, ValueError, KeyError, UnicodeDecodeError, AttributeError, IndexError) as e:
        if is_oom(e):
            raise
        if _starts_with(path, b"PK"):
            raise TruncatedWeightsError(path, _size(path), _TRUNCATED) from e
        raise NotWeightsError(path, _size(path), "it is neither a safetensors nor a torch file") from e


def save_torch_file(sd: dict[str, torch.Tensor], ckpt: str, metadata: dict[str, str] | None = None) -> None:
    """Write named tensors as safetensors; metadata values are strings."""
    safetensors.torch.save_file({k: v.contiguous() for k, v in sd.items()}, ckpt, metadata=metadata)


def safetensors_header(path: str, max_size: int = MAX_HEADER_BYTES) -> bytes | None:
    """The JSON header of a safetensors file, None when it is longer than `max_size` or not there."""
    with open(path, "rb") as f:
        head = f.read(_LENGTH_BYTES)
        if len(head) < _LENGTH_BYTES:
            return None
        length = struct.unpack("<Q", head)[0]
        if length > max_size:
            return None
        header = f.read(length)
    return header if len(header) == length else None


# --- safetensors


def _load_safetensors(path: str, device: torch.device) -> tuple[dict[str, torch.Tensor], dict | None]:
    _check_safetensors(path)
    try:
        if args.disable_mmap:
            with open(path, "rb") as f:
                contents = f.read()
            sd = safetensors.torch.load(contents)
            if device.type != "cpu":
                sd = {k: v.to(device) for k, v in sd.items()}
            return sd, json.loads(safetensors_header(path) or b"{}").get("__metadata__")
        with safetensors.safe_open(path, framework="pt", device=str(device)) as f:
            return {key: f.get_tensor(key) for key in f.keys()}, f.metadata()  # noqa: SIM118
    except safetensors.SafetensorError as e:
        raise NotWeightsError(path, _size(path), f"its safetensors header is damaged ({e})") from e
    except RuntimeError as e:
        if "mmap" not in str(e) or not hasattr(mmap, "MAP_PRIVATE"):
            raise
        return _map_unreserved(path, device)


def _map_unreserved(path: str, device: torch.device) -> tuple[dict[str, torch.Tensor], dict | None]:
    """As the library does it, but without setting memory aside for pages that may be written to: it is refused for
    files larger than the machine's memory, though none of it will be needed. Raises WeightsFileError if that is
    refused, too."""
    header = safetensors_header(path) or b"{}"
    flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
    try:
        with open(path, "rb") as f:
            pages = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError) as e:
        raise WeightsFileError(path, _size(path), f"the machine has not enough memory to map it ({e})") from e
    contents = torch.frombuffer(pages, dtype=torch.uint8)[_LENGTH_BYTES + len(header) :]
    entries = json.loads(header)
    metadata = entries.pop("__metadata__", None)
    tensors = {}
    for name, entry in entries.items():
        start, end = entry["data_offsets"]
        stored, dtype = contents[start:end], _DTYPES[entry["dtype"]]
        if stored.data_ptr() % dtype.itemsize:
            stored = stored.clone()
        tensors[name] = stored.view(dtype).view(entry["shape"]).to(device)
    return tensors, metadata


_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def _check_safetensors(path: str) -> None:
    """Raise the error that fits when the header cannot be right; the library itself only says that it is
    not."""
    size = _size(path)
    _refuse_other_content(path)
    with open(path, "rb") as f:
        head = f.read(_LENGTH_BYTES)
        start = f.read(1)
    # A header's length may begin with the same bytes as a pickle: what follows it decides.
    if start != b"{" and (head[:2] == b"PK" or head[:1] == b"\x80"):
        cause = "it is a torch pickle with the wrong extension (.ckpt or .pt would be right)"
        raise NotWeightsError(path, size, cause)
    if len(head) < _LENGTH_BYTES:
        raise TruncatedWeightsError(path, size, _TRUNCATED)
    length = struct.unpack("<Q", head)[0]
    if length > MAX_HEADER_BYTES or (start and start != b"{"):
        raise NotWeightsError(path, size, "it does not start with a safetensors header")
    header = safetensors_header(path)
    if header is None:
        raise TruncatedWeightsError(path, size, _TRUNCATED)
    try:
        entries = json.loads(header)
        tensors = {k: e for k, e in entries.items() if k != "__metadata__"}
        end = max((e["data_offsets"][1] for e in tensors.values()), default=0)
        needed = _LENGTH_BYTES + length + int(end)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as e:
        raise NotWeightsError(path, size, f"its safetensors header is damaged ({e})") from e
    _check_tensors(path, size, tensors)
    if size < needed:
        cause = f"it is cut off: its header announces {needed:,} bytes. Download or copy it again"
        raise TruncatedWeightsError(path, size, cause)


def _check_tensors(path: str, size: int | None, tensors: dict[str, Any]) -> None:
    """Raise NotWeightsError naming the tensor, when what a header says of one cannot be; see the format's description
    at https://huggingface.co/docs/safetensors."""
    taken = 0
    try:
        for name, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            start, end = entry["data_offsets"]
            bits = _DTYPE_BITS.get(entry["dtype"])
            where = f"its safetensors header is damaged: tensor {name!r}"
            if bits is None:
                raise NotWeightsError(path, size, f"tensor {name!r} is of a kind not known here: {entry['dtype']!r}")
            if start < taken:
                raise NotWeightsError(path, size, f"{where} overlaps the one before it")
            needed = math.prod(entry["shape"]) * bits // 8
            if needed != end - start:
                cause = f"{where} of shape {entry['shape']} needs {needed:,} bytes and has {end - start:,}"
                raise NotWeightsError(path, size, cause)
            taken = end
    except (TypeError, ValueError, KeyError) as e:
        if isinstance(e, WeightsFileError):
            raise
        raise NotWeightsError(path, size, f"its safetensors header is damaged ({e})") from e


_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def _looks_like_safetensors(path: str) -> bool:
    """For files with another extension: the eight bytes of the length, then JSON."""
    with open(path, "rb") as f:
        head = f.read(_LENGTH_BYTES + 2)
    return (
        len(head) == _LENGTH_BYTES + 2
        and struct.unpack("<Q", head[:_LENGTH_BYTES])[0] <= MAX_HEADER_BYTES
        and head[_LENGTH_BYTES:] == b'{"'
    )


# --- pickles


def _tensors_of(path: str, contents: Any) -> dict[str, Any]:
    if not isinstance(contents, dict):
        cause = f"it holds a {type(contents).__name__}, no named tensors"
        raise NotWeightsError(path, _size(path), cause)
    if isinstance(contents.get("state_dict"), dict):
        return contents["state_dict"]
    if len(contents) == 1:
        (only,) = contents.values()
        if isinstance(only, dict):
            return only
    return contents


class _InertModelCheckpoint:
    """Takes the place of a training callback found in old .ckpt files; holds data only."""


# The name under which such files ask for it.
_InertModelCheckpoint.__module__ = "pytorch_lightning.callbacks.model_checkpoint"
_InertModelCheckpoint.__qualname__ = _InertModelCheckpoint.__name__ = "ModelCheckpoint"


def _harmless_globals() -> list[Any]:
    """What the pickles of training programs contain besides tensors: numpy numbers."""
    from _codecs import encode

    return [np.dtype, np.dtypes.Float64DType, np._core.multiarray.scalar, encode, _InertModelCheckpoint]


def _pickle_cause(error: pickle.UnpicklingError) -> str:
    text = str(error)
    if "Unsupported" not in text and "unsupported" not in text:
        return f"its pickle is damaged ({text.splitlines()[0]})"
    name = re.search(r"GLOBAL (\S+)", text)
    wanted = f" (it asks for {name.group(1)})" if name else ""
    return (
        f"it is a pickle that would run code{wanted}; it was refused. Convert it to safetensors if you trust its source"
    )


# --- what else a file may be

_TRUNCATED = "it is cut off, an interrupted download or copy. Download or copy it again"


def _require_file(path: str) -> None:
    if not os.path.isfile(path):
        cause = "it is a folder, no file" if os.path.isdir(path) else "there is no such file"
        raise MissingWeightsError(path, None, cause)
    if _size(path) == 0:
        raise NotWeightsError(path, 0, "the file is empty")


def _refuse_other_content(path: str) -> None:
    """Raise NotWeightsError for contents recognised as something that is no weight file."""
    with open(path, "rb") as f:
        head = f.read(512)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    cause = None
    if text.startswith(b"version https://git-lfs"):
        cause = "it is a git-lfs pointer; the real file was never fetched (git lfs pull)"
    elif text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml", b"<body")):
        cause = "it is a web page (HTML), perhaps a login or error page saved under this name"
    elif text.startswith((b'{"', b"{\n", b"[")) and not _looks_like_safetensors(path):
        cause = "it is JSON text, perhaps a server's error message saved under this name"
    elif head.startswith(b"GGUF"):
        cause = "it is a GGUF file, which this loader does not read"
    elif not head.strip(b"\x00") and len(head) == 512:
        cause = "it starts with zeros only, as an unfinished download does"
    if cause is not None:
        raise NotWeightsError(path, _size(path), cause)


def _shown(path: str) -> str:
    """`checkpoints/sdxl/base.safetensors` for a file in a model folder, else the file's own name."""
    known = folder_paths.get_relative_path(os.path.abspath(path))
    return os.path.basename(path) if known is None else f"{known[0]}/{known[1]}"


def _starts_with(path: str, magic: bytes) -> bool:
    with open(path, "rb") as f:
        return f.read(len(magic)) == magic


def _size(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return os.path.getsize(path)
    return None
