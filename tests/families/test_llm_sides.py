"""Text sides that are language models: tokens, templates, layers, and what fills up."""

from __future__ import annotations

import json

import pytest
import torch

import nodes
from comfy import supported_models
from comfy.text_encoders import byte_pairs, llm_families
from comfy.text_encoders.byte_pairs import BadVocabularyError, qwen_tokenizer, tekken_tokenizer
from comfy.text_encoders.clip_vocabulary import MissingVocabularyError
from comfy.text_encoders.hidream import HiDreamTEModel, HiDreamTokenizer
from comfy.text_encoders.llama import LlamaEncoder
from comfy.text_encoders.llm_encoder import ALL, LAST, LLMTextEncoder
from comfy.text_encoders.llm_families import (
    QWEN_PAD,
    Flux2Tokenizer,
    KleinTEModel,
    KleinTokenizer,
    LuminaTEModel,
    LuminaTokenizer,
    QwenImageTEModel,
    QwenImageTokenizer,
    ZImageTEModel,
    ZImageTokenizer,
    template_end,
)
from nodes.conditioning import MissingClip
from tests.architectures.recorded import build
from tests.architectures.test_llama import config_of, network
from tests.networks.golden import LIMIT, Golden, error

GOLDENS = {"qwen3": "llm_qwen3_4b", "qwen2.5": "llm_qwen25_7b", "gemma2": "llm_gemma2_2b", "llama3": "llm_llama3"}


def characters() -> dict[int, str]:
    return byte_pairs._characters_of_bytes()


def small_pairs() -> tuple[str, str]:
    """A Qwen vocabulary of bytes and a few pairs."""
    pairs = [("u", "s"), ("e", "r"), ("us", "er"), ("c", "a"), ("ca", "t"), ("Ġ", "cat")]
    words = [*characters().values(), *(a + b for a, b in pairs)]
    vocabulary = {word: i for i, word in enumerate(words)}
    return json.dumps(vocabulary), "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in pairs)


def test_byte_pairs_and_special_tokens():
    vocabulary, merges = small_pairs()
    tokenizer = qwen_tokenizer(vocabulary, merges)
    known = json.loads(vocabulary)
    start = len(known)
    ids = tokenizer.encode("<|im_start|>user cat<think>", add_special_tokens=False).ids
    assert ids == [start + 1, known["user"], known["Ġcat"], start + 24]
    # Bytes that are no characters by themselves.
    assert len(tokenizer.encode("é", add_special_tokens=False).ids) == 2
    assert len(byte_pairs.QWEN_SPECIAL) == 26


def small_tekken() -> bytes:
    import base64

    pieces = [bytes([b]) for b in range(256)] + [b"ab", b"abc", b"bc", b" ab"]
    vocabulary = [
        {"rank": i, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for i, piece in enumerate(pieces)
    ]
    special = [{"rank": i, "token_str": s} for i, s in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])]
    config = {"pattern": r"\s?\w+|\S", "default_num_special_tokens": 10, "default_vocab_size": 10 + len(pieces)}
    return json.dumps({"config": config, "vocab": vocabulary, "special_tokens": special}).encode()


def test_tekken():
    tokenizer = tekken_tokenizer(small_tekken())
    assert tokenizer.get_vocab_size() == 10 + 260
    ids = tokenizer.encode("[INST]abc ab[/INST]", add_special_tokens=False).ids
    # "abc" is joined by the lower rank first: ab + c.
    assert ids == [3, 10 + 257, 10 + 259, 4]
    assert tokenizer.encode("b", add_special_tokens=False).ids == [10 + ord("b")]
    with pytest.raises(BadVocabularyError, match="config"):
        tekken_tokenizer(b"{}")


@pytest.fixture
def qwen(tmp_path, monkeypatch):
    """The small vocabulary where the weights are."""
    vocabulary, merges = small_pairs()
    folder = tmp_path / "qwen2.5"
    folder.mkdir()
    (folder / "vocab.json").write_text(vocabulary, encoding="utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    return {"folders": [str(tmp_path)]}


def text_of(chunk, data) -> str:
    """Tokens back to text."""
    vocabulary, merges = small_pairs()
    return qwen_tokenizer(vocabulary, merges).decode([t for t, *_ in chunk if t != QWEN_PAD], skip_special_tokens=False)


def test_templates(qwen):
    (chunk,) = ZImageTokenizer(None, qwen).tokenize_with_weights("a (red:1.5) {} cat")["qwen3_4b"]
    assert text_of(chunk, qwen) == "<|im_start|>user\na (red:1.5) {} cat<|im_end|>\n<|im_start|>assistant\n"
    assert {weight for _, weight in chunk} == {1.0}
    (chunk,) = QwenImageTokenizer(None, qwen).tokenize_with_weights("cat")["qwen25_7b"]
    assert text_of(chunk, qwen).endswith(
        "background:<|im_end|>\n<|im_start|>user\ncat<|im_end|>\n<|im_start|>assistant\n"
    )
    (own,) = QwenImageTokenizer(None, qwen).tokenize_with_weights("<|im_start|>user\ncat")["qwen25_7b"]
    assert text_of(own, qwen) == "<|im_start|>user\ncat"
    (given,) = QwenImageTokenizer(None, qwen).tokenize_with_weights("cat", llama_template="x{}y")["qwen25_7b"]
    assert text_of(given, qwen) == "xcaty"
    (chunk,) = KleinTokenizer(None, qwen).tokenize_with_weights("cat")["qwen3_4b"]
    assert len(chunk) == 512 and chunk[-1][0] == QWEN_PAD
    assert text_of(chunk, qwen).endswith("assistant\n<think>\n\n</think>\n\n")


def test_mistral_is_filled_up_on_the_left(tmp_path):
    (tmp_path / "tekken.json").write_bytes(small_tekken())
    data = {"folders": [str(tmp_path)]}
    (chunk,) = Flux2Tokenizer(None, data).tokenize_with_weights("ab")["mistral3_24b"]
    ids = [token for token, _ in chunk]
    assert len(ids) == 512 and ids[0] == 11 and ids[-1] == 4
    first = next(i for i, token in enumerate(ids) if token != 11)
    assert ids[first] == 1
    embedded = torch.frombuffer(bytearray(small_tekken()), dtype=torch.uint8)
    (inside,) = Flux2Tokenizer(None, {"spiece_model": embedded}).tokenize_with_weights("ab")["mistral3_24b"]
    assert inside == chunk


def test_missing_vocabulary_is_named(tmp_path, monkeypatch):
    import comfy.text_encoders.sentence_vocabulary as vocabularies
    import folder_paths

    monkeypatch.setattr(folder_paths, "models_dir", str(tmp_path))

    def no_hub(source, folder):
        raise OSError(f"no way to {source.repository}")

    monkeypatch.setattr(vocabularies, "download", no_hub)
    with pytest.raises(MissingVocabularyError, match=r"Qwen.*tokenizer\.json.*no way to Qwen"):
        ZImageTokenizer(None, {"folders": []}).tokenize_with_weights("cat")


# --- encoders


def encoder(name: str, layer, special) -> LLMTextEncoder:
    golden = Golden(GOLDENS[name])
    made = LLMTextEncoder(config_of(golden), layer, special)
    made.transformer = network(golden)
    return made


def rows_of(golden: Golden, kind: str) -> tuple[list[list[int]], int]:
    """The recorded ids, with a pad token of their own where the recorded mask is 0."""
    ids, mask = golden.inputs["ids"], golden.inputs[f"mask_{kind}"]
    pad = int(ids.max()) + 1
    return torch.where(mask.bool(), ids, torch.full_like(ids, pad)).tolist(), pad


@pytest.mark.parametrize("kind", ["right", "left"])
@pytest.mark.parametrize("name", GOLDENS)
def test_what_fills_up_is_not_looked_at(name, kind):
    golden = Golden(GOLDENS[name])
    rows, pad = rows_of(golden, kind)
    mask = golden.inputs[f"mask_{kind}"].bool()
    for layer, output in ((LAST, "last"), (-2, "hidden_m2")):
        hidden, pooled = encoder(name, layer, {"pad": pad}).encode(rows)
        assert pooled is None
        assert error(hidden[mask], golden.out[f"{kind}.{output}"][mask]) < LIMIT
    several, _ = encoder(name, (0, 2), {"pad": pad}).encode(rows)
    everything, _ = encoder(name, ALL, {"pad": pad}).encode(rows)
    recorded = golden.out[f"{kind}.all"]
    where = mask[:, None].expand(-1, 2, -1)
    assert error(several[where], recorded[:, [0, 2]][where]) < LIMIT
    where = mask[:, None].expand(-1, recorded.shape[1] - 1, -1)
    assert error(everything[where], recorded[:, 1:][where]) < LIMIT


def model(cls, golden_name: str, **more):
    """A family's model around a small recorded encoder."""
    golden = Golden(GOLDENS[golden_name])
    made = cls(config_of(golden), **more)
    made.encoder.transformer = build(golden, config_of(golden), LlamaEncoder)
    return made, golden


def test_layers_of_the_families():
    made, golden = model(ZImageTEModel, "qwen3")
    ids = golden.inputs["ids"][:1].tolist()
    chunk = [(i, 1.0) for i in ids[0]]
    cond, pooled, extra = made.encode_token_weights({"qwen3_4b": [chunk]})
    assert pooled is None and extra == {}
    assert error(cond, golden.out["nomask.hidden_m2"][:1]) < LIMIT
    made, golden = model(LuminaTEModel, "gemma2")
    chunk = [(i, 1.0) for i in golden.inputs["ids"][0].tolist()]
    assert error(made.encode_token_weights({"gemma2_2b": [chunk]})[0], golden.out["nomask.hidden_m2"][:1]) < LIMIT


def test_klein_joins_three_layers(monkeypatch):
    monkeypatch.setattr(KleinTEModel, "layer", (0, 1, 2))
    made, golden = model(KleinTEModel, "qwen3")
    chunk = [(i, 1.0) for i in golden.inputs["ids"][0].tolist()]
    cond, pooled, extra = made.encode_token_weights({"qwen3_4b": [chunk]})
    assert error(cond, torch.cat([golden.out["nomask.all"][:1, i] for i in range(3)], dim=-1)) < LIMIT
    assert pooled is None and extra == {}
    assert llm_families.Flux2TEModel.layer == (10, 20, 30)


def test_qwen_image_cuts_its_template_off(monkeypatch):
    monkeypatch.setattr(llm_families, "QWEN_START", 3)
    monkeypatch.setattr(llm_families, "QWEN_USER", (4, 5))
    made, golden = model(QwenImageTEModel, "qwen2.5")
    ids = [3, 7, 8, 3, 4, 5, 9, 10, 11]
    hidden = made.encoder.transformer(torch.tensor([ids])).last
    cond, _, extra = made.encode_token_weights({"qwen25_7b": [[(i, 1.0) for i in ids]]})
    assert error(cond, hidden[:, 6:]) < LIMIT and extra == {}
    assert template_end([3, 7, 3, 9, 5]) == 2 and template_end([3, 7]) == 0
    del golden


def test_weights_count_for_lumina_only():
    made, golden = model(LuminaTEModel, "gemma2")
    ids = golden.inputs["ids"][0].tolist()[:6]
    plain = made.encode_token_weights({"gemma2_2b": [[(i, 1.0) for i in ids]]})[0]
    heavier = made.encode_token_weights({"gemma2_2b": [[(i, 1.0 + (n == 2)) for n, i in enumerate(ids)]]})[0]
    same = torch.ones(6, dtype=torch.bool)
    same[2] = False
    assert error(plain[:, same], heavier[:, same]) < 1e-6 and error(plain[:, 2], heavier[:, 2]) > 1e-3
    tokens = LuminaTokenizer.__mro__[0].options
    assert tokens["start_token"] == 2 and tokens["pad_token"] == 0


# --- HiDream


def test_hidream_gives_every_layer_of_llama():
    golden = Golden(GOLDENS["llama3"])
    made = HiDreamTEModel(llama=config_of(golden))
    made.llama.transformer = network(golden)
    chunk = [(i, 1.0) for i in golden.inputs["ids"][0].tolist()]
    cond, pooled, extra = made.encode_token_weights({"llama": [chunk], "t5xxl": [], "l": [], "g": []})
    assert cond.shape == (1, 128, 4096) and not cond.any()
    assert pooled.shape == (1, 2048) and not pooled.any()
    assert error(extra["conditioning_llama3"], golden.out["nomask.all"][:1, 1:]) < LIMIT


def test_hidream_without_llama():
    tokenizer = HiDreamTokenizer(None, {"with_llama": False, "with_t5": False})
    tokens = tokenizer.tokenize_with_weights("a cat")
    assert tokens.keys() == {"l", "g"}
    cond, pooled, extra = HiDreamTEModel().encode_token_weights(tokens)
    assert not cond.any() and not pooled.any() and extra["conditioning_llama3"].shape == (1, 32, 1, 4096)


class Clip:
    """Notes what it is asked for."""

    def tokenize(self, text):
        return {name: [f"{name}: {text}"] for name in ("l", "g", "t5xxl", "llama")}

    def encode_from_tokens_scheduled(self, tokens):
        return tokens

    def encode_from_tokens(self, tokens, return_pooled):
        return tokens, "pooled"


def test_nodes():
    hidream = nodes.NODE_CLASS_MAPPINGS["CLIPTextEncodeHiDream"]
    tokens = hidream.execute(Clip(), clip_l="a", clip_g="b", t5xxl="c", llama="d").result[0]
    assert tokens == {"l": ["l: a"], "g": ["g: b"], "t5xxl": ["t5xxl: c"], "llama": ["llama: d"]}
    lumina = nodes.NODE_CLASS_MAPPINGS["CLIPTextEncodeLumina2"]
    (text,) = lumina.execute(Clip(), user_prompt="a cat", system_prompt="alignment").result[0]["l"]
    assert text.endswith("based on textual prompts. <Prompt Start> a cat") and "high-quality" in text
    control = nodes.NODE_CLASS_MAPPINGS["CLIPTextEncodeControlnet"]
    given = [["cond", {"a": 1}]]
    ((cond, values),) = control.execute(Clip(), given, "x").result[0]
    assert cond == "cond" and values["cross_attn_controlnet"]["l"] == ["l: x"] and values["a"] == 1
    assert given == [["cond", {"a": 1}]]
    for node, inputs in ((hidream, {"clip_l": "", "clip_g": "", "t5xxl": "", "llama": ""}),):
        with pytest.raises(MissingClip):
            node.execute(None, **inputs)


@pytest.mark.parametrize(
    "family, encoder_name, tokenizer",
    [
        (supported_models.Lumina2, "gemma2_2b", "LuminaTokenizer"),
        (supported_models.ZImage, "qwen3_4b", "ZImageTokenizer"),
        (supported_models.QwenImage, "qwen25_7b", "QwenImageTokenizer"),
        (supported_models.Flux2, "qwen3_4b", "KleinTokenizer"),
        (supported_models.Flux2, "qwen3_8b", "KleinTokenizer8B"),
        (supported_models.Flux2, "mistral3_24b", "Flux2Tokenizer"),
        (supported_models.HiDream, "llama", "HiDreamTokenizer"),
    ],
)
def test_checkpoints_with_language_models(family, encoder_name, tokenizer):
    made = family({"hidden_size": 8})
    checkpoint = {f"text_encoders.{encoder_name}.transformer.model.norm.weight": torch.ones(2)}
    sd = made.process_clip_state_dict(checkpoint)
    assert list(sd) == [f"{encoder_name}.transformer.model.norm.weight"]
    assert made.clip_target(sd).tokenizer.__name__ == tokenizer
    assert family is supported_models.Flux2 or made.text_encoders in ((), (encoder_name,))
