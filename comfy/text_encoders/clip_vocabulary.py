"""CLIP's byte-pair encoding, built on the `tokenizers` library from OpenAI's list of merges.

Checkpoints do not carry the vocabulary. The list (bpe_simple_vocab_16e6.txt.gz, MIT) is read from the package
openai-clip without importing it, or from models/tokenizers/clip/.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

import folder_paths

MERGES_FILE = "bpe_simple_vocab_16e6.txt.gz"
MERGES_USED = 49152 - 256 - 2  # the file lists more than the published models know
START, END = "<|startoftext|>", "<|endoftext|>"
WORD_END = "</w>"
# Contractions, runs of letters, single digits, runs of anything else.
WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class MissingVocabularyError(RuntimeError):
    """The vocabulary of a tokenizer is nowhere on this machine."""

    def __init__(self, name: str, file: str, places: list[str], remedy: str):
        self.name = name
        self.file = file
        super().__init__(f"The vocabulary of {name} ({file}) was not found. Looked in: {', '.join(places)}. {remedy}")


def merges_path() -> Path:
    """Where the list of merges is. Raises MissingVocabularyError."""
    places = []
    spec = importlib.util.find_spec("clip")
    for folder in spec.submodule_search_locations or [] if spec is not None else []:
        places.append(Path(folder))
    places.append(Path(folder_paths.models_dir) / "tokenizers" / "clip")
    for place in places:
        if (place / MERGES_FILE).is_file():
            return place / MERGES_FILE
    raise MissingVocabularyError(
        "CLIP",
        MERGES_FILE,
        [*(["the package openai-clip (not installed)"] if spec is None else []), *map(str, places)],
        "Install it with: pip install openai-clip",
    )


def byte_characters() -> list[str]:
    """A printable character for each byte, in the order of the vocabulary: first the bytes that are printable
    themselves, then stand-ins for the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


@functools.lru_cache(maxsize=1)
def clip_tokenizer() -> Tokenizer:
    """Text -> ids without start and end; lower-cases, normalises unicode and white space."""
    with gzip.open(merges_path(), "rt", encoding="utf-8") as f:
        lines = f.read().split("\n")[1 : MERGES_USED + 1]
    merges = [(left, right) for left, right in (line.split() for line in lines)]
    characters = byte_characters()
    words = [*characters, *(c + WORD_END for c in characters), *(a + b for a, b in merges), START, END]
    vocabulary = {word: i for i, word in enumerate(words)}
    bpe = BPE(
        vocab=vocabulary,
        merges=merges,
        continuing_subword_prefix="",
        end_of_word_suffix=WORD_END,
        unk_token=END,
        fuse_unk=False,
    )
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    return tokenizer
