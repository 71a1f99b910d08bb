"""A few steps with a model of each kind, positive and negative prompt, as a sampler node runs them."""

import pytest
import torch

import comfy.sample
from comfy.model_patcher import ModelPatcher
from tests.families.models import family_model
from tests.networks.golden import Golden

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "name, pooled, options",
    [
        ("unet_sd2_v", None, {}),
        ("mmdit_sd3", 32, {}),
        ("flux_dev", 32, {"guidance": 2.0}),
        ("flux_kontext_ref", 32, {"reference_latents": [torch.full((1, 16, 4, 4), 0.5)]}),
        ("flux_fill", 32, {"concat_latent_image": torch.ones(1, 16, 8, 12), "concat_mask": torch.ones(1, 64, 96)}),
        ("flux2", None, {}),
        ("chroma", None, {}),
        ("auraflow", None, {}),
        ("qwen_image", None, {"attention_mask": torch.ones(1, 7)}),
    ],
)
def test_two_steps(name, pooled, options):
    golden = Golden(name)
    patcher = ModelPatcher(family_model(golden), CPU, CPU)
    latent = torch.zeros(1, *golden.inputs["x"].shape[1:])
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(1))

    def cond(seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randn(1, 7, golden.inputs["context"].shape[-1], generator=generator)
        vector = None if pooled is None else torch.randn(1, pooled, generator=generator)
        return [[tokens, {"pooled_output": vector, **options}]]

    def sample(positive, cfg):
        return comfy.sample.sample(
            patcher, noise, 2, cfg, "euler", "simple", positive, cond(2), latent, disable_pbar=True, seed=1
        )

    out = sample(cond(1), 4.0)
    assert out.shape == latent.shape and torch.isfinite(out).all()
    assert not torch.allclose(out, sample(cond(1), 1.0)) and not torch.allclose(out, sample(cond(3), 4.0))
