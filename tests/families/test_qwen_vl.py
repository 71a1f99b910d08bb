"""Qwen 2.5 VL with pictures, against what the transformers library puts out; and the nodes that show it some."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

import nodes
from comfy.text_encoders import llm_families
from comfy.text_encoders.llama import config_from_state_dict
from comfy.text_encoders.llm_encoder import PicturesNotSeen
from comfy.text_encoders.llm_families import QWEN_PICTURE, QwenImageTEModel, QwenImageTokenizer, ZImageTokenizer
from comfy.text_encoders.qwen_vision import config_from_state_dict as vision_config
from comfy.text_encoders.qwen_vision import fitting_size, patches_of, windows_of
from comfy.text_encoders.qwen_vl import QwenVLEncoder
from nodes.picture_text import PICTURE, of_area
from tests.addons.transformer_controls import random
from tests.families.record_qwen_vl import (
    FILE,
    FULL,
    HEAD,
    SECTIONS,
    VISION_HEAD,
    WORDS_AFTER,
    WORDS_BEFORE,
    WORDS_BETWEEN,
    pictures,
    weights,
)
from tests.networks.golden import LIMIT, error

with safe_open(FILE, "pt") as f:
    OUT = f.get_tensor("out")
    SHAPES = json.loads(f.metadata()["shapes"])


def encoder(eyes: bool = True) -> QwenVLEncoder:
    sd = weights(SHAPES)
    config = config_from_state_dict(sd, head_dim=HEAD, mrope_sections=SECTIONS)
    vision = vision_config(sd, "visual.", head_width=VISION_HEAD, full_attention=FULL) if eyes else None
    made = QwenVLEncoder(config, special_tokens={"pad": 0}, vision=vision)
    made.transformer.load_state_dict(sd, strict=eyes)
    return made


def picture_token(picture: torch.Tensor) -> dict:
    return {"type": "image", "data": picture}


def row() -> list:
    first, second = map(picture_token, pictures())
    return [*WORDS_BEFORE, first, *WORDS_BETWEEN, second, *WORDS_AFTER]


def test_hidden_states_are_those_of_transformers():
    hidden, pooled = encoder().encode([row()])
    assert pooled is None and hidden.shape == OUT.shape
    assert error(hidden, OUT) < LIMIT


def test_words_alone_are_as_without_eyes():
    words = [WORDS_BEFORE + WORDS_AFTER]
    assert torch.equal(encoder().encode(words)[0], encoder(eyes=False).encode(words)[0])


def test_file_without_eyes_is_named():
    with pytest.raises(PicturesNotSeen, match=r"visual\.\*"):
        encoder(eyes=False).encode([row()])


def test_sizes_of_whole_tokens():
    assert fitting_size(280, 560) == (280, 560)
    assert fitting_size(300, 420) == (308, 420)
    assert fitting_size(10, 20) == (56, 84)
    rows, columns = fitting_size(8000, 6000)
    assert rows * columns <= 12845056 and rows % 28 == columns % 28 == 0


def test_windows_hold_every_patch_once():
    for size in ((8, 8), (22, 30), (2, 2), (10, 6)):
        groups = windows_of(*size)
        numbers = torch.cat([group.flatten() for group in groups])
        assert sorted(numbers.tolist()) == list(range(size[0] * size[1]))
        assert all(group.shape[1] <= 64 for group in groups)
    patches, size = patches_of(torch.rand(56, 84, 3))
    assert size == (4, 6) and patches.shape == (24, 3 * 2 * 14 * 14)


def test_template_is_cut_off_and_pictures_stay(monkeypatch):
    monkeypatch.setattr(llm_families, "QWEN_START", 1)
    monkeypatch.setattr(llm_families, "QWEN_USER", (2, 3))
    sd = weights(SHAPES)
    config = config_from_state_dict(sd, head_dim=HEAD, mrope_sections=SECTIONS)
    model = QwenImageTEModel(config)
    model.qwen25_7b = encoder()
    tokens = [1, 5, 6, 1, 2, 3, picture_token(pictures()[1]), 8]
    whole, _ = model.qwen25_7b.encode([tokens])
    cond, pooled, extra = model.encode_token_weights({"qwen25_7b": [[(token, 1.0) for token in tokens]]})
    assert pooled is None and extra == {} and torch.equal(cond, whole[:, 6:])


# --- tokens and nodes


class Words:
    """Stands in for a vocabulary: a token per place of a picture, and one for each other piece of text."""

    def encode(self, text: str) -> list[int]:
        parts = text.replace("<|image_pad|>", " <|image_pad|> ").split()
        return [QWEN_PICTURE if part == "<|image_pad|>" else 5 for part in parts]


def tokenizer(monkeypatch) -> QwenImageTokenizer:
    made = QwenImageTokenizer(None, {"folders": []})
    monkeypatch.setattr(made.qwen25_7b, "encode", Words().encode)
    return made


def pictures_in(tokens: dict) -> list[torch.Tensor]:
    (chunk,) = tokens["qwen25_7b"]
    return [entry[0]["data"] for entry in chunk if isinstance(entry[0], dict)]


class Clip:
    def __init__(self, tokenizer):
        self.tokenizer, self.asked = tokenizer, []

    def tokenize(self, text, **kwargs):
        self.asked.append((text, kwargs))
        return self.tokenizer.tokenize_with_weights(text, **kwargs)

    def encode_from_tokens_scheduled(self, tokens):
        return [[tokens, {}]]


class Vae:
    def encode(self, pixels):
        return pixels


def test_one_picture(monkeypatch):
    clip, image = Clip(tokenizer(monkeypatch)), random("image", 1, 40, 80, 3).sigmoid()
    node = nodes.NODE_CLASS_MAPPINGS["TextEncodeQwenImageEdit"]
    ((tokens, values),) = node.execute(clip, "make it red", Vae(), image).result[0]
    (seen,) = pictures_in(tokens)
    assert seen.shape[1] * seen.shape[2] == pytest.approx(1024 * 1024, rel=0.01)
    assert seen.shape[2] / seen.shape[1] == pytest.approx(2, rel=0.01)
    assert torch.equal(values["reference_latents"][0], seen)
    ((tokens, values),) = node.execute(clip, "a cat").result[0]
    assert pictures_in(tokens) == [] and "reference_latents" not in values


def test_several_pictures(monkeypatch):
    clip = Clip(tokenizer(monkeypatch))
    first, third = (random(f"image {i}", 1, 30, 30 + i, 3).sigmoid() for i in (1, 3))
    node = nodes.NODE_CLASS_MAPPINGS["TextEncodeQwenImageEditPlus"]
    ((tokens, values),) = node.execute(clip, "join them", Vae(), first, None, third).result[0]
    assert len(pictures_in(tokens)) == 2 and len(values["reference_latents"]) == 2
    assert pictures_in(tokens)[0].shape[1:3] == of_area(first, 384 * 384).shape[1:3]
    assert all(n % 8 == 0 for latent in values["reference_latents"] for n in latent.shape[1:3])
    ((text, options),) = clip.asked
    assert text == f"Picture 1: {PICTURE}Picture 3: {PICTURE}join them"
    assert PICTURE not in options["llama_template"] and "{}" in options["llama_template"]


def test_encoders_that_only_read_say_so():
    with pytest.raises(PicturesNotSeen, match="qwen3_4b sees no pictures"):
        ZImageTokenizer(None, {"folders": []}).tokenize_with_weights("x", images=[torch.zeros(1, 2, 2, 3)])
