"""Textual inversion files: finding `embedding:name` in the embedding folders and reading its vectors.

Source: Gal et al. 2022. Layouts: goldens/models, `addons/embeddings`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comfy.weights import WeightsFileError, load_pickle, load_torch_file

EXTENSIONS = ("", ".safetensors", ".pt", ".bin")
_SAFETENSORS = (".safetensors", ".sft")
_BUNDLE_PREFIX = "bundle_emb."

log = logging.getLogger(__name__)


def expand_directory_list(directories: Sequence[str]) -> list[str]:
    """The folders and everything below them, each once, in order."""
    found: dict[str, None] = {}
    for folder in directories:
        for root, _, _ in os.walk(folder, followlinks=True):
            found[root] = None
    return list(found)


def find_embedding(name: str, directories: Sequence[str]) -> str | None:
    """Path of the file of that name (extension optional) in or below one of the folders, never outside."""
    if not name or "\0" in name:
        return None
    for folder in expand_directory_list(directories):
        folder = os.path.abspath(folder)
        target = os.path.abspath(os.path.join(folder, name))
        if os.path.commonpath((folder, target)) != folder:
            continue
        for extension in EXTENSIONS:
            if os.path.isfile(target + extension):
                return target + extension
    return None


def load_embed(
    embedding_name: str,
    embedding_directory: str | Sequence[str] | None,
    embedding_size: int,
    embed_key: str | None = None,
) -> Tensor | None:
    """Vectors [n, width] (or [width]) of an embedding, None when there is no such file or it cannot be read
    (which is logged: a prompt does not fail over it).

    embed_key: the encoder the vectors are for (`clip_l`, `clip_g`...), for files that serve several.
    embedding_size: their width; picks among the vectors of files that are a list.
    """
    directories = [embedding_directory] if isinstance(embedding_directory, str) else embedding_directory or []
    path = find_embedding(embedding_name, directories)
    if path is None:
        return None
    try:
        if path.lower().endswith(_SAFETENSORS):
            contents = load_torch_file(path)
        else:
            contents = load_pickle(path)
        vectors = _vectors(contents, embedding_size, embed_key)
    except WeightsFileError as e:
        log.warning("embedding %s: %s", embedding_name, e)
        return None
    if vectors is None or not vectors.is_floating_point() or vectors.ndim == 0:
        log.warning("embedding %s: its file holds no vectors", embedding_name)
        return None
    return vectors if vectors.ndim <= 2 else vectors.reshape(-1, vectors.shape[-1])


def _vectors(contents: Any, width: int, key: str | None) -> Tensor | None:
    if isinstance(contents, Tensor):
        return contents
    if isinstance(contents, (list, tuple)):
        tensors = [t for part in contents if isinstance(part, Mapping) for t in _tensors(part)]
        tensors = [t.reshape(-1, t.shape[-1]) for t in tensors if t.shape[-1] == width]
        return torch.cat(tensors) if tensors else None
    if not isinstance(contents, Mapping):
        return None
    if isinstance(contents.get("string_to_param"), Mapping):
        return next(_tensors(contents["string_to_param"]), None)
    bundle = [
        v.reshape(-1, v.shape[-1])
        for k, v in contents.items()
        if str(k).startswith(_BUNDLE_PREFIX) and ".string_to_param." in k and isinstance(v, Tensor) and v.ndim >= 1
    ]
    if bundle:
        # Of a file for several encoders, those for this one.
        fitting = [v for v in bundle if v.shape[-1] == width] or bundle[:1]
        return torch.cat(fitting)
    if isinstance(contents.get(key), Tensor):
        return contents[key]
    return next(_tensors(contents), None)


def _tensors(contents: Mapping[str, Any]):
    return (v for v in contents.values() if isinstance(v, Tensor) and v.ndim >= 1)
