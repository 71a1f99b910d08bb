"""Autoencoder files in the layout of diffusers."""

import pytest
import torch

from comfy.vae.detection import detect
from comfy.vae.diffusers_layout import to_own_layout
from comfy.vae.vae import VAE
from tests.architectures.recorded import key_map
from tests.networks.golden import LIMIT, Golden, error


@pytest.mark.parametrize("name", ["vae_sd", "vae_sd3_flux"])
def test_names_of_the_published_files(name):
    own, other = key_map(name), key_map(f"{name}_diffusers")
    renamed = to_own_layout(other)
    prefix = next(k for k in own if k.endswith("encoder.conv_in.weight")).removesuffix("encoder.conv_in.weight")
    assert {prefix + k: v.shape for k, v in renamed.items()} == {k: v.shape for k, v in own.items()}
    found = detect(other)
    assert found.latent_channels == (4 if name == "vae_sd" else 16) and found.downscale == 8


@pytest.mark.parametrize("name", ["vae_kl4", "vae_kl16"])
def test_same_latents(name):
    golden = Golden(name)
    own = {k.removeprefix("first_stage_model."): v for k, v in golden.weights.items()}
    levels = 1 + max(int(k.split(".")[2]) for k in own if k.startswith("encoder.down."))
    vae = VAE(sd={_other(k, levels): v.flatten(1) if ".attn_1." in k and v.ndim == 4 else v for k, v in own.items()})
    assert error(vae.encode(golden.inputs["pixels"]), golden.out["encode"]) < LIMIT


def _other(name: str, levels: int) -> str:
    """The inverse, written down by hand."""
    half, *rest = name.split(".")
    if half not in ("encoder", "decoder"):
        return name
    if rest[0] in ("down", "up"):
        level = int(rest[1]) if rest[0] == "down" else levels - 1 - int(rest[1])
        place = f"{rest[0]}_blocks.{level}"
        if rest[2] == "block":
            tail = ".".join(rest[4:]).replace("nin_shortcut", "conv_shortcut")
            return f"{half}.{place}.resnets.{rest[3]}.{tail}"
        return f"{half}.{place}.{rest[2].replace('sample', 'samplers')}.0.{'.'.join(rest[3:])}"
    if rest[0] == "mid":
        names = {"norm": "group_norm", "q": "query", "k": "key", "v": "value", "proj_out": "proj_attn"}
        if rest[1] == "attn_1":
            return f"{half}.mid_block.attentions.0.{names[rest[2]]}.{rest[3]}"
        return f"{half}.mid_block.resnets.{int(rest[1][-1]) - 1}.{'.'.join(rest[2:])}"
    return name.replace("norm_out", "conv_norm_out")


def test_meta_tensors_stay_where_they_are():
    sd = {k: torch.empty(v.shape, device="meta") for k, v in key_map("vae_sd_diffusers").items()}
    assert all(v.is_meta for v in to_own_layout(sd).values())
