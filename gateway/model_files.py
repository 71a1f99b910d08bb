"""Model files as the browser lists them: names, sizes, headers and preview images (http-api.md section 7).

Blocking; imports no torch.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any

import folder_paths

LARGEST_HEADER = 1 << 20  # bytes
IMAGE_EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
# Their files are code or plain configuration, not models; packs' sources are nobody's business.
NOT_MODELS = ("configs", "custom_nodes")


def header_metadata(path: str) -> dict[str, Any] | None:
    """The `__metadata__` of a safetensors file; None without one, for a broken or an oversized header."""
    try:
        with open(path, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 0 < size <= LARGEST_HEADER:
                return None
            header = json.loads(stream.read(size))
    except (OSError, ValueError, RecursionError):
        return None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return metadata if isinstance(metadata, dict) else None


def folders() -> list[dict[str, Any]]:
    """The model folders with their search paths and file extensions."""
    return [
        {"name": name, "folders": list(paths), "extensions": sorted(extensions)}
        for name, (paths, extensions) in folder_paths.folder_names_and_paths.items()
        if name not in NOT_MODELS
    ]


def files(folder: str) -> list[dict[str, Any]]:
    """The files of a model folder with index of their search path, times (seconds) and size. Raises KeyError."""
    paths, extensions = folder_paths.folder_names_and_paths[folder]
    found = []
    for index, root in enumerate(paths):
        names, _ = folder_paths.recursive_search(root, excluded_dir_names=[".git"])
        for name in folder_paths.filter_files_extensions(names, extensions):
            try:
                stat = os.stat(os.path.join(root, name))
            except OSError:
                continue
            found.append(
                {
                    "name": name.replace(os.sep, "/"),
                    "pathIndex": index,
                    "modified": stat.st_mtime,
                    "created": stat.st_ctime,
                    "size": stat.st_size,
                }
            )
    return found


def preview_source(path: str) -> str | bytes | None:
    """The image that belongs to a model: a file of the same name beside it, else one inside its header."""
    stem = os.path.splitext(path)[0]
    for middle in ("", ".preview"):
        for extension in IMAGE_EXTENSIONS:
            if os.path.isfile(stem + middle + extension):
                return stem + middle + extension
    if path.endswith(".safetensors"):
        try:
            covers = json.loads((header_metadata(path) or {}).get("ssmd_cover_images", ""))
            if isinstance(covers, list) and covers:
                return base64.b64decode(covers[0])
        except (ValueError, TypeError, binascii.Error):
            return None
    return None
