"""Recorded data of the tests; the large files that pack well are kept gzipped, under their name with `.gz`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor


def _content(path: Path) -> bytes:
    packed = path.with_name(path.name + ".gz")
    return gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, packed or not."""
    return safetensors.torch.load(_content(Path(path)))


def load_json(path: str | Path) -> Any:
    """The content of a JSON file, packed or not."""
    return json.loads(_content(Path(path)))
