"""Language models write: with a memory as without one, until a token ends it; templates; the node on small files."""

from __future__ import annotations

import json
import logging
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

import comfy.utils
import execution
import folder_paths
import nodes
from comfy.interrupt import InterruptProcessingException, interrupt_current_processing
from comfy.quantized_files import marker_of
from comfy.text_encoders import chat_templates, llm_generation
from comfy.text_encoders.byte_pairs import QWEN_SPECIAL
from comfy.text_encoders.chat_templates import CHATS
from comfy.text_encoders.hidream import LLAMA_PAD, LLAMA_START, HiDreamTEModel, HiDreamTokenizer
from comfy.text_encoders.llm_cache import Cache
from comfy.text_encoders.llm_encoder import LLMTextEncoder, PicturesNotSeen
from comfy.text_encoders.llm_generation import EmptyPrompt, LanguageModel, NoLanguageModel, SoundNotHeard, logits_of
from comfy.text_encoders.sentence_vocabulary import SOURCES, Vocabulary
from comfy.text_encoders.token_choice import Sampling
from nodes.conditioning import MissingClip
from nodes.text_generation import FRAME_PIXELS, MOST_FRAMES, TextGenerate, frames_of
from tests.architectures.test_llama import FAMILIES, config_of, network
from tests.engine.engine_kit import FakeServer, Runner, Show, n
from tests.families.test_llm_sides import small_pairs
from tests.families.test_qwen_vl import encoder as qwen_vl
from tests.families.test_qwen_vl import row as row_with_pictures
from tests.families.text import encoder_file
from tests.memory.test_quantized import FORMATS, fresh
from tests.networks.golden import Golden

HOST = torch.device("cpu")
VOCABULARY = json.loads(small_pairs()[0])
SPECIAL = len(VOCABULARY)
END, PICTURE, THINK, THOUGHT = SPECIAL + 2, SPECIAL + 12, SPECIAL + 24, SPECIAL + 25
NOBODY = frozenset()
STEPS = 12


def recorded(name: str) -> tuple[LLMTextEncoder, list[int]]:
    """A small recorded model, and a prompt for it."""
    golden = Golden(f"llm_{name}")
    made = LLMTextEncoder(config_of(golden), special_tokens={"pad": -1})
    made.transformer = network(golden)
    return made, golden.inputs["ids"][0].tolist()


def write(encoder, row, length=STEPS, sampling=None, ends=NOBODY, **more) -> list[int]:
    table = encoder.transformer.get_input_embeddings()
    return llm_generation.write(encoder, row, table, length, sampling, ends, HOST, torch.float32, **more)


def anew(encoder, row) -> torch.Tensor:
    """Logits after a prompt, of the encoder's own reading."""
    hidden, _ = encoder.encode([row])
    config = encoder.transformer.config
    return logits_of(encoder.transformer.get_input_embeddings(), hidden[0, -1], config.final_softcap)


@pytest.mark.parametrize("at_once", [1, 5, 2048])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_memory_changes_nothing(name, at_once, monkeypatch):
    """The logits of every step are those of reading all tokens anew, and greedy takes the largest of them."""
    monkeypatch.setattr(llm_generation, "READ_AT_ONCE", at_once)
    encoder, row = recorded(name)
    seen = []
    with mock.patch.object(llm_generation, "logits_of", lambda *args: seen.append(logits_of(*args)) or seen[-1]):
        written = write(encoder, row)
    assert len(written) == len(seen) == STEPS
    for i, token in enumerate(written):
        expected = anew(encoder, row + written[:i])
        assert (seen[i][0, -1] - expected).abs().max() < 1e-5 * expected.abs().max()
        assert token == expected.argmax()


def test_pictures_and_what_is_written_behind_them():
    encoder, row = qwen_vl(), row_with_pictures()
    written = write(encoder, row, 6)
    for i, token in enumerate(written):
        assert token == anew(encoder, row + written[:i]).argmax()
    hidden, _ = encoder.encode([row])
    assert encoder.length_of(row) == hidden.shape[1] > len(row)


def test_logits_are_capped_for_gemma_2():
    config = config_of(Golden("llm_gemma2_2b"))
    layer = comfy.ops.manual_cast.Linear(1, 3, bias=False)
    layer.weight = torch.nn.Parameter(torch.tensor([[1.0], [-60.0], [40.0]]))
    capped = logits_of(layer, torch.ones(1), config.final_softcap)
    assert torch.allclose(capped, torch.tensor([0.99963, -28.92083, 26.10296]), atol=1e-3)
    assert all(config_of(Golden(f"llm_{name}")).final_softcap is None for name in FAMILIES if name != "gemma2_2b")


def test_a_head_is_cast_in_parts(monkeypatch):
    layer = comfy.ops.manual_cast.Linear(8, 100, bias=False, dtype=torch.float16)
    layer.weight = torch.nn.Parameter(torch.randn(100, 8).half(), requires_grad=False)
    x = torch.randn(8)
    monkeypatch.setattr(llm_generation, "HEAD_ROWS", 30)
    assert torch.allclose(logits_of(layer, x), F.linear(x, layer.weight.float()), atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_head_gives_the_logits_of_its_numbers(monkeypatch, name):
    monkeypatch.setattr(llm_generation, "HEAD_ROWS", 7)
    values, x = torch.randn(20, 32), torch.randn(1, 32)
    stored, scales = fresh(name, values)
    named = {f"lm_head.{ending}": scales[buffer] for buffer, ending in FORMATS[name].names.items()}
    marked = {"lm_head.weight": stored, "lm_head.comfy_quant": marker_of(FORMATS[name].marker), **named}
    head = llm_generation.OutputHead.build(marked).lm_head
    numbers = FORMATS[name].values(stored, scales, torch.float32)
    assert head.weight.element_size() == 1
    assert torch.allclose(logits_of(head, x), F.linear(x, numbers), atol=1e-5)
    head.weight_function = [lambda weight: weight * 2]
    assert torch.allclose(logits_of(head, x), F.linear(x, numbers) * 2, atol=1e-5)


def test_what_ends_it():
    encoder, row = recorded("qwen3_4b")
    sampling = Sampling(temperature=2.0, top_k=0, seed=1)
    written = write(encoder, row, sampling=sampling)
    end = next(i for i, token in enumerate(written) if i >= 2 and token not in written[:i])
    assert write(encoder, row, sampling=sampling, ends=frozenset({written[end]})) == written[:end]
    assert write(encoder, row, sampling=sampling, ends=frozenset({written[0]})) == []
    assert write(encoder, row, 3, sampling) == written[:3] and write(encoder, row, 1, sampling) == written[:1]


def test_seeds():
    encoder, row = recorded("llama3")
    one, same, other = (write(encoder, row, sampling=Sampling(temperature=2.0, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert write(encoder, row, sampling=Sampling(top_k=1, repetition_penalty=1.0)) == write(encoder, row)


def test_an_interruption_is_noticed_at_the_next_token():
    encoder, row = recorded("llama3")
    told = []

    def interrupt_at_three(count: int) -> None:
        told.append(count)
        if count == 3:
            interrupt_current_processing()

    with pytest.raises(InterruptProcessingException):
        write(encoder, row, on_token=interrupt_at_three)
    assert told == [1, 2, 3]


def test_size_of_the_memory():
    config = config_of(Golden("llm_qwen3_4b"))
    cache = Cache(config, torch.arange(50), torch.float16, HOST)
    taken = sum(layer.nelement() * layer.element_size() for layer in cache._layers)
    assert Cache.size(config, 50, torch.float16) == taken


# --- speaking to it


def test_templates():
    assert CHATS["qwen3_4b"].dress("a {} cat") == (
        "<|im_start|>user\na {} cat<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert CHATS["qwen3_8b"].dress("cat", thinking=True) == "<|im_start|>user\ncat<|im_end|>\n<|im_start|>assistant\n"
    assert CHATS["qwen25_7b"].dress("cat", pictures=2) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|image_pad|><|vision_end|>cat<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert CHATS["gemma2_2b"].dress("cat") == "<start_of_turn>user\ncat<end_of_turn>\n<start_of_turn>model\n"
    assert CHATS["mistral3_24b"].dress("cat") == "[INST]cat[/INST]"
    assert CHATS["llama"].dress("cat") == (
        "<|start_header_id|>user<|end_header_id|>\n\ncat<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    own = "<|im_start|>system\nShort.<|im_end|>\n"
    for chat in CHATS.values():
        assert chat.dress("cat", template=False) == "cat" and chat.dress(own) == own and chat.ends
    placed = "before <|image_pad|> after"
    assert CHATS["qwen25_7b"].dress(placed, pictures=1, template=False) == placed


def test_thoughts():
    qwen, llama = CHATS["qwen3_4b"], CHATS["llama"]
    assert qwen.answer("<think>\nhm\n</think>\n\na cat") == "\n\na cat"
    assert qwen.answer("<think>\nhm") == "<think>\nhm" and qwen.answer("a cat") == "a cat"
    assert llama.answer("a</think>b") == "a</think>b"


def test_a_vocabulary_that_ends_before_thoughts_is_completed(tmp_path, monkeypatch):
    """Qwen 2.5's own file has no tokens for them; those of a text are read, those that mark its parts are not."""
    words = [AddedToken(w, special=True, normalized=False) for w in QWEN_SPECIAL if "think" not in w]
    tokenizer = Tokenizer(BPE(vocab=VOCABULARY, merges=[]))
    tokenizer.add_special_tokens([word for word in words if "response" not in word.content])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    source = SOURCES["qwen2.5"]._replace(pieces=SPECIAL + 22)
    monkeypatch.setitem(SOURCES, "qwen2.5", source)
    vocabulary = Vocabulary("qwen2.5", folders=[tmp_path])
    assert vocabulary.encode("<|im_end|><think></think>") == [END, THINK, THOUGHT]
    assert vocabulary.decode([END, THINK, THOUGHT, PICTURE]) == "<think> </think>"


def test_llamas_turn_ends_within_the_prompt():
    """What fills up is the token that ends a turn, and is cut off at the ends only."""
    tokenizer = HiDreamTokenizer(None, {"with_t5": False})
    words = {"a": 5, "<|eot_id|>": LLAMA_PAD, "<|begin_of_text|>": LLAMA_START}

    def encode(text: str) -> list[int]:
        text = text.replace("<|", " <|").replace("|>", "|> ")
        return [words.get(word, 7) for word in text.split()]

    tokenizer.llama.encode = encode
    model = HiDreamTEModel(llama=config_of(Golden("llm_llama3")))
    llama = LanguageModel.of(model, tokenizer, None)
    row = llama.row_of(llama.tokenize("a"))
    assert row[0] == LLAMA_START and LLAMA_PAD in row[1:-1] and row[-1] == 7
    assert llama.row_of({"llama": [[(t, 1.0) for t in [LLAMA_START, 5, LLAMA_PAD, LLAMA_PAD]]]}) == [LLAMA_START, 5]
    assert llama.row_of(llama.tokenize("<|begin_of_text|>a", template=False)) == [LLAMA_START, 5]
    assert llama.chat.ends >= {LLAMA_PAD}


# --- from files, through nodes


def drawn(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes.items():
        norm = len(shape) == 1 and name.endswith("weight")
        out[name] = torch.ones(shape) if norm else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
    return out


def qwen_file(width: int, head: bool = False, eyes: bool = False) -> dict[str, torch.Tensor]:
    """Qwen as files have it, of the width that tells which, but with little else. Without eyes it is Qwen 3."""
    wide = 128 if eyes else 16
    shapes = {"model.embed_tokens.weight": (SPECIAL + 26, width), "model.norm.weight": (width,)}
    for i in range(2):
        layer = f"model.layers.{i}."
        for name in ("q", "k", "v"):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (wide, width)
            if eyes:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (wide,)
            elif name != "v":
                shapes[f"{layer}self_attn.{name}_norm.weight"] = (wide,)
        shapes[f"{layer}self_attn.o_proj.weight"] = (width, wide)
        shapes |= {f"{layer}mlp.{name}_proj.weight": (24, width) for name in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj.weight"] = (width, 24)
        shapes |= {f"{layer}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    if head:
        shapes["model.lm_head.weight"] = (SPECIAL + 26, width)
    if eyes:
        shapes |= {
            "visual.patch_embed.proj.weight": (80, 3, 2, 14, 14),
            "visual.merger.ln_q.weight": (80,),
            **{f"visual.blocks.0.norm{i}.weight": (80,) for i in (1, 2)},
            **_linear("visual.blocks.0.attn.qkv", 80, 240),
            **_linear("visual.blocks.0.attn.proj", 80, 80),
            **_linear("visual.blocks.0.mlp.gate_proj", 80, 20),
            **_linear("visual.blocks.0.mlp.up_proj", 80, 20),
            **_linear("visual.blocks.0.mlp.down_proj", 20, 80),
            **_linear("visual.merger.mlp.0", 320, 320),
            **_linear("visual.merger.mlp.2", 320, width),
        }
    return drawn(shapes)


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Files of text encoders, and the small vocabulary beside them."""
    folder = tmp_path_factory.mktemp("text_encoders")
    for name, content in zip(("vocab.json", "merges.txt"), small_pairs()):
        (folder / name).write_text(content, encoding="utf-8")
    save_file(qwen_file(2560), folder / "qwen3_4b.safetensors")
    save_file(qwen_file(4096, head=True), folder / "qwen3_8b.safetensors")
    save_file(qwen_file(3584, eyes=True), folder / "qwen25.safetensors")
    save_file(encoder_file("L"), folder / "clip_l.safetensors")
    return folder


@pytest.fixture
def load(encoders, monkeypatch):
    """Load CLIP with the small files; ids of special tokens are the small vocabulary's."""
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "text_encoders", ([str(encoders)], {".safetensors"}))
    monkeypatch.setattr(llm_generation, "QWEN_PICTURE", PICTURE)
    for name in ("qwen3_4b", "qwen3_8b", "qwen25_7b"):
        monkeypatch.setitem(CHATS, name, chat_templates.dataclasses.replace(CHATS[name], ends=frozenset({END})))
    return lambda name, kind="stable_diffusion": nodes.CLIPLoader().load_clip(f"{name}.safetensors", kind)[0]


GREEDY = {"sampling_mode": "off"}


def text_of(clip, *args, **kwargs) -> str:
    return TextGenerate.execute(clip, *args, **kwargs).result[0]


def test_the_engine_runs_it(load, monkeypatch):
    """From Load CLIP to the text; the same seed the same, another one another."""
    monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, "Show", Show)
    runner = Runner(FakeServer(), execution.CacheType.CLASSIC)

    def shown(**inputs) -> str:
        prompt = {
            "clip": n("CLIPLoader", clip_name="qwen3_4b.safetensors", type="ltxv", device="default"),
            "text": n("TextGenerate", clip=("clip", 0), prompt="a cat", max_length=8, **inputs),
            "show": n("Show", value=("text", 0)),
        }
        (text,) = runner.good(prompt, outputs=["show"])["show"]["value"]
        return text

    drawing = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    mode = {f"sampling_mode.{name}": value for name, value in drawing.items()}
    # In this order, as what the prompt before has computed is not computed again.
    first, other, again = (shown(sampling_mode="on", **mode, **{"sampling_mode.seed": seed}) for seed in (1, 2, 1))
    assert first == again != other
    greedy = shown(sampling_mode="off")
    clip = load("qwen3_4b", "ltxv")
    assert greedy == repr(text_of(clip, "a cat", 8, GREEDY))


def test_progress_is_told(load, monkeypatch):
    told = []
    monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, *_, **__: told.append((value, total)))
    text_of(load("qwen3_4b"), "a cat", 5, GREEDY)
    assert told[0] == (1, 5) and told[-1] == (5, 5)


def test_the_answer_without_thoughts(load, monkeypatch):
    clip = load("qwen3_4b")
    word = VOCABULARY["user"]
    given = [THINK, word, THOUGHT, VOCABULARY["Ċ"], word, VOCABULARY["Ġcat"], 151900]
    monkeypatch.setattr(llm_generation, "write", lambda *args, **kwargs: given)
    assert text_of(clip, "x", 9, GREEDY, thinking=True) == "user cat"
    assert text_of(clip, "x", 9, GREEDY, use_default_template=False) == "\nuser cat"
    assert clip.decode(given) == "<think>user</think>\nuser cat"
    given[:] = [THINK, word, VOCABULARY["Ã"]]
    assert text_of(clip, "x", 3, GREEDY, thinking=True) == "<think>user"


def test_prompts_are_text_in_every_character(load):
    """No weights, no embeddings, no escapes."""
    qwen = load("qwen3_4b").language_model()
    text = "(a:1.3) embedding:cat \\(b\\) {}  "
    row = qwen.row_of(qwen.tokenize(text, template=False))
    assert qwen.decode(row) == text
    with pytest.raises(EmptyPrompt, match="Qwen 3 4B"):
        qwen.tokenize("", template=False)


def test_a_head_of_its_own(load, caplog):
    """It is what words are made with; encoding does not load it; it is saved again."""
    with caplog.at_level(logging.WARNING):
        clip = load("qwen3_8b")
        first = text_of(clip, "a cat", 6, GREEDY)
    assert not caplog.records
    head = clip.clone().head_patcher.model.lm_head.weight
    assert head.shape == (SPECIAL + 26, 4096) and "lm_head" not in "".join(clip.cond_stage_model.state_dict())
    saved = clip.get_sd()
    (name,) = (key for key in saved if "lm_head" in key)
    again = comfy.sd.load_text_encoder_state_dicts([saved], folders=clip.tokenizer.qwen3_8b.vocabulary.folders)
    assert torch.equal(again.head_patcher.model.lm_head.weight, head) and name.startswith("qwen3_8b.transformer.")
    assert text_of(again, "a cat", 6, GREEDY) == first
    again.head_patcher = None
    assert text_of(again, "a cat", 6, GREEDY) != first and "lm_head.weight" in caplog.text


def test_pictures_are_shown(load):
    """A batch of pictures and the frames of a video change what is written; without them it is as without eyes."""
    clip = load("qwen25", "qwen_image")
    images = torch.rand(2, 60, 70, 3, generator=torch.Generator().manual_seed(0))
    qwen = clip.language_model()
    row = qwen.row_of(qwen.tokenize("cat", images.split(1)))
    assert [token["data"].shape for token in row if isinstance(token, dict)] == [(1, 60, 70, 3)] * 2
    texts = [
        text_of(clip, "cat", 8, GREEDY, **more)
        for more in ({}, {"image": images}, {"image": images[:1]}, {"video": images})
    ]
    assert texts[1] == texts[3] and len(set(texts)) == 3


def test_frames_of_long_videos():
    video = torch.arange(100.0)[:, None, None, None].expand(-1, 2, 2, 3)
    shown = frames_of(video)[:, 0, 0, 0].tolist()
    assert len(shown) == MOST_FRAMES and shown[0] == 0 and shown[-1] == 99 and shown == sorted(shown)
    height, width = frames_of(torch.zeros(1, 1080, 1920, 3)).shape[1:3]
    assert height * width == pytest.approx(FRAME_PIXELS, rel=0.01)


def test_what_cannot_be_done_is_said(load):
    picture, sound = torch.zeros(1, 32, 32, 3), {"waveform": torch.zeros(1, 1, 8), "sample_rate": 8}
    with pytest.raises(MissingClip):
        text_of(None, "x", 1, GREEDY)
    with pytest.raises(NoLanguageModel, match=r"\(clip_l\).*Qwen 3 4B"):
        text_of(load("clip_l"), "x", 1, GREEDY)
    reader = load("qwen3_4b")
    for name in ("image", "video"):
        with pytest.raises(PicturesNotSeen, match=f"Qwen 3 4B cannot see what is connected to {name}"):
            text_of(reader, "x", 1, GREEDY, **{name: picture})
    with pytest.raises(SoundNotHeard, match="Qwen 3 4B cannot hear what is connected to audio"):
        text_of(reader, "x", 1, GREEDY, audio=sound)
    blind = load("qwen25", "qwen_image")
    del blind.cond_stage_model.qwen25_7b.transformer.visual
    with pytest.raises(PicturesNotSeen, match=r"visual\.\*"):
        text_of(blind, "x", 1, GREEDY, image=picture)


def test_methods_for_packs(load):
    clip = load("qwen3_4b")
    tokens = clip.tokenize("a cat")
    ids = clip.generate(tokens, do_sample=False, max_length=4)
    assert ids == clip.clone().generate(tokens, do_sample=False, max_length=4) and len(ids) <= 4
    assert clip.decode(ids, skip_special_tokens=True) == clip.language_model().decode(ids)
    assert clip.generate(tokens, seed=5, max_length=4) == clip.generate(tokens, seed=5, max_length=4)
    assert len(clip.generate(tokens, max_length=2)) <= 2
