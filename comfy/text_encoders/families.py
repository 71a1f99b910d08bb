"""The text sides of the model families: tokenizer, encoder model, and what a set of encoder files makes.

A file is recognised by its tensors; which text side a set of files is for follows from the set and, where a set serves
several, from the type the user chose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from comfy.supported_models_base import ClipTarget
from comfy.text_encoders import flux, sd1, sd2, sd3, sdxl, t5_families
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
AURAFLOW = ClipTarget(t5_families.AuraT5Tokenizer, t5_families.AuraT5Model.build)


class EncoderFile(NamedTuple):
    """A recognised encoder file: name of the encoder (`clip_l`, `clip_g`, `clip_h`, `t5xxl`, `pile_t5xl`) and its
    tensors as the encoder models name them."""

    name: str
    tensors: dict[str, Tensor]


# Width of the token table -> encoder.
_CLIP_WIDTHS = {1280: "clip_g", 1024: "clip_h"}
_T5_NAMES = {4096: "t5xxl", 2048: "pile_t5xl"}
T5_VOCABULARY = 32128
_NO_WEIGHTS = ("position_ids", "logit_scale", "spiece_model")
# Other encoders that files of these projects hold, by a tensor only they have; for telling what cannot be used.
_T5 = "encoder.block.0.layer.0.SelfAttention.q.weight"


def recognise(sd: Mapping[str, Tensor]) -> EncoderFile | None:
    """The encoder that a file holds; None if it is none known here."""
    tensors = {k: v for k, v in sd.items() if not k.endswith(_NO_WEIGHTS)}
    # Encoders saved out of a checkpoint keep the level above.
    if f"transformer.{_T5}" in tensors or "transformer.text_model.embeddings.token_embedding.weight" in tensors:
        tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
    if is_open_clip(tensors):
        tensors = to_text_model(tensors)
    table = tensors.get("text_model.embeddings.token_embedding.weight")
    if table is not None:
        # ViT-L, or a smaller transformer of its kind.
        name = _CLIP_WIDTHS.get(table.shape[1], "clip_l" if table.shape[1] <= 768 else None)
    elif _T5 in tensors:
        tensors.pop("encoder.embed_tokens.weight", None)  # the shared table once more
        name = _t5_name(tensors)
    else:
        return None
    if name is None:
        return None
    return EncoderFile(name, {f"{name}.transformer.{k}": v for k, v in tensors.items()})


def _t5_name(tensors: Mapping[str, Tensor]) -> str | None:
    """T5 1.1 XXL and Pile-T5 XL. The first T5 (not gated) and UMT5 (its own vocabulary) serve other families."""
    if "encoder.block.0.layer.1.DenseReluDense.wi_0.weight" not in tensors:
        return None
    vocabulary, width = tensors["shared.weight"].shape
    return _T5_NAMES.get(width) if vocabulary <= T5_VOCABULARY else None


def text_side(names: Sequence[str], kind: str) -> ClipTarget | None:
    """What a set of encoders is used as, for the chosen type (a name of `comfy.sd.CLIPType` in small letters); None
    where nothing known here uses the set so."""
    found = frozenset(names)
    if len(found) != len(names):
        return None
    if kind == "sd3" and found <= {"clip_l", "clip_g", "t5xxl"}:
        return SD3
    if len(found) == 1:
        return _single(next(iter(found)), kind)
    if found == {"clip_l", "clip_g", "t5xxl"}:
        return SD3
    if found == {"clip_l", "t5xxl"} and kind == "flux":
        return FLUX
    if found == {"clip_l", "clip_g"} and kind not in _OWN_PAIRS:
        return SDXL
    return None


# Types whose pairs of encoders are their own.
_OWN_PAIRS = {
    *("flux", "hunyuan_dit", "hunyuan_video", "hunyuan_video_15", "hunyuan_image", "hidream", "ace"),
    *("kandinsky5", "kandinsky5_image", "ltxv", "newbie"),
}


def _single(name: str, kind: str) -> ClipTarget | None:
    if kind == "hidream" and name in ("clip_l", "clip_g", "t5xxl"):
        return None
    if name == "clip_g" and kind == "stable_cascade":
        return None
    if name == "t5xxl":
        if kind in ("wan", "cogvideox"):
            return None
        return {"pixart": PIXART, "chroma": CHROMA, "ltxv": LTXV}.get(kind, MOCHI)
    return {"clip_l": SD1, "clip_g": REFINER, "clip_h": SD2, "pile_t5xl": AURAFLOW}.get(name)
