"""The text sides of the model families: tokenizer, encoder model, and what a set of encoder files makes.

A file is recognised by its tensors; which text side a set of files is for follows from the set and, where a set serves
several, from the type the user chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from comfy.supported_models_base import ClipTarget
from comfy.text_encoders import flux, hidream, llama, llm_families, sd1, sd2, sd3, sdxl, t5_families
from comfy.text_encoders.open_clip import MARK as OPEN_CLIP_MARK
from comfy.text_encoders.open_clip import is_open_clip, to_text_model

SD1 = ClipTarget(sd1.SD1Tokenizer, sd1.build)
SD2 = ClipTarget(sd2.SD2Tokenizer, sd2.build)
SDXL = ClipTarget(sdxl.SDXLTokenizer, sdxl.build)
REFINER = ClipTarget(sdxl.SDXLTokenizer, sdxl.build_refiner)
SD3 = ClipTarget(sd3.SD3Tokenizer, sd3.build)
FLUX = ClipTarget(flux.FluxTokenizer, flux.build)
PIXART = ClipTarget(t5_families.PixArtTokenizer, t5_families.PixArtT5XXL.build)
CHROMA = PIXART
MOCHI = ClipTarget(t5_families.MochiT5Tokenizer, t5_families.MochiT5XXL.build)
LTXV = ClipTarget(t5_families.LTXVT5Tokenizer, t5_families.MochiT5XXL.build)
WAN = ClipTarget(t5_families.WanT5Tokenizer, t5_families.WanT5Model.build)
AURAFLOW = ClipTarget(t5_families.AuraT5Tokenizer, t5_families.AuraT5Model.build)
LUMINA2 = ClipTarget(llm_families.LuminaTokenizer, llm_families.LuminaTEModel.build)
ZIMAGE = ClipTarget(llm_families.ZImageTokenizer, llm_families.ZImageTEModel.build)
QWEN_IMAGE = ClipTarget(llm_families.QwenImageTokenizer, llm_families.QwenImageTEModel.build)
FLUX2 = ClipTarget(llm_families.Flux2Tokenizer, llm_families.Flux2TEModel.build)
KLEIN = ClipTarget(llm_families.KleinTokenizer, llm_families.KleinTEModel.build)
KLEIN_8B = ClipTarget(llm_families.KleinTokenizer8B, llm_families.KleinTEModel.build)
HIDREAM = ClipTarget(hidream.HiDreamTokenizer, hidream.build)


class EncoderFile(NamedTuple):
    """A recognised encoder file: name of the encoder (`clip_l`, `clip_g`, `clip_h`, `t5xxl`, `pile_t5xl`, `umt5xxl`,
    a language model's) and its tensors as the encoder models name them."""

    name: str
    tensors: dict[str, Tensor]


# Width of the token table -> encoder.
_CLIP_WIDTHS = {1280: "clip_g", 1024: "clip_h"}
_T5_NAMES = {4096: "t5xxl", 2048: "pile_t5xl"}
T5_VOCABULARY = 32128
_NO_WEIGHTS = ("position_ids", "logit_scale", "spiece_model", "tekken_model", "scaled_fp8")
# (family, width of the token table) -> language model
_LLMS = {
    ("gemma2", 2304): "gemma2_2b",
    ("llama3", 4096): "llama",
    ("mistral3", 5120): "mistral3_24b",
    ("qwen2.5", 3584): "qwen25_7b",
    ("qwen3", 2560): "qwen3_4b",
    ("qwen3", 4096): "qwen3_8b",
}
_LLM = "model.layers.0.post_attention_layernorm.weight"
_LLM_UNUSED = ("vision_tower.", "multi_modal_projector.")
_CLIP = "text_model.embeddings.token_embedding.weight"
_T5 = "encoder.block.0.layer.0.SelfAttention.q.weight"


def recognise(sd: Mapping[str, Tensor]) -> EncoderFile | None:
    """The encoder that a file holds; None if it is none known here."""
    tensors = _without_prefix({k: v for k, v in sd.items() if not k.endswith(_NO_WEIGHTS)})
    if is_open_clip(tensors):
        tensors = to_text_model(tensors)
    table = tensors.get(_CLIP)
    if table is not None:
        # ViT-L, or a smaller transformer of its kind.
        name = _CLIP_WIDTHS.get(table.shape[1], "clip_l" if table.shape[1] <= 768 else None)
    elif _T5 in tensors:
        again = tensors.pop("encoder.embed_tokens.weight", None)  # the shared table once more, or under this name alone
        if again is not None:
            tensors.setdefault("shared.weight", again)
        name = _t5_name(tensors)
    elif _LLM in tensors:
        name = _LLMS.get((llama.family_of(tensors), tensors["model.embed_tokens.weight"].shape[1]))
        # Eyes are not needed, but Qwen's.
        unused = _LLM_UNUSED if name == "qwen25_7b" else (*_LLM_UNUSED, "visual.")
        tensors = {k: v for k, v in tensors.items() if not k.startswith(unused)}
    else:
        return None
    if name is None:
        return None
    return EncoderFile(name, {f"{name}.transformer.{k}": v for k, v in tensors.items()})


def _without_prefix(sd: dict[str, Tensor]) -> dict[str, Tensor]:
    """Encoders saved out of a checkpoint keep the levels above, all tensors the same."""
    for mark in (_CLIP, _T5, _LLM, OPEN_CLIP_MARK):
        prefixes = {k.removesuffix(mark) for k in sd if k.endswith(mark)}
        if len(prefixes) == 1:
            prefix = prefixes.pop()
            # Beside the transformer there may be a projection, one level up.
            above = prefix.removesuffix("transformer.")
            if prefix and all(k.startswith(above) for k in sd):
                return {k.removeprefix(prefix).removeprefix(above): v for k, v in sd.items()}
        if prefixes:
            break
    return sd


def _t5_name(tensors: Mapping[str, Tensor]) -> str | None:
    """T5 1.1 XXL, Pile-T5 XL and UMT5 XXL (its own vocabulary). The first T5 (not gated) serves other families."""
    if "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" not in tensors:
        return None
    vocabulary, width = tensors["shared.weight"].shape
    if vocabulary > T5_VOCABULARY:
        return "umt5xxl" if width == 4096 else None
    return _T5_NAMES.get(width)


def text_side(names: Sequence[str], kind: str) -> ClipTarget | None:
    """What a set of encoders is used as, for the chosen type (a name of `comfy.sd.CLIPType` in small letters); None
    where nothing known here uses the set so."""
    found = frozenset(names)
    if len(found) != len(names):
        return None
    if kind == "sd3" and found <= {"clip_l", "clip_g", "t5xxl"}:
        return SD3
    if (kind == "hidream" and found <= HIDREAM_PARTS) or found == HIDREAM_PARTS:
        return HIDREAM
    if len(found) == 1:
        return _single(next(iter(found)), kind)
    if found == {"clip_l", "clip_g", "t5xxl"}:
        return SD3
    if found == {"clip_l", "t5xxl"} and kind == "flux":
        return FLUX
    if found == {"clip_l", "clip_g"} and kind not in _OWN_PAIRS:
        return SDXL
    return None


HIDREAM_PARTS = frozenset({"clip_l", "clip_g", "t5xxl", "llama"})

# Types whose pairs of encoders are their own.
_OWN_PAIRS = {
    *("flux", "hunyuan_dit", "hunyuan_video", "hunyuan_video_15", "hunyuan_image", "hidream", "ace"),
    *("kandinsky5", "kandinsky5_image", "ltxv", "newbie"),
}


def _single(name: str, kind: str) -> ClipTarget | None:
    if name == "clip_g" and kind == "stable_cascade":
        return None
    if name == "t5xxl":
        if kind in ("wan", "cogvideox"):
            return None
        return {"pixart": PIXART, "chroma": CHROMA, "ltxv": LTXV}.get(kind, MOCHI)
    if name in _OTHER_USES and kind in _OTHER_USES[name]:
        return _OTHER_USES[name][kind]
    return _ALONE.get(name)


_ALONE = {
    "clip_l": SD1,
    "clip_g": REFINER,
    "clip_h": SD2,
    "pile_t5xl": AURAFLOW,
    "umt5xxl": WAN,
    "gemma2_2b": LUMINA2,
    "llama": HIDREAM,
    "mistral3_24b": FLUX2,
    "qwen25_7b": QWEN_IMAGE,
    "qwen3_4b": ZIMAGE,
    "qwen3_8b": KLEIN_8B,
}
# Types that use an encoder otherwise; None: not known here.
_OTHER_USES: dict[str, dict[str, ClipTarget | None]] = {
    "gemma2_2b": {"pixeldit": None},
    "qwen25_7b": {"hunyuan_image": None, "longcat_image": None},
    "qwen3_4b": {"flux": KLEIN, "flux2": KLEIN},
    "qwen3_8b": {"ideogram4": None},
}
