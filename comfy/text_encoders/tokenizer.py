"""From a prompt to chunks of weighted tokens, for any text encoder.

Rules: goldens, section 4. A token is an id or, for a textual inversion, a vector.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from comfy.text_encoders.clip_vocabulary import clip_tokenizer
from comfy.text_encoders.embedding_files import load_embed
from comfy.text_encoders.prompt_weights import parse_prompt

Token = int | Tensor
# A reference to a textual inversion: white space or the start before it; the name ends at white space, < or
# [.
_EMBEDDING = re.compile(r"(?:^|(?<=\s))embedding:\s*([^\s<\[]*)")

log = logging.getLogger(__name__)


class SDTokenizer:
    """Cuts a prompt into chunks of `max_length` tokens with weights.

    encode: text -> ids without special tokens. start_token, end_token: put around each chunk (None: none).
    pad_token fills up, always to `max_length` (`pad_to_max_length`) or to `min_length`. A segment of one
    weight with fewer than `max_word_length` tokens is never spread over two chunks.
    embedding_directory: folders with textual inversions; embedding_key: whose vectors to take from them.
    """

    def __init__(
        self,
        embedding_directory: str | Sequence[str] | None = None,
        embedding_size: int = 768,
        embedding_key: str = "clip_l",
        encode: Callable[[str], list[int]] | None = None,
        start_token: int | None = 49406,
        end_token: int | None = 49407,
        pad_token: int = 49407,
        max_length: int = 77,
        min_length: int | None = None,
        pad_to_max_length: bool = True,
        max_word_length: int = 8,
        tokenizer_data: dict[str, Any] | None = None,
    ):
        self.embedding_directory = embedding_directory
        self.embedding_size = embedding_size
        self.embedding_key = embedding_key
        self.encode = encode or encode_clip
        self.start_token = start_token
        self.end_token = end_token
        self.pad_token = pad_token
        self.max_length = max_length
        self.min_length = min_length
        self.pad_to_max_length = pad_to_max_length
        self.max_word_length = max_word_length
        self.tokenizer_data = tokenizer_data or {}

    def tokenize_with_weights(
        self, text: str, return_word_ids: bool = False, tokenizer_options: dict[str, Any] | None = None, **kwargs
    ) -> list[list[tuple]]:
        """Chunks of (token, weight) or, with `return_word_ids`, (token, weight, word id); word ids count
        segments and embeddings from 1, special tokens have 0.

        tokenizer_options: `<embedding key>_min_length` and `<embedding key>_min_padding` override the length
        rules. disable_weights (keyword): brackets are text like any other.
        """
        options = tokenizer_options or {}
        min_length = options.get(f"{self.embedding_key}_min_length", self.min_length)
        min_padding = options.get(f"{self.embedding_key}_min_padding")
        segments = [(text, 1.0)] if kwargs.get("disable_weights") else parse_prompt(text)
        chunks = self._chunks(self._groups(segments))
        for chunk in chunks:
            if self.pad_to_max_length:
                self._pad(chunk, self.max_length)
            else:
                self._pad(chunk, len(chunk) + (min_padding or 0))
            self._pad(chunk, min_length or 0)
        if return_word_ids:
            return chunks
        return [[(token, weight) for token, weight, _ in chunk] for chunk in chunks]

    def _groups(self, segments: Sequence[tuple[str, float]]) -> list[list[tuple[Token, float]]]:
        """Runs of tokens that belong together: a stretch of text, or the vectors of one embedding."""
        groups: list[list[tuple[Token, float]]] = []

        def add(tokens: Sequence[Token], weight: float) -> None:
            groups.append([(token, weight) for token in tokens])

        for segment, weight in segments:
            start = 0
            for match in _EMBEDDING.finditer(segment):
                # White space at its end is a token in some vocabularies.
                before = segment[start : match.start()]
                if before.strip():
                    add(self.encode(before), weight)
                start = match.start()
                # Without a folder for embeddings the notation only separates, and is text like any other.
                if self.embedding_directory is not None:
                    vectors, used = self._embedding(match.group(1))
                    if vectors is not None:
                        add(vectors.reshape(-1, vectors.shape[-1]).unbind(0), weight)
                    start = match.start(1) + used
            rest = segment[start:]
            if rest.strip() or start == 0:
                add(self.encode(rest), weight)
        return groups

    def _embedding(self, name: str) -> tuple[Tensor | None, int]:
        """Vectors of the embedding and how many characters of `name` name it."""
        for candidate in dict.fromkeys((name, name.rstrip(","))):
            vectors = load_embed(candidate, self.embedding_directory, self.embedding_size, self.embedding_key)
            if vectors is not None:
                return vectors, len(candidate)
        log.warning("embedding %r is not there; it is left out of the prompt", name)
        return None, len(name)

    def _chunks(self, groups: list[list[tuple[Token, float]]]) -> list[list[tuple[Token, float, int]]]:
        ends = 0 if self.end_token is None else 1
        chunk = self._new_chunk()
        chunks = [chunk]
        for word_id, group in enumerate(groups, start=1):
            entries = [(token, weight, word_id) for token, weight in group]
            may_be_cut = len(entries) >= self.max_word_length
            while entries:
                room = self.max_length - ends - len(chunk)
                if len(entries) <= room:
                    chunk.extend(entries)
                    break
                if may_be_cut:
                    chunk.extend(entries[:room])
                    entries = entries[room:]
                self._close(chunk)
                chunk = self._new_chunk()
                chunks.append(chunk)
        self._close(chunk)
        return chunks

    def _new_chunk(self) -> list[tuple[Token, float, int]]:
        return [] if self.start_token is None else [(self.start_token, 1.0, 0)]

    def _close(self, chunk: list) -> None:
        if self.end_token is not None:
            chunk.append((self.end_token, 1.0, 0))

    def _pad(self, chunk: list, length: int) -> None:
        chunk.extend([(self.pad_token, 1.0, 0)] * (length - len(chunk)))

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint has to carry for this tokenizer: nothing."""
        return {}


def encode_clip(text: str) -> list[int]:
    """Ids of CLIP's vocabulary, without start and end."""
    return clip_tokenizer().encode(text, add_special_tokens=False).ids
