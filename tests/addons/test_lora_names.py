"""Names in LoRA files against the tables recorded for real models."""

import gzip
import json

import pytest
import torch

from comfy.lora_names import clip_key_map, unet_key_map
from comfy.models.diffusers_names import diffusers_names
from tests.networks.golden import DATA

# table of names -> key map of the model's file; None: the model's own names are those the table points to
TABLES = {
    "sd15": "sd15",
    "sdxl": "sdxl_base",
    "sd3_medium": "sd3_medium",
    "flux_dev": "flux_dev",
    "auraflow": "auraflow",
    "pixart_sigma": "pixart_sigma_1024",
    "z_image": "z_image",
    "qwen_image": "qwen_image",
    "hunyuan_video": None,
    "ltxv": None,
    "wan21_t2v_1_3b": "wan21_t2v_1_3b",
}
MAPS = {
    "sd15_unet": "sd15",
    "sd21_unet": "sd21_v",
    "sdxl_unet": "sdxl_base",
    "flux_dev": "flux_dev",
    "sd3_medium": "sd3_medium",
    "sd35_large": "sd35_large",
    "auraflow": "auraflow",
    "pixart_sigma": "pixart_sigma_1024",
    "z_image": "z_image",
}
PREFIXES = ("model.diffusion_model.", "model.", "")


class Named:
    """Stands for a model: names and shapes are all that is asked for."""

    def __init__(self, shapes: dict):
        self.shapes = shapes

    def state_dict(self):
        return {name: torch.empty(shape, device="meta") for name, shape in self.shapes.items()}


def table(name: str) -> dict:
    return json.loads(gzip.decompress((DATA / "keys" / f"{name}.json.gz").read_bytes()))


def network_shapes(name: str) -> dict:
    shapes = table(name)
    prefix = next(p for p in PREFIXES if sum(k.startswith(p) for k in shapes) > 5)
    own = {k.removeprefix(prefix): v for k, v in shapes.items() if k.startswith(prefix)}
    # FLUX files call the norms' tensors `scale`, the network `weight`.
    return {k.removesuffix(".scale") + ".weight" if k.endswith("_norm.scale") else k: v for k, v in own.items()}


def target_of(place) -> str:
    return place["target"] if isinstance(place, dict) else place


def as_recorded(place, turned: str):
    if isinstance(place, str):
        return place
    part = None if place[1] is None else list(place[1])
    return {"slice": part, turned: len(place) > 2, "target": place[0]}


@pytest.mark.parametrize("name", TABLES)
def test_names_of_diffusion_models(name):
    expected = table(f"lora_names_{name}")
    if TABLES[name] is None:
        shapes = {target_of(place): (1,) for place in expected.values()}
    else:
        shapes = {f"diffusion_model.{k}": v for k, v in network_shapes(TABLES[name]).items()}
    got = {k: as_recorded(v, "has_function") for k, v in unet_key_map(Named(shapes)).items()}
    # The recorded tables also hold names for weights that the model does not have.
    expected = {k: v for k, v in expected.items() if target_of(v) in shapes}
    assert len(expected) > 500
    assert {k: got.get(k) for k in expected} == expected


@pytest.mark.parametrize("name", ["te_clip_l", "te_sdxl"])
def test_names_of_text_encoders(name):
    expected = table(f"lora_names_{name}")
    assert clip_key_map(Named(dict.fromkeys(expected.values(), (1,)))) == expected


def test_t5_is_counted_after_clip():
    t5 = "t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight"
    layer = "encoder_block_0_layer_0_SelfAttention_q"
    clip_l = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
    assert clip_key_map(Named({t5: (1,)}))[f"lora_te1_{layer}"] == t5
    assert clip_key_map(Named({t5: (1,), clip_l: (1,)}))[f"lora_te2_{layer}"] == t5


@pytest.mark.parametrize("name", MAPS)
def test_diffusers_names(name):
    shapes = network_shapes(MAPS[name])
    got = {k: as_recorded(v, "swap_halves") for k, v in diffusers_names(shapes).items()}
    expected = {k: v for k, v in table(f"map_{name}_diffusers").items() if target_of(v) in shapes}
    assert len(expected) > 300
    assert {k: got.get(k) for k in expected} == expected
