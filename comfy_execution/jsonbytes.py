"""JSON of values that come from outside or from nodes: never fails on a number, says so on anything else."""

from __future__ import annotations

import math
from json import dumps, loads  # by name: there are packs that replace them
from typing import Any

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS


def encode(value: Any) -> bytes:
    """UTF-8 JSON of a value that was JSON once. NaN and infinities become null, other objects their text.

    Raises:
        ValueError: it is nested too deeply (some hundred levels), or holds itself.
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        # What orjson refuses and JSON allows: integers over 64 bits, lone surrogates, deep nesting.
        try:
            return dumps(_finite(value), default=str, ensure_ascii=True).encode("ascii")
        except RecursionError:
            raise ValueError("a value is nested too deeply to be expressed as JSON") from None


def decode(data: bytes | str) -> Any:
    """What `encode` has made JSON of, number for number and character for character.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    # orjson reads neither lone surrogates nor integers over 64 bits as they are. What has some came from the standard
    # encoder, which leaves a blank behind the keys of objects; a text with such a blank in it only takes longer.
    try:
        if (b'": ' if isinstance(data, bytes) else '": ') not in data:
            return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return loads(data)
    except RecursionError:
        raise ValueError("a value is nested too deeply to be read") from None


def plain(value: Any) -> Any:
    """A copy of `value` made of JSON types only: tuples become lists, NaN becomes None.

    Raises:
        TypeError, ValueError, RecursionError: something in it has no JSON form, or it is nested too deeply.
    """
    try:
        return orjson.loads(orjson.dumps(value, option=_OPTIONS))
    except (TypeError, ValueError) as error:
        try:  # see `encode`
            return loads(dumps(_finite(value)))
        except (TypeError, ValueError, RecursionError):
            raise TypeError(str(error)) from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
