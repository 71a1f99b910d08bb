"""PixArt-alpha against what diffusers' network puts out; how its files are recognised, and what it is told."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open

import comfy.sd
from comfy.model_sampling import ModelType
from tests.addons.transformer_controls import drawn
from tests.architectures.record_pixart_alpha import EVERY, FILE, RATIOS, SIZES, inputs
from tests.families.models import conds
from tests.networks.golden import LIMIT, error

with safe_open(FILE, "pt") as f:
    OUT = f.get_tensor("out")
    SHAPES = json.loads(f.metadata()["shapes"])


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model():
    # Published files have a table for dropped captions, which diffusers keeps elsewhere.
    sd = {**drawn(SHAPES), "caption_projection.y_embedding": torch.zeros(120, 24)}
    return comfy.sd.load_diffusion_model_state_dict(sd).model


def test_output_is_that_of_diffusers(model):
    out = model.diffusion_model(**inputs(), c_size=SIZES, c_ar=RATIOS)
    assert error(out[:, :, ::EVERY, ::EVERY], OUT) < LIMIT


def test_without_a_size_the_latents_own_is_told(model):
    given = inputs()
    own = model.diffusion_model(**given)
    told = model.diffusion_model(**given, c_size=torch.tensor([[512.0, 512.0]]), c_ar=torch.tensor([[1.0]]))
    assert torch.equal(own, told)


def test_family(model):
    assert type(model).__name__ == "PixArtAlpha" and model.model_type == ModelType.EPS
    assert type(model.latent_format).__name__ == "SD15"
    made = conds(model, cross_attn=torch.zeros(1, 5, 24), width=768, height=512)
    assert made["c_size"].tolist() == [[512.0, 768.0]] and made["c_ar"].item() == pytest.approx(512 / 768)
    assert "c_size" not in conds(model, cross_attn=torch.zeros(1, 5, 24))
