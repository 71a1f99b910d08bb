"""Makes tests/data/models/wan22_autoencoder.safetensors: what diffusers' autoencoder of Wan 2.2 puts out.

Not a test. Run with the diffusers library (recorded with 0.42.1) in the path: `python -m
tests.families.record_wan22_autoencoder`. Weights and inputs are drawn, so that only outputs are stored.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file

from tests.addons.transformer_controls import random
from tests.families.record_wan_autoencoder import weights
from tests.networks.golden import DATA

FILE = DATA / "wan22_autoencoder.safetensors"
CHANNELS = 6


def pixels() -> torch.Tensor:
    """A video [frames, height, width, 3] in 0..1."""
    return random("video", 5, 32, 16, 3).sigmoid()


def latent() -> torch.Tensor:
    return random("latent", 1, CHANNELS, 2, 2, 1)


def main() -> None:
    from diffusers import AutoencoderKLWan

    net = AutoencoderKLWan(
        base_dim=4,
        decoder_base_dim=6,
        z_dim=CHANNELS,
        num_res_blocks=1,
        in_channels=12,
        out_channels=12,
        is_residual=True,
        patch_size=2,
        scale_factor_spatial=16,
    ).eval()
    shapes = {k: list(v.shape) for k, v in net.state_dict().items()}
    net.load_state_dict(weights(shapes))
    video = pixels().movedim(-1, 0).unsqueeze(0) * 2 - 1
    out = {
        "encode_video": net.encode(video).latent_dist.mean,
        "encode_image": net.encode(video[:, :, :1]).latent_dist.mean,
        "decode_video": net.decode(latent()).sample,
        "decode_image": net.decode(latent()[:, :, :1]).sample,
    }
    save_file({k: v.contiguous() for k, v in out.items()}, FILE, metadata={"shapes": json.dumps(shapes)})
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
