"""Content hashes: `blake3:` and 64 hex digits."""

from __future__ import annotations

import re

from assets.errors import AssetError

PREFIX = "blake3:"
_PATTERN = re.compile(r"blake3:[0-9a-f]{64}")
CHUNK = 1 << 20


def is_hash(value: object) -> bool:
    """Whether a value is spelled like a content hash."""
    return isinstance(value, str) and _PATTERN.fullmatch(value) is not None


def hash_file(path: str) -> str:
    """The content hash of a file. Raises AssetError (503 DEPENDENCY_MISSING) without the package `blake3`."""
    try:
        from blake3 import blake3
    except ImportError as error:
        raise AssetError("DEPENDENCY_MISSING", "hashing needs the package blake3", 503) from error
    hasher = blake3()
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            hasher.update(chunk)
    return PREFIX + hasher.hexdigest()
