"""Tokens of T5 and Pile-T5 against recorded ones; where vocabularies are looked for."""

import gzip
import json
import lzma
import shutil

import numpy as np
import pytest
import torch

import comfy.text_encoders.sentence_vocabulary as sentence_vocabulary
import folder_paths
from comfy.text_encoders.clip_vocabulary import MissingVocabularyError
from comfy.text_encoders.flux import FluxTokenizer
from comfy.text_encoders.sd1 import SD1Tokenizer
from comfy.text_encoders.sd3 import SD3Tokenizer
from comfy.text_encoders.sdxl import SDXLTokenizer
from comfy.text_encoders.sentence_vocabulary import Vocabulary
from comfy.text_encoders.t5_families import AuraT5Tokenizer, LTXVT5Tokenizer, PixArtTokenizer
from tests.families.text import DATA, EMBEDDINGS

RECORDED = json.loads(gzip.decompress((DATA / "t5_tokens.json.gz").read_bytes()))


def tokenizer(name: str, folder: str | None = EMBEDDINGS):
    families = {
        "sd3_t5": SD3Tokenizer,
        "flux_t5": FluxTokenizer,
        "aura_t5": AuraT5Tokenizer,
        "ltxv_t5": LTXVT5Tokenizer,
    }
    return getattr(families[name](folder), "pile_t5xl" if name == "aura_t5" else "t5xxl")


@pytest.mark.parametrize("name", RECORDED["tokenizers"])
def test_tokens(name, vocabularies):
    # Two of the recorded tokenizers had no folder for embeddings.
    tokenize = tokenizer(name, None if name in ("ltxv_t5", "aura_t5") else EMBEDDINGS)
    info = RECORDED["tokenizers"][name]["info"]
    for fact in (
        "pad_token",
        "start_token",
        "end_token",
        "min_length",
        "max_length",
        "embedding_key",
        "embedding_size",
    ):
        assert getattr(tokenize, fact) == info[fact], fact
    for result in RECORDED["tokenizers"][name]["results"]:
        prompt = RECORDED["prompts"][result["p"]]
        chunks = tokenize.tokenize_with_weights(prompt, return_word_ids=True)
        assert len(chunks) == len(result["chunks"]) == 1, prompt
        (chunk,), (expected,) = chunks, result["chunks"]
        assert len(chunk) == expected["len"], prompt
        ids = [token if isinstance(token, int) else "vector" for token, _, _ in chunk]
        count = len(expected["ids"])
        assert ids[:count] == [i if isinstance(i, int) else "vector" for i in expected["ids"]], prompt
        assert ids[count:] == [tokenize.pad_token] * (len(ids) - count), prompt
        weights = [1.0] * count if expected["weights"] == 1.0 else [float(w) for w in expected["weights"]]
        assert repr([w for _, w, _ in chunk[:count]]) == repr(weights), prompt
        assert [word for _, _, word in chunk[:count]] == expected["word_ids"], prompt


@pytest.mark.parametrize("name", RECORDED["options_t5"])
def test_options(name, vocabularies):
    recorded = RECORDED["options_t5"][name]
    options = {"min_length_0": {"t5xxl_min_length": 0}, "min_length_300": {"t5xxl_min_length": 300}}
    options["min_padding_3_min_length_0"] = {"t5xxl_min_padding": 3, "t5xxl_min_length": 0}
    if name == "disable_weights":
        (chunk,) = tokenizer("flux_t5").tokenize_with_weights(
            recorded["prompt"], tokenizer_options={"t5xxl_min_length": 0}, disable_weights=True
        )
    else:
        (chunk,) = tokenizer("flux_t5").tokenize_with_weights(recorded["prompt"], tokenizer_options=options[name])
    assert [len(chunk)] == recorded["lens"]
    assert [list(entry) for entry in chunk[: len(recorded["head"])]] == recorded["head"]


@pytest.mark.parametrize(
    "name, family", [("sdxl", SDXLTokenizer), ("sd3", SD3Tokenizer), ("flux", FluxTokenizer), ("sd1", SD1Tokenizer)]
)
def test_order_of_the_encoders(name, family, vocabularies):
    assert list(family().tokenize_with_weights("a cat")) == RECORDED["keys_order"][name]


def test_pixart_is_not_filled_up(vocabularies):
    tokens = PixArtTokenizer().tokenize_with_weights("a cat")["t5xxl"]
    assert [token for token, _ in tokens[0]] == [3, 9, 1712, 1]


# --- where vocabularies are looked for


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """An empty models folder, and a hub that does not answer."""
    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path / "models"))

    def unreachable(source, folder):
        raise OSError("no connection")

    monkeypatch.setattr(sentence_vocabulary, "download", unreachable)
    return tmp_path


def test_missing_vocabulary_says_where_it_may_be_put(offline):
    with pytest.raises(MissingVocabularyError) as caught:
        Vocabulary("t5", folders=[offline / "text_encoders"]).encode("a cat")
    message = str(caught.value)
    for part in (
        "T5",
        "tokenizer.json or spiece.model",
        str(offline / "models" / "tokenizers" / "t5"),
        "no connection",
    ):
        assert part in message
    assert str(offline / "text_encoders") in message and "google/t5-v1_1-xxl" in message


def test_vocabulary_inside_the_weights_comes_first(offline):
    model = lzma.decompress((DATA / "pile_t5.model.xz").read_bytes())
    embedded = torch.from_numpy(np.frombuffer(model, dtype=np.uint8).copy())
    tokens = AuraT5Tokenizer(tokenizer_data={"spiece_model": embedded}).tokenize_with_weights("cat,dog")["pile_t5xl"]
    assert [token for token, _ in tokens[0]][-1] == 1 and len(tokens[0]) == 256
    assert torch.equal(
        AuraT5Tokenizer(tokenizer_data={"spiece_model": embedded}).state_dict()["spiece_model"], embedded
    )


def test_vocabulary_next_to_the_weights(offline, models_folder):
    weights = offline / "text_encoders"
    weights.mkdir()
    shutil.copy(models_folder / "tokenizers" / "t5" / "tokenizer.json", weights)
    assert Vocabulary("t5", folders=[weights]).encode("cat") == [1712]


def test_file_of_another_encoder_is_not_taken(offline, models_folder):
    """UMT5's vocabulary is eight times as large."""
    weights = offline / "text_encoders"
    weights.mkdir()
    shutil.copy(models_folder / "tokenizers" / "t5" / "tokenizer.json", weights)
    with pytest.raises(MissingVocabularyError, match="UMT5"):
        Vocabulary("umt5", folders=[weights]).encode("cat")


def test_downloaded_once(offline, models_folder, monkeypatch):
    calls = []

    def from_hub(source, folder):
        calls.append(source.repository)
        folder.mkdir(parents=True)
        return shutil.copy(models_folder / "tokenizers" / "t5" / "tokenizer.json", folder) and folder / "tokenizer.json"

    monkeypatch.setattr(sentence_vocabulary, "download", from_hub)
    assert Vocabulary("t5").encode("cat") == [1712]
    assert Vocabulary("t5").encode("cat") == [1712]
    assert calls == ["google/t5-v1_1-xxl"]


def test_stable_diffusion_3_without_t5_needs_no_vocabulary(offline):
    tokens = SD3Tokenizer(tokenizer_data={"with_t5": False}).tokenize_with_weights("a cat")
    assert tokens["t5xxl"] == [] and len(tokens["l"][0]) == 77


@pytest.mark.parametrize("reached", [True, False])
def test_hub_is_asked_for_one_file_after_the_other(tmp_path, monkeypatch, reached):
    """Which of them a repository has differs. A hub that does not answer is asked once."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    asked = []

    def hf_hub_download(repository, name, local_dir, etag_timeout):
        asked.append(name)
        if not reached:
            raise LocalEntryNotFoundError("no connection")
        if name != "tokenizer.model":
            # However this version of the library makes them.
            raise EntryNotFoundError.__new__(EntryNotFoundError)
        return str(local_dir / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    source = sentence_vocabulary.SOURCES["pile_t5"]
    if reached:
        assert sentence_vocabulary.download(source, tmp_path) == tmp_path / "tokenizer.model"
        assert asked == ["spiece.model", "tokenizer.model"]
    else:
        with pytest.raises(LocalEntryNotFoundError):
            sentence_vocabulary.download(source, tmp_path)
        assert len(asked) == 1
