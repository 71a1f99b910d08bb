"""The x4 upscaler: detection, what it is told, and a run. No recording: shapes of the published model."""

from __future__ import annotations

import pytest
import torch

import comfy.sd
import nodes
from comfy.model_sampling import ModelType
from comfy.models import unet
from tests.addons.transformer_controls import drawn, random

CONFIG = unet.UNetConfig(
    in_channels=7,
    model_channels=32,
    channel_mult=(1, 2, 2, 4),
    num_res_blocks=(2, 2, 2, 2),
    transformer_depth=(0, 0, 1, 1, 1, 1, 1, 1),
    transformer_depth_output=(0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1),
    context_dim=128,
    use_linear_in_transformer=True,
    num_heads=8,
    label_count=1000,
    disable_self_attentions=(True, True, True, False),
)


@pytest.fixture(scope="module")
def patcher():
    shapes = {k: v.shape for k, v in unet.UNetModel(CONFIG, device="meta").state_dict().items()}
    sd = drawn(shapes)
    norms = {k: torch.ones_like(v) for k, v in sd.items() if v.ndim == 1 and k.endswith(".weight")}
    return comfy.sd.load_diffusion_model_state_dict({**sd, **norms})


def test_family(patcher):
    model = patcher.model
    assert type(model).__name__ == "SD_X4Upscaler" and model.model_type == ModelType.V_PREDICTION
    assert model.diffusion_model.config == CONFIG
    assert model.latent_format.scale_factor == 0.08333 and model.concat_keys == ()
    # Looks at the text instead of itself, but at the coarsest level.
    blocks = model.diffusion_model.input_blocks
    assert blocks[4][1].transformer_blocks[0].attn1.to_k.in_features == 128
    assert blocks[4][1].transformer_blocks[0].disable_self_attn
    assert not blocks[10][1].transformer_blocks[0].disable_self_attn
    assert not model.diffusion_model.middle_block[1].transformer_blocks[0].disable_self_attn


def conds_of(model, **values):
    made = model.extra_conds(noise=torch.zeros(2, 4, 8, 12), device=torch.device("cpu"), **values)
    return {name: cond.cond for name, cond in made.items()}


def test_picture_and_noise_level(patcher):
    model, picture = patcher.model, random("picture", 1, 3, 8, 12)
    plain = conds_of(model, concat_image=picture)
    assert torch.equal(plain["c_concat"], picture.expand(2, -1, -1, -1)) and plain["y"].tolist() == [0]
    noised = conds_of(model, concat_image=picture, noise_augmentation=0.5, seed=12)
    assert noised["y"].tolist() == [175]
    alpha = torch.cumprod(1 - torch.linspace(0.0001**0.5, 0.02**0.5, 1000, dtype=torch.float64) ** 2, 0)[175].float()
    noise = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(2))
    expected = alpha.sqrt() * picture + (1 - alpha).sqrt() * noise
    assert torch.allclose(noised["c_concat"], expected, atol=1e-6)
    assert not conds_of(model)["c_concat"].any()


def test_run(patcher):
    images = torch.rand(1, 8, 8, 3)
    text = [[random("text", 1, 7, 128), {}]]
    node = nodes.NODE_CLASS_MAPPINGS["SD_4XUpscale_Conditioning"]
    positive, negative, latent = node.execute(images, text, text, 4.0, 0.2).result
    assert latent["samples"].shape == (1, 4, 8, 8) and positive[0][1]["concat_image"].min() >= -1
    (out,) = nodes.common_ksampler(patcher, 1, 2, 2.0, "euler", "normal", positive, negative, latent)
    other = node.execute(1 - images, text, text, 4.0, 0.2).result
    (moved,) = nodes.common_ksampler(patcher, 1, 2, 2.0, "euler", "normal", *other)
    assert out["samples"].isfinite().all() and not torch.allclose(out["samples"], moved["samples"])
