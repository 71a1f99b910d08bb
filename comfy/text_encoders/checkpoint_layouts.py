"""Where checkpoints keep their text encoders, and under which names the encoder models want them.

An encoder model names its weights `<encoder>.transformer.<name in the transformers library>`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple

from torch import Tensor

from comfy.text_encoders.open_clip import from_text_model, to_text_model


class EncoderPlace(NamedTuple):
    """An encoder (`clip_l`, `clip_g`, `clip_h`), what its keys in a checkpoint start with, and whether they are in
    open_clip's layout there (else below `transformer.`)."""

    name: str
    prefix: str
    open_clip: bool = False


# Parts of a CLIP file that are no weights of its text transformer.
_NO_WEIGHTS = ("position_ids", "logit_scale")
# The oldest checkpoints lack the level `text_model.` above these.
_TEXT_MODEL_PARTS = ("embeddings.", "encoder.", "final_layer_norm.")


def take_encoders(sd: MutableMapping[str, Tensor], places: Sequence[EncoderPlace]) -> dict[str, Tensor]:
    """Take the encoders' tensors out of a checkpoint; under the names their model has."""
    out: dict[str, Tensor] = {}
    for place in places:
        own = {k[len(place.prefix) :]: sd.pop(k) for k in [k for k in sd if k.startswith(place.prefix)]}
        if place.open_clip:
            own = {f"transformer.{k}": v for k, v in to_text_model(own).items()}
        out.update({f"{place.name}.{k}": v for k, v in _plain(own, place.name).items()})
    return out


def _plain(sd: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Tensors of a CLIP encoder without its position ids, below `transformer.text_model.`."""
    out = {}
    for key, value in sd.items():
        key = key.removeprefix(f"{name}.")
        if key.endswith(_NO_WEIGHTS):
            continue
        if key.startswith(tuple(f"transformer.{part}" for part in _TEXT_MODEL_PARTS)):
            key = key.replace("transformer.", "transformer.text_model.", 1)
        out[key] = value
    return out


def model_to_checkpoint(sd: Mapping[str, Tensor], places: Sequence[EncoderPlace]) -> dict[str, Tensor]:
    """The inverse of `take_encoders`, for writing."""
    out: dict[str, Tensor] = {}
    for place in places:
        prefix = f"{place.name}."
        own = {k[len(prefix) :]: v for k, v in sd.items() if k.startswith(prefix)}
        if place.open_clip:
            own = from_text_model({k.removeprefix("transformer."): v for k, v in own.items()})
        out.update({place.prefix + k: v for k, v in own.items()})
    return out


def separate_encoders(sd: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Encoders that a file has under their models' names (`clip_l.transformer...`), without what is no weight."""
    return {k: v for k, v in sd.items() if not k.endswith(_NO_WEIGHTS)}
