"""Names that node packs import for families, encoders and tiny autoencoders."""

import importlib

import pytest
import torch
from safetensors.torch import load_file

from comfy.taesd.taesd import TAESD
from tests.networks.golden import DATA, LIMIT, error


@pytest.mark.parametrize(
    "module, names",
    [
        ("comfy.sd1_clip", "SD1ClipModel SDClipModel SDTokenizer escape_important load_embed token_weights"),
        ("comfy.sdxl_clip", "SDXLClipModel SDXLClipG SDXLRefinerClipModel SDXLTokenizer"),
        ("comfy.clip_vision", "ClipVisionModel Output clip_preprocess load load_clipvision_from_sd"),
        ("comfy.taesd.taesd", "TAESD Block Clamp conv"),
        ("comfy.supported_models", "SD15 SD20 SDXL SDXLRefiner SD3 Flux FluxSchnell AuraFlow Chroma HiDream models"),
        ("comfy.supported_models_base", "BASE ClipTarget"),
        (
            "comfy.model_base",
            "BaseModel SDXL SDXLRefiner SDXL_instructpix2pix SD3 Flux PixArt ModelType model_sampling",
        ),
        (
            "comfy.model_detection",
            "detect_unet_config model_config_from_unet model_config_from_unet_config unet_prefix_from_state_dict",
        ),
        ("comfy.sd", "CLIP VAE CLIPType StyleModel load_style_model load_clip load_diffusion_model load_unet"),
        ("comfy_extras.nodes_clip_sdxl", "CLIPTextEncodeSDXL CLIPTextEncodeSDXLRefiner"),
        ("comfy_extras.nodes_sd3", "EmptySD3LatentImage TripleCLIPLoader CLIPTextEncodeSD3"),
        ("comfy_extras.nodes_flux", "CLIPTextEncodeFlux FluxGuidance"),
        ("comfy_extras.nodes_model_advanced", "ModelSamplingDiscrete ModelSamplingContinuousEDM LCM"),
    ],
)
def test_names(module, names):
    import nodes  # noqa: F401  (puts the room of compatible names on the path)

    found = importlib.import_module(module)
    for name in names.split():
        assert hasattr(found, name), name


def test_tiny_autoencoder_from_its_files():
    recorded = load_file(DATA / "taesd.io.safetensors")
    tiny = TAESD(str(DATA / "taesd_encoder.safetensors"), str(DATA / "taesd_decoder.safetensors"))
    tiny.vae_scale.fill_(0.18215)
    pixels = tiny.decode(recorded["in.taesd.latent"])
    assert error(((pixels + 1) / 2).clamp(0, 1).movedim(1, -1), recorded["out.taesd.decode"]) < LIMIT
    latent = tiny.encode(recorded["in.pixels"].movedim(-1, 1) * 2 - 1)
    assert error(latent, recorded["out.taesd.encode"]) < LIMIT
    assert not any(p.requires_grad for p in tiny.parameters())


def test_tiny_autoencoder_without_files():
    tiny = TAESD(latent_channels=16)
    latent = tiny.encode(torch.zeros(1, 3, 16, 16))
    assert latent.shape == (1, 16, 2, 2) and tiny.decode(latent).shape == (1, 3, 16, 16)
