"""The dimensions of the small model. The networks themselves are the server's own, from `comfy`."""

from __future__ import annotations

from pathlib import Path

from comfy.models.unet import UNetConfig, UNetModel
from comfy.text_encoders.clip import CLIPTextConfig, CLIPTextModel
from comfy.vae.autoencoder_kl import AutoencoderConfig, AutoencoderKL

LATENT_SCALE = 0.18215  # SD1's latent format: what the U-Net sees is latents times this
VOCABULARY, TOKENS = 49408, 77  # CLIP's, whole
WIDTH = 48  # of the text encoder, hence of the context
START_TOKEN, END_TOKEN = 49406, 49407  # SD1 pads with the end token

WORK = Path(__file__).parent / "work"
VAE_FILE = WORK / "vae.safetensors"
STATE_FILE = WORK / "unet_state.pt"
POOL_FILE = WORK / "pool.safetensors"
CLIP_FILE = WORK / "clip.safetensors"

VAE_CONFIG = AutoencoderConfig(ch=64, ch_mult=(1, 1, 1, 1), num_res_blocks=1, z_channels=4, embed_dim=4)

# Attention, and with it the text, from 8 x 8 down: at 16 x 16 it would cost more than all the rest together.
# The first convolution has 32 channels, which keeps the time embedding small; every level has 64, see `init` for why.
UNET_CONFIG = UNetConfig(
    in_channels=4,
    out_channels=4,
    model_channels=32,
    channel_mult=(2, 2, 2),
    num_res_blocks=(1, 1, 1),
    transformer_depth=(0, 1, 1),
    transformer_depth_middle=1,
    transformer_depth_output=(0, 0, 1, 1, 1, 1),
    context_dim=WIDTH,
    num_heads=8,
    num_head_channels=-1,
    use_linear_in_transformer=False,
)


def build_vae() -> AutoencoderKL:
    return AutoencoderKL(VAE_CONFIG)


def build_unet() -> UNetModel:
    return UNetModel(UNET_CONFIG)


def build_clip(vocabulary: int = VOCABULARY) -> CLIPTextModel:
    """The text encoder; `vocabulary` rows, as many as a training needs."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocabulary,
            max_position_embeddings=TOKENS,
            hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=1,
        )
    )
