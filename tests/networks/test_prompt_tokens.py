"""Weight notation and tokens of prompts against recorded ones, for the three CLIP tokenizers."""

import json
from pathlib import Path

import pytest
import torch

import comfy.text_encoders.clip_vocabulary as clip_vocabulary
from comfy.text_encoders.prompt_weights import parse_prompt
from comfy.text_encoders.sd1 import SD1Tokenizer
from comfy.text_encoders.tokenizer import SDTokenizer

DATA = Path(__file__).resolve().parent.parent / "data" / "text"
RECORDED = json.loads((DATA / "tokens.json").read_text(encoding="utf-8"))
EMBEDDINGS = str(DATA / "embeddings")
# The recorded H tokenizer had no folder for embeddings.
FOLDERS = {"sd1_l": EMBEDDINGS, "sdxl_g": EMBEDDINGS, "sd2_h": None}


def tokenizer(name: str) -> SDTokenizer:
    info = RECORDED["tokenizers"][name]["info"]
    return SDTokenizer(
        FOLDERS[name],
        embedding_size=info["embedding_size"],
        embedding_key=info["embedding_key"],
        start_token=info["start_token"],
        end_token=info["end_token"],
        pad_token=info["pad_token"],
        max_length=info["max_length"],
    )


@pytest.mark.parametrize("index", range(len(RECORDED["prompts"])))
def test_weights(index):
    expected = [(text, float(weight)) for text, weight in RECORDED["parse_weights"][index]]
    # repr, since nan differs from itself
    assert repr(parse_prompt(RECORDED["prompts"][index])) == repr(expected)


@pytest.mark.parametrize("name", FOLDERS)
def test_tokens(name):
    tokenize = tokenizer(name)
    pad = tokenize.pad_token
    for result in RECORDED["tokenizers"][name]["results"]:
        prompt = RECORDED["prompts"][result["p"]]
        chunks = tokenize.tokenize_with_weights(prompt, return_word_ids=True)
        assert len(chunks) == len(result["chunks"]), prompt
        for chunk, expected in zip(chunks, result["chunks"]):
            count = len(expected["ids"])
            weights = [1.0] * count if expected["weights"] == 1.0 else [float(w) for w in expected["weights"]]
            assert len(chunk) == expected["len"], prompt
            for i, (token, weight, word_id) in enumerate(chunk):
                if i >= count:
                    assert (token, weight, word_id) == (pad, 1.0, 0), prompt
                    continue
                if isinstance(expected["ids"][i], dict):
                    assert isinstance(token, torch.Tensor), prompt
                else:
                    assert token == expected["ids"][i], prompt
                assert repr(weight) == repr(weights[i]), prompt
                assert word_id == expected["word_ids"][i], prompt


def test_rows_of_an_embedding_keep_their_order():
    from safetensors.torch import load_file

    rows = load_file(DATA / "embeddings" / "tinyemb.safetensors")["clip_l"]
    (chunk,) = tokenizer("sd1_l").tokenize_with_weights("a embedding:tinyemb b")
    assert torch.equal(torch.stack([chunk[2][0], chunk[3][0]]), rows)


@pytest.mark.parametrize("prompt", ["embedding:", "a embedding:", "embedding: ", "(embedding::1.2)"])
def test_reference_without_a_name_is_harmless(prompt):
    assert len(tokenizer("sd1_l").tokenize_with_weights(prompt)[0]) == 77


@pytest.mark.parametrize("name", ["../tokens", "..\\tokens", "/etc/passwd", "sub/../../tokens", "\0", "sub"])
def test_embeddings_stay_in_their_folder(name):
    (chunk,) = tokenizer("sd1_l").tokenize_with_weights(f"embedding:{name}")
    assert all(isinstance(token, int) for token, _ in chunk)


def test_deep_nesting_is_bounded():
    depth = 20_000
    segments = parse_prompt("(" * depth + "cat" + ")" * depth)
    assert len(segments) == 1
    assert segments[0][1] < float("inf")


def test_sd1_tokenizer_has_one_list_per_encoder():
    tokens = SD1Tokenizer().tokenize_with_weights("a cat")
    assert list(tokens) == ["l"]
    assert tokens["l"][0][:3] == [(49406, 1.0), (320, 1.0), (2368, 1.0)]


def test_missing_vocabulary_says_what_and_where(monkeypatch, tmp_path):
    monkeypatch.setattr(clip_vocabulary.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(clip_vocabulary.folder_paths, "models_dir", str(tmp_path))
    with pytest.raises(clip_vocabulary.MissingVocabularyError) as caught:
        clip_vocabulary.merges_path()
    assert clip_vocabulary.MERGES_FILE in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "openai-clip" in str(caught.value)


def test_vocabulary_may_lie_among_the_models(monkeypatch, tmp_path):
    monkeypatch.setattr(clip_vocabulary.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(clip_vocabulary.folder_paths, "models_dir", str(tmp_path))
    folder = tmp_path / "tokenizers" / "clip"
    folder.mkdir(parents=True)
    (folder / clip_vocabulary.MERGES_FILE).write_bytes(b"")
    assert clip_vocabulary.merges_path() == folder / clip_vocabulary.MERGES_FILE
