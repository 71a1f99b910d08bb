"""Vocabularies of T5-like encoders and language models (SentencePiece, Kudo & Richardson 2018, or byte pairs), which
checkpoints rarely carry.

Looked for in this order: in the weights file itself (a tensor `spiece_model` or `tekken_model`), next to the weights,
below models/tokenizers/<name>/, and then downloaded once from the model hub into that folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

import folder_paths
from comfy.text_encoders.clip_vocabulary import MissingVocabularyError

log = logging.getLogger(__name__)


class Codec(NamedTuple):
    """Text to ids, without start and end; ids to text, without special tokens."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]


# File names, in order of preference: of the `tokenizers` library, of SentencePiece.
TOKENIZER_FILES = ("tokenizer.json", "spiece.model", "tokenizer.model")
# In which order the hub is asked for them: small ones first.
HUB_FILES = ("spiece.model", "tokenizer.model", "tokenizer.json")
# Seconds to wait for the hub's answer.
HUB_TIMEOUT = 10


class Source(NamedTuple):
    """A vocabulary: what it is for, its repository on the hub, how many pieces it has (a file beside the weights may be
    another encoder's), and whether it is published as the `tokenizers` library's file only."""

    label: str
    repository: str
    pieces: int
    byte_pairs: bool = False


SOURCES = {
    "t5": Source("T5", "google/t5-v1_1-xxl", 32000),
    "pile_t5": Source("Pile-T5", "EleutherAI/pile-t5-xl", 32000),
    "umt5": Source("UMT5", "google/umt5-xxl", 256000),
    "gemma2": Source("Gemma 2", "google/gemma-2-2b", 256000),
    "qwen2.5": Source("Qwen", "Qwen/Qwen2.5-VL-7B-Instruct", 151665, True),
    "llama3": Source("Llama 3", "meta-llama/Llama-3.1-8B-Instruct", 128256, True),
    "mistral3": Source("Mistral Small 3", "mistralai/Mistral-Small-3.1-24B-Instruct-2503", 131072, True),
}
# Byte pairs may also be in files that go together, or in Mistral's own.
PAIR_FILES = ("vocab.json", "merges.txt")
TEKKEN_FILE = "tekken.json"
# T5's file counts 100 placeholders too; encoders round their tables up.
PIECES_MARGIN = 400


class Vocabulary:
    """The vocabulary called `name`, found and read when it is first used.

    embedded: SentencePiece's file as a tensor of bytes; folders: where the encoder's weights are.
    """

    def __init__(self, name: str, embedded: Tensor | None = None, folders: Sequence[Path] = ()):
        self.name = name
        self.embedded = embedded
        self.folders = list(folders)
        self._codec: Codec | None = None

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`, without an end token. Raises MissingVocabularyError."""
        return self._found().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones; ids beyond the vocabulary are left out. Raises
        MissingVocabularyError."""
        return self._found().decode(list(ids))

    def _found(self) -> Codec:
        if self._codec is None:
            self._codec = self._find()
        return self._codec

    def _find(self) -> Codec:
        source = SOURCES[self.name]
        if self.embedded is not None:
            content = self.embedded.cpu().numpy().tobytes()
            return _tekken_codec(content) if self.name == "mistral3" else sentencepiece_codec(content)
        own = Path(folder_paths.models_dir) / "tokenizers" / self.name
        for folder in [*(f / self.name for f in self.folders), *self.folders, own]:
            for name in TOKENIZER_FILES:
                if (found := _read(folder / name, source)) is not None:
                    return found
            if (found := _byte_pairs(self.name, folder)) is not None:
                return found
        try:
            downloaded = download(source, own)
        except Exception as error:
            raise MissingVocabularyError(
                source.label,
                " or ".join(TOKENIZER_FILES[:2]),
                [*map(str, self.folders), str(own), f"the hub's {source.repository} ({error})"],
                f"Put that file of {source.repository} into {own}.",
            ) from error
        found = _read(downloaded, source)
        if found is None:
            raise MissingVocabularyError(source.label, downloaded.name, [str(downloaded)], "It is another vocabulary.")
        return found


def download(source: Source, folder: Path) -> Path:
    """Fetch a file of `source` into `folder`; raises the hub client's errors."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    log.info("fetching the vocabulary of %s from %s", source.label, source.repository)
    missing: Exception | None = None
    for name in HUB_FILES[::-1] if source.byte_pairs else HUB_FILES:
        try:
            path = huggingface_hub.hf_hub_download(source.repository, name, local_dir=folder, etag_timeout=HUB_TIMEOUT)
            return Path(path)
        except LocalEntryNotFoundError:  # the hub was not reached: the other files cannot be had either
            raise
        except EntryNotFoundError as error:
            missing = error
    raise missing or FileNotFoundError(source.repository)


def _read(path: Path, source: Source) -> Codec | None:
    """What a file makes; None if there is no such file or it is of another vocabulary."""
    if not path.is_file():
        return None
    if path.suffix == ".json":
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        pieces, codec = tokenizer.get_vocab_size(), _library_codec(tokenizer)
    else:
        processor = _processor(path.read_bytes())
        pieces, codec = processor.get_piece_size(), _sentencepiece_codec(processor)
    if abs(pieces - source.pieces) > PIECES_MARGIN:
        log.debug("%s has %d pieces and is not the vocabulary of %s", path, pieces, source.label)
        return None
    if path.suffix == ".json" and source is SOURCES["qwen2.5"]:
        from comfy.text_encoders import byte_pairs

        byte_pairs.complete_qwen(tokenizer)
    return codec


def _byte_pairs(name: str, folder: Path) -> Codec | None:
    """What files that go together make, or a tekken file; None where they are not."""
    from comfy.text_encoders import byte_pairs

    if name == "qwen2.5" and all((folder / file).is_file() for file in PAIR_FILES):
        vocabulary, merges = ((folder / file).read_text(encoding="utf-8") for file in PAIR_FILES)
        return _library_codec(byte_pairs.qwen_tokenizer(vocabulary, merges))
    if name == "mistral3" and (folder / TEKKEN_FILE).is_file():
        return _tekken_codec((folder / TEKKEN_FILE).read_bytes())
    return None


def _tekken_codec(content: bytes) -> Codec:
    from comfy.text_encoders import byte_pairs

    return _library_codec(byte_pairs.tekken_tokenizer(content))


def _library_codec(tokenizer) -> Codec:
    return Codec(lambda text: tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.decode)


def sentencepiece_codec(model: bytes) -> Codec:
    """What a SentencePiece file makes."""
    return _sentencepiece_codec(_processor(model))


def _sentencepiece_codec(processor) -> Codec:
    size = processor.get_piece_size()
    # The processor refuses ids that it does not know; tables of embeddings are often longer.
    return Codec(processor.encode, lambda ids: processor.decode([i for i in ids if i < size]))


def _processor(model: bytes):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model)
