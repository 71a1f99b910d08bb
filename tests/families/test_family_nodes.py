"""Nodes for models with several text encoders, image encoders and style models."""

import pytest
import torch
from safetensors.torch import save_file

import comfy.model_sampling
import comfy.sd
import folder_paths
import nodes
from comfy.model_patcher import ModelPatcher
from comfy.style_model import ReduxImageEncoder, UnknownStyleModel
from nodes.conditioning import MissingClip
from nodes.vision import MissingImageEncoder, UnsuitableStyle
from tests.families.models import family_model
from tests.families.text import encoder_file
from tests.networks.golden import Golden


class FakeClip:
    """Chunks named after what they encode; the conditioning is the tokens themselves."""

    def __init__(self, *encoders: str):
        self.encoders, self.options = encoders, {}

    def clone(self):
        other = FakeClip(*self.encoders)
        other.options = dict(self.options)
        return other

    def set_tokenizer_option(self, name, value):
        self.options[name] = value

    def tokenize(self, text):
        """As many chunks as words."""
        return {name: [f"{name}:{word}" for word in text.split(" ")] for name in self.encoders}

    def encode_from_tokens_scheduled(self, tokens, add_dict=None):
        return [[tokens, {"pooled_output": None, **(add_dict or {})}]]


def run(name: str, **inputs):
    node = nodes.NODE_CLASS_MAPPINGS[name]
    if hasattr(node, "GET_NODE_INFO_V1"):
        return node.execute(**inputs).args
    return getattr(node(), node.FUNCTION)(**inputs)


def test_each_encoder_gets_its_own_text():
    ((cond, options),) = run(
        "CLIPTextEncodeSDXL",
        clip=FakeClip("g", "l"),
        width=832, height=1216, crop_w=1, crop_h=2, target_width=3, target_height=4,
        text_g="large words", text_l="small",
    )[0]  # fmt: skip
    # The shorter one is filled up with an empty prompt.
    assert cond == {"g": ["g:large", "g:words"], "l": ["l:small", "l:"]}
    sizes = {"width": 832, "height": 1216, "crop_w": 1, "crop_h": 2, "target_width": 3, "target_height": 4}
    assert options == {"pooled_output": None, **sizes}


def test_refiner_and_pixart():
    ((_, options),) = run("CLIPTextEncodeSDXLRefiner", ascore=7.5, width=8, height=9, text="a", clip=FakeClip("g"))[0]
    assert {k: options[k] for k in ("aesthetic_score", "width", "height")} == {
        "aesthetic_score": 7.5, "width": 8, "height": 9,
    }  # fmt: skip
    ((cond, options),) = run("CLIPTextEncodePixArtAlpha", width=8, height=9, text="a", clip=FakeClip("t5xxl"))[0]
    assert cond == {"t5xxl": ["t5xxl:a"]} and (options["width"], options["height"]) == (8, 9)


def test_sd3_encoders_without_a_text():
    texts = {"clip_l": "one two", "clip_g": "", "t5xxl": ""}
    ((cond, _),) = run("CLIPTextEncodeSD3", clip=FakeClip("g", "l", "t5xxl"), empty_padding="empty_prompt", **texts)[0]
    assert cond == {"l": ["l:one", "l:two"], "g": ["g:", "g:"], "t5xxl": ["t5xxl:"]}
    ((cond, _),) = run("CLIPTextEncodeSD3", clip=FakeClip("g", "l", "t5xxl"), empty_padding="none", **texts)[0]
    assert cond["t5xxl"] == [] and cond["l"] == ["l:one", "l:two"] and len(cond["g"]) == 2


def test_flux():
    ((cond, options),) = run("CLIPTextEncodeFlux", clip=FakeClip("l", "t5xxl"), clip_l="a", t5xxl="b c", guidance=2.0)[
        0
    ]
    assert cond == {"l": ["l:a"], "t5xxl": ["t5xxl:b", "t5xxl:c"]} and options["guidance"] == 2.0


def test_tokenizer_options_stay_with_the_clone():
    clip = FakeClip("t5xxl")
    (changed,) = run("T5TokenizerOptions", clip=clip, min_padding=1, min_length=3)
    assert clip.options == {}
    assert changed.options["t5xxl_min_padding"] == 1 and changed.options["pile_t5xl_min_length"] == 3


@pytest.mark.parametrize(
    "name, inputs",
    [
        ("CLIPTextEncodeFlux", {"clip_l": "", "t5xxl": "", "guidance": 1.0}),
        ("CLIPTextEncodeSDXLRefiner", {"ascore": 6.0, "width": 8, "height": 8, "text": ""}),
        ("T5TokenizerOptions", {"min_padding": 0, "min_length": 0}),
    ],
)
def test_missing_text_encoder_is_told(name, inputs):
    with pytest.raises(MissingClip):
        run(name, clip=None, **inputs)


def test_triple_loader(tmp_path, monkeypatch):
    """In any order; the small encoders are told apart by their width, so that only L and T5 serve here."""
    names = []
    for name, sd in (("l", encoder_file("L")), ("t5", None)):
        if sd is not None:
            save_file({k: v.contiguous() for k, v in sd.items()}, tmp_path / f"{name}.safetensors")
            names.append(f"{name}.safetensors")
    monkeypatch.setattr(folder_paths, "get_full_path_or_raise", lambda folder, name: str(tmp_path / name))
    with pytest.raises(comfy.sd.UnknownModelError, match="clip_l and clip_l and clip_l"):
        run("TripleCLIPLoader", clip_name1=names[0], clip_name2=names[0], clip_name3=names[0])


# --- what a model predicts


@pytest.fixture(scope="module")
def patcher():
    cpu = torch.device("cpu")
    return ModelPatcher(family_model(Golden("unet_sd1")), cpu, cpu)


@pytest.mark.parametrize("kind", ["eps", "v_prediction", "lcm", "x0", "img_to_img", "img_to_img_flow"])
def test_discrete(patcher, kind):
    sampling = run("ModelSamplingDiscrete", model=patcher, sampling=kind, zsnr=False)[0].get_model_object(
        "model_sampling"
    )
    parent = {"v_prediction": "V_PREDICTION"}.get(kind, kind.upper())
    assert isinstance(sampling, getattr(comfy.model_sampling, parent))
    assert isinstance(sampling, comfy.model_sampling.ModelSamplingDiscreteDistilled) == (kind == "lcm")
    assert type(patcher.get_model_object("model_sampling")) is not type(sampling)


def test_zero_terminal_snr(patcher):
    plain = run("ModelSamplingDiscrete", model=patcher, sampling="v_prediction", zsnr=False)[0]
    zero = run("ModelSamplingDiscrete", model=patcher, sampling="v_prediction", zsnr=True)[0]
    assert float(plain.get_model_object("model_sampling").sigma_max) == pytest.approx(14.6146, abs=1e-3)
    assert float(zero.get_model_object("model_sampling").sigma_max) > 1000


def test_continuous(patcher):
    limits = {"sigma_max": 80.0, "sigma_min": 0.01}
    edm = run("ModelSamplingContinuousEDM", model=patcher, sampling="edm_playground_v2.5", **limits)[0]
    sampling = edm.get_model_object("model_sampling")
    assert (float(sampling.sigma_max), sampling.sigma_data) == (pytest.approx(80.0), 0.5)
    assert type(edm.get_model_object("latent_format")).__name__ == "SDXL_Playground_2_5"
    velocity = run("ModelSamplingContinuousV", model=patcher, sampling="v_prediction", **limits)[0]
    assert isinstance(velocity.get_model_object("model_sampling"), comfy.model_sampling.V_PREDICTION)
    cascade = run("ModelSamplingStableCascade", model=patcher, shift=1.0)[0].get_model_object("model_sampling")
    assert isinstance(cascade, comfy.model_sampling.StableCascadeSampling) and cascade.shift == 1.0


# --- image encoders and styles


def test_missing_image_encoder_is_told():
    with pytest.raises(MissingImageEncoder):
        run("CLIPVisionEncode", clip_vision=None, image=torch.zeros(1, 8, 8, 3), crop="center")


class Seen:
    last_hidden_state = torch.ones(2, 3, 6)


@pytest.fixture
def redux(tmp_path):
    generator = torch.Generator().manual_seed(0)
    shapes = {k: v.shape for k, v in ReduxImageEncoder(6, 10, 4, device="meta").state_dict().items()}
    save_file({k: torch.randn(s, generator=generator) for k, s in shapes.items()}, tmp_path / "redux.safetensors")
    return comfy.sd.load_style_model(str(tmp_path / "redux.safetensors"))


def test_style_goes_behind_the_text(redux):
    text = [[torch.zeros(1, 5, 4), {"pooled_output": None}]]
    ((cond, options),) = run(
        "StyleModelApply", conditioning=text, style_model=redux, clip_vision_output=Seen(), strength=0.5,
        strength_type="multiply",
    )[0]  # fmt: skip
    assert cond.shape == (1, 5 + 2 * 3, 4) and not cond[:, :5].any()
    assert torch.allclose(cond[:, 5:].unflatten(1, (2, 3))[0], redux.get_cond(Seen()) * 0.5)
    assert "style_attention_bias" not in options and text[0][0].shape == (1, 5, 4)


def test_styles_weighed_in_the_attention_add_up(redux):
    cond = [[torch.zeros(1, 5, 4), {}]]
    for strength, kind in ((0.5, "attn_bias"), (1.0, "multiply"), (0.0, "attn_bias")):
        cond = run(
            "StyleModelApply", conditioning=cond, style_model=redux, clip_vision_output=Seen(), strength=strength,
            strength_type=kind,
        )[0]  # fmt: skip
    weights = cond[0][1]["style_attention_bias"].exp()
    assert cond[0][0].shape[1] == weights.shape[1] == 5 + 3 * 6
    assert torch.allclose(weights[0], torch.tensor([1.0] * 5 + [0.5] * 6 + [1.0] * 6 + [0.0] * 6))


def test_style_of_another_model(redux):
    with pytest.raises(UnsuitableStyle, match="4 wide, the conditioning's are 7"):
        run(
            "StyleModelApply", conditioning=[[torch.zeros(1, 5, 7), {}]], style_model=redux, clip_vision_output=Seen(),
            strength=1.0, strength_type="multiply",
        )  # fmt: skip


def test_other_files_are_no_style_models(tmp_path):
    path = str(tmp_path / "x.safetensors")
    save_file({"something": torch.ones(1)}, path)
    with pytest.raises(UnknownStyleModel, match="such as something"):
        comfy.sd.load_style_model(path)
