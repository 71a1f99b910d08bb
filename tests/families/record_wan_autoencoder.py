"""Makes tests/data/models/wan_autoencoder.safetensors: what diffusers' autoencoder of Wan 2.1 puts out.

Not a test. Run with the diffusers library (recorded with 0.42.1) in the path: `python -m
tests.families.record_wan_autoencoder`. Weights and inputs are drawn, so that only outputs are stored.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file

from tests.addons.transformer_controls import drawn, random
from tests.networks.golden import DATA

FILE = DATA / "wan_autoencoder.safetensors"
FRAMES, LATENT_FRAMES = 5, 2


def pixels() -> torch.Tensor:
    """A video [frames, height, width, 3] in 0..1."""
    return random("video", FRAMES, 16, 24, 3).sigmoid()


def latent() -> torch.Tensor:
    return random("latent", 1, 16, LATENT_FRAMES, 2, 3)


def weights(shapes: dict) -> dict[str, torch.Tensor]:
    """Norms near 1, so that something is left at the end."""
    return {k: v + 1.0 if k.endswith("gamma") else v * 2.0 for k, v in drawn(shapes).items()}


def main() -> None:
    from diffusers import AutoencoderKLWan

    net = AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2).eval()
    shapes = {k: list(v.shape) for k, v in net.state_dict().items()}
    net.load_state_dict(weights(shapes))
    video = pixels().movedim(-1, 0).unsqueeze(0) * 2 - 1
    out = {
        "encode_video": net.encode(video).latent_dist.mean,
        "encode_image": net.encode(video[:, :, :1]).latent_dist.mean,
        "decode_video": net.decode(latent()).sample,
        "decode_image": net.decode(latent()[:, :, :1]).sample,
    }
    out = {k: v.contiguous() for k, v in out.items()}
    save_file(out, FILE, metadata={"shapes": json.dumps(shapes), "made by": "diffusers"})
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
