"""Byte-pair encodings of language models, built on the `tokenizers` library: Qwen's from its two files, Mistral's from
a `tekken` file, which weights may carry inside.

Sources: the published vocabularies of Qwen 2.5 (Apache-2.0) and mistral-common's tekken format (Apache-2.0).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from comfy.text_encoders.clip_vocabulary import byte_characters

QWEN_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Tokens behind the pairs, in the order of their ids.
QWEN_SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
# Of these the ones that belong to a text that a model writes. The others only mark its parts, or what is no text.
QWEN_TEXT_MARKS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)


class BadVocabularyError(ValueError):
    """A vocabulary is damaged."""


def _byte_level(vocabulary: dict[str, int], merges: Sequence[tuple[str, ...]], word: str) -> Tokenizer:
    tokenizer = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=list(merges), fuse_unk=False, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(word), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def qwen_tokenizer(vocabulary: str, merges: str) -> Tokenizer:
    """From the contents of vocab.json and merges.txt; text -> ids, special tokens in it recognised."""
    words = json.loads(vocabulary)
    lines = [line for line in merges.split("\n") if line and not line.startswith("#version")]
    pairs = [tuple(line.split(" ")) for line in lines]
    tokenizer = _byte_level(words, pairs, QWEN_WORD)
    tokenizer.normalizer = normalizers.NFC()
    return complete_qwen(tokenizer)


def complete_qwen(tokenizer: Tokenizer) -> Tokenizer:
    """Add the tokens behind the pairs that it lacks: Qwen 2.5's own file ends before the last four, Qwen 3's."""
    missing = [word for word in QWEN_SPECIAL if tokenizer.token_to_id(word) is None]
    tokenizer.add_tokens([AddedToken(w, special=w not in QWEN_TEXT_MARKS, normalized=False) for w in missing])
    return tokenizer


def tekken_tokenizer(content: bytes) -> Tokenizer:
    """From a tekken file: tokens as bytes in base64 with their rank; special tokens come first in the ids. Raises
    BadVocabularyError."""
    try:
        facts: dict[str, Any] = json.loads(content)
        config = facts["config"]
        special_count = int(config["default_num_special_tokens"])
        size = int(config["default_vocab_size"]) - special_count
        ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in facts["vocab"][:size]}
        pattern = config["pattern"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadVocabularyError(f"it is no tekken vocabulary: {error!r}") from error
    special = {entry["rank"]: entry["token_str"] for entry in facts.get("special_tokens") or []}
    names = [special.get(i, f"<SPECIAL_{i}>") for i in range(special_count)]
    characters = _characters_of_bytes()

    def written(piece: bytes) -> str:
        return "".join(characters[b] for b in piece)

    vocabulary = {name: i for i, name in enumerate(names)}
    vocabulary.update({written(piece): rank + special_count for piece, rank in ranks.items()})
    merges = [(written(a), written(b)) for a, b in _merges(ranks)]
    tokenizer = _byte_level(vocabulary, merges, pattern)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


def _characters_of_bytes() -> dict[int, str]:
    """Byte -> the printable character that stands for it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    order = [*printable, *(b for b in range(256) if b not in printable)]
    return dict(zip(order, byte_characters()))


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Pairs in the order in which they are joined: by the rank of what they make, then by the ranks of the two."""
    found = []
    for piece, rank in ranks.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]
