"""Conditioning of every family's text side against recorded ones, and from files to text sides."""

import gzip
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.sd
from comfy.sd import CLIPType, UnknownModelError
from comfy.supported_models import SD20, SDXL, SDXLRefiner
from comfy.supported_models_base import ClipTarget
from comfy.text_encoders import families, flux, sd2, sd3, sdxl, t5_families
from comfy.text_encoders.checkpoint_layouts import model_to_checkpoint, take_encoders
from tests.architectures.recorded import key_map
from tests.families.text import CASES, DATA, EMBEDDINGS, clip_config, encoder_file, model_tensors, t5_config
from tests.networks.golden import DATA as MODELS
from tests.networks.golden import LIMIT, error

# Every so many tokens are kept; each case says how many.
OUTPUTS = load_file(DATA / "family_outputs.safetensors")
DETECTED = json.loads(gzip.decompress((MODELS / "detected.json.gz").read_bytes()))


def side(tokenizer, model, configs, **encoders) -> comfy.sd.CLIP:
    """A text side of small encoders."""

    def build(sd, **kwargs):
        return model(**configs, **kwargs)

    target = ClipTarget(tokenizer, build)
    return comfy.sd.CLIP(target, embedding_directory=EMBEDDINGS, state_dict=model_tensors(**encoders))


SIDES = {
    "sdxl": lambda: side(
        sdxl.SDXLTokenizer,
        sdxl.SDXLClipModel,
        {"clip_l": clip_config("L"), "clip_g": clip_config("G")},
        clip_l="L",
        clip_g="G",
    ),
    "sdxl_refiner": lambda: side(
        sdxl.SDXLTokenizer, sdxl.SDXLRefinerClipModel, {"config": clip_config("G")}, clip_g="G"
    ),
    "sd2": lambda: side(sd2.SD2Tokenizer, sd2.SD2ClipModel, {"config": clip_config("G")}, clip_h="G"),
    "sd3_lg": lambda: side(
        sd3.SD3Tokenizer,
        sd3.SD3ClipModel,
        {"clip_l": clip_config("L"), "clip_g": clip_config("G")},
        clip_l="L",
        clip_g="G",
    ),
    "flux": lambda: side(
        flux.FluxTokenizer,
        flux.FluxClipModel,
        {"clip_l": clip_config("L"), "t5xxl": t5_config()},
        clip_l="L",
        t5xxl="T",
    ),
    "mochi": lambda: side(t5_families.MochiT5Tokenizer, t5_families.MochiT5XXL, {"config": t5_config()}, t5xxl="T"),
    "pile_t5": lambda: side(
        t5_families.AuraT5Tokenizer, t5_families.AuraT5Model, {"config": t5_config()}, pile_t5xl="T"
    ),
}


class WanTokenizerOfT5(t5_families.WanT5Tokenizer):
    """As it was recorded: with the vocabulary of T5, filled up to 256 tokens."""

    min_length = 256

    def __init__(self, embedding_directory=None, tokenizer_data=None):
        super().__init__(embedding_directory, tokenizer_data, vocabulary="t5")


SIDES["umt5_masked"] = lambda: side(WanTokenizerOfT5, t5_families.WanT5Model, {"config": t5_config("U")}, umt5xxl="U")


@pytest.fixture(scope="module")
def sides():
    return {}


@pytest.mark.parametrize("name", CASES["cases"])
def test_conditioning(name, sides, vocabularies):
    case = CASES["cases"][name]
    family, _, variant = name.partition("/")
    if family not in sides:
        sides[family] = SIDES[family]()
    clip = sides[family].clone()
    if case["clip_layer"] is not None:
        clip.clip_layer(case["clip_layer"])
    if "min_length0" in variant:
        clip.set_tokenizer_option("t5xxl_min_length", 0)
    if "min_padding2" in variant:
        clip.set_tokenizer_option("t5xxl_min_padding", 2)
    if variant.startswith("different_lengths"):
        tokens = {"l": clip.tokenize("cat")["l"], "g": clip.tokenize("word " * 90)["g"]}
    else:
        tokens = clip.tokenize(case["prompt"])
    out = clip.encode_from_tokens(
        tokens, return_pooled="unprojected" if case["unprojected"] else True, return_dict=True
    )
    assert list(out["cond"].shape) == case["cond_shape"]
    recorded = OUTPUTS[f"{name}/cond"]
    assert error(out["cond"][:, :: case["every"], : recorded.shape[-1]], recorded) < LIMIT
    assert not out["cond"][..., recorded.shape[-1] :].any()
    if case["pooled_shape"] is None:
        assert out["pooled_output"] is None
    else:
        assert error(out["pooled_output"], OUTPUTS[f"{name}/pooled"]) < LIMIT
    assert out.keys() - {"cond", "pooled_output"} == case["extra"].keys()
    for key in case["extra"]:
        assert torch.equal(out[key], OUTPUTS[f"{name}/{key}"])


def test_open_clips_layout_survives_a_round_trip():
    sd = encoder_file("G")
    for family in (SDXLRefiner, SD20):
        place = family.encoders[0]
        checkpoint = {place.prefix + k: v for k, v in sd.items()}
        model = take_encoders(dict(checkpoint), family.encoders)
        assert all(k.startswith(f"{place.name}.transformer.") for k in model)
        again = model_to_checkpoint(model, family.encoders)
        assert again.keys() == checkpoint.keys()
        assert all(torch.equal(again[k], checkpoint[k]) for k in checkpoint)


def test_both_encoders_of_sdxl_are_found_in_its_checkpoint():
    checkpoint = {f"conditioner.embedders.0.transformer.{k}": v for k, v in encoder_file("L").items()}
    checkpoint |= {f"conditioner.embedders.1.model.{k}": v for k, v in encoder_file("G").items()}
    found = take_encoders(checkpoint, SDXL.encoders)
    assert checkpoint == {}
    expected = model_tensors(clip_l="L", clip_g="G")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[k], expected[k]) for k in found)


# --- Stable Diffusion 3 with some of its encoders


def sd3_side(*names: str) -> comfy.sd.CLIP:
    small = {"clip_l": "L", "clip_g": "G", "t5xxl": "T"}
    configs = {"clip_l": None, "clip_g": None}
    configs |= {n: t5_config() if n == "t5xxl" else clip_config(small[n]) for n in names}
    return side(sd3.SD3Tokenizer, sd3.SD3ClipModel, configs, **{n: small[n] for n in names})


def test_stable_diffusion_3_appends_t5(vocabularies, monkeypatch):
    # The small T5 is 64 wide, and so must be what its tokens are appended to.
    monkeypatch.setattr(sd3, "CONTEXT_WIDTH", 144)
    monkeypatch.setattr(t5_families.T5TextEncoder, "encode", _widened(t5_families.T5TextEncoder.encode, 144))
    both = sd3_side("clip_l", "clip_g")
    prompt = "a (red:1.4) cat"
    lg = both.encode_from_tokens(both.tokenize(prompt))
    full = sd3_side("clip_l", "clip_g", "t5xxl")
    cond = full.encode_from_tokens(full.tokenize(prompt))
    assert cond.shape == (1, 77 + 77, 144)
    assert error(cond[:, :77], lg) < 1e-6
    alone = sd3_side("t5xxl")
    only, pooled = alone.encode_from_tokens(alone.tokenize(prompt), return_pooled=True)
    assert torch.equal(cond[:, 77:], only)
    assert not pooled.any() and pooled.shape == (1, 768 + 1280)


def _widened(encode, width):
    def wrapper(self, tokens):
        hidden, pooled = encode(self, tokens)
        return torch.nn.functional.pad(hidden, (0, width - hidden.shape[-1])), pooled

    return wrapper


def test_stable_diffusion_3_without_an_encoder_has_zeros_in_its_place(vocabularies):
    both = sd3_side("clip_l", "clip_g")
    lg, lg_pooled = both.encode_from_tokens(both.tokenize("a cat"), return_pooled=True)
    one = sd3_side("clip_l")
    l, l_pooled = one.encode_from_tokens(one.tokenize("a cat"), return_pooled=True)
    assert torch.equal(l[..., :64], lg[..., :64]) and not l[..., 64:].any()
    assert torch.equal(l_pooled[:, :64], lg_pooled[:, :64]) and l_pooled.shape == (1, 64 + 1280)
    one = sd3_side("clip_g")
    g, g_pooled = one.encode_from_tokens(one.tokenize("a cat"), return_pooled=True)
    assert torch.equal(g[..., 768:][..., :80], lg[..., 64:144]) and not g[..., :768].any()
    assert torch.equal(g_pooled[:, 768:], lg_pooled[:, 64:])


# --- from files to text sides

FILES = ("clip_l", "clip_g", "clip_h", "t5xxl", "t5_pile_xl")
LLM_FILES = ("gemma2_2b", "llama3_8b", "mistral3_24b", "qwen25_vl_7b", "qwen3_4b", "qwen3_8b")
# What a file is used as by the types whose models are not part of this program.
OTHER_MODELS = ("StableCascade", "Cascade", "CogVideoX", "Wan")
OTHER_TOKENIZERS = ("PixelDiT", "HunyuanImage", "LongCat", "Ideogram")


def recorded_kinds(answers: dict) -> dict[str, dict]:
    return {kind: answer for kinds, answer in answers.items() for kind in kinds.split(",")}


@pytest.mark.parametrize("file", FILES + LLM_FILES)
def test_single_files(file):
    """Whatever type is chosen; the text side itself is built once."""
    encoder = families.recognise(key_map(f"te_{file}")).name
    for kind, answer in recorded_kinds(DETECTED["text_encoders"][file]["by_clip_type"]).items():
        target = families.text_side([encoder], kind)
        others = OTHER_MODELS + (OTHER_TOKENIZERS if file in LLM_FILES else ())
        if any(name in answer["clip"] + answer["tokenizer"] for name in others):
            assert target is None, kind
        else:
            assert target.tokenizer.__name__ == answer["tokenizer"], kind
    clip = comfy.sd.load_text_encoder_state_dicts([key_map(f"te_{file}")])
    assert _same_model(clip, recorded_kinds(DETECTED["text_encoders"][file]["by_clip_type"])["stable_diffusion"])


def _same_model(clip, answer) -> bool:
    """Recorded names of models made by a function end in an underscore and may say what they wrap."""
    name = answer["clip"].rsplit(".", 1)[-1].rstrip("_")
    if answer["tokenizer"].startswith("Klein"):
        name = "KleinTEModel"
    aliases = {"PixArtTEModel": "PixArtT5XXL", "MochiTEModel": "MochiT5XXL"}
    return type(clip.cond_stage_model).__name__ == aliases.get(name, name)


@pytest.mark.parametrize(
    "files, kind",
    [
        ("clip_l+clip_g", "stable_diffusion"),
        ("clip_l+clip_g", "sd3"),
        ("clip_l+t5xxl", "flux"),
        ("clip_l+t5xxl", "sd3"),
        ("clip_g+t5xxl", "sd3"),
        ("clip_l+clip_g+t5xxl", "sd3"),
        ("clip_l+clip_g+t5xxl", "stable_diffusion"),
        ("clip_l+clip_g+t5xxl+llama3_8b", "stable_diffusion"),
        ("clip_l+llama3_8b", "hidream"),
    ],
)
def test_sets_of_files(files, kind):
    answer = recorded_kinds(DETECTED["text_encoders_multi"][files])[kind]
    for order in (files.split("+"), files.split("+")[::-1]):
        maps = [key_map(f"te_{name}") for name in order]
        clip = comfy.sd.load_text_encoder_state_dicts(maps, clip_type=CLIPType[kind.upper()])
        assert type(clip.tokenizer).__name__ == answer["tokenizer"]
        assert _same_model(clip, answer)


@pytest.mark.parametrize(
    "files, kind", [("clip_g+t5xxl", "flux"), ("clip_l+t5xxl", "stable_diffusion"), ("clip_l+clip_g", "flux")]
)
def test_sets_that_lack_an_encoder(files, kind):
    maps = [key_map(f"te_{name}") for name in files.split("+")]
    assert comfy.sd.load_text_encoder_state_dicts(maps, clip_type=CLIPType[kind.upper()]) is None


@pytest.mark.parametrize("name", ["qwen25_3b", "qwen3_06b", "gemma3_4b", "t5_base", "t5_xxl_old"])
def test_encoders_of_other_families(name):
    assert comfy.sd.load_text_encoder_state_dicts([key_map(f"te_{name}")]) is None


@pytest.mark.parametrize("kind", ["wan", "stable_diffusion"])
def test_umt5_is_wans_whatever_type_is_chosen(kind):
    """T5's pieces would mean other words to it."""
    clip = comfy.sd.load_text_encoder_state_dicts([key_map("te_umt5_xxl")], clip_type=CLIPType[kind.upper()])
    assert type(clip.tokenizer) is t5_families.WanT5Tokenizer
    assert clip.tokenizer.umt5xxl.min_length == 512 and clip.tokenizer.umt5xxl.vocabulary.name == "umt5"
    assert type(clip.cond_stage_model) is t5_families.WanT5Model
    encoder = clip.cond_stage_model.umt5xxl
    assert encoder.use_mask and encoder.zero_masked and not encoder.transformer.config.shared_bias


def test_errors_name_the_file_and_what_is_wrong(tmp_path):
    def write(name, tensors):
        save_file({k: v.contiguous() for k, v in tensors.items()}, tmp_path / name)
        return str(tmp_path / name)

    small_l = write("l.safetensors", encoder_file("L"))
    with pytest.raises(UnknownModelError, match="no text side known here for flux is made of clip_l and clip_l"):
        comfy.sd.load_clip([small_l, small_l], clip_type=CLIPType.FLUX)
    lora = write("lora.safetensors", {"lora_te_x.lora_up.weight": torch.zeros(2, 2)})
    with pytest.raises(UnknownModelError, match="looks like a LoRA") as caught:
        comfy.sd.load_clip([small_l, lora], clip_type=CLIPType.FLUX)
    assert "lora.safetensors" in str(caught.value)


def test_layouts_of_encoder_files(tmp_path):
    """As published alone, in open_clip's layout, and taken out of a checkpoint."""
    g = {k: v for k, v in key_map("sdxl_refiner").items() if k.startswith("conditioner.embedders.0.model.")}
    g = {k.removeprefix("conditioner.embedders.0.model."): v for k, v in g.items()}
    inside = {f"transformer.{k}": v for k, v in key_map("te_clip_l").items()}
    clip = comfy.sd.load_text_encoder_state_dicts([g, inside])
    assert type(clip.cond_stage_model).__name__ == "SDXLClipModel"
    t5 = {**key_map("te_t5xxl"), "encoder.embed_tokens.weight": torch.empty(32128, 4096, device="meta")}
    assert comfy.sd.load_text_encoder_state_dicts([t5], clip_type=CLIPType.PIXART) is not None
