"""Re-exports; see `nodes`."""

from nodes.text import (
    CaseConverter,
    ConvertArrayToString,
    ConvertDictionaryToString,
    JsonExtractString,
    StringCompare,
    StringConcatenate,
    StringContains,
    StringFormat,
    StringLength,
    StringReplace,
    StringSubstring,
    StringTrim,
)
from nodes.text_patterns import RegexExtract, RegexMatch, RegexReplace

__all__ = [
    "CaseConverter",
    "ConvertArrayToString",
    "ConvertDictionaryToString",
    "JsonExtractString",
    "RegexExtract",
    "RegexMatch",
    "RegexReplace",
    "StringCompare",
    "StringConcatenate",
    "StringContains",
    "StringFormat",
    "StringLength",
    "StringReplace",
    "StringSubstring",
    "StringTrim",
]
