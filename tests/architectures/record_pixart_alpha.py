"""Makes tests/data/models/pixart_alpha.safetensors: what diffusers' PixArt-alpha puts out.

Not a test. Run with the diffusers library (recorded with 0.42.1) in the path: `python -m
tests.architectures.record_pixart_alpha`. Weights and inputs are drawn, so that only outputs are stored.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file

from tests.addons.transformer_controls import drawn, random
from tests.networks.golden import DATA

FILE = DATA / "pixart_alpha.safetensors"
CONFIG = {
    "num_attention_heads": 16,
    "attention_head_dim": 3,
    "num_layers": 2,
    "cross_attention_dim": 48,
    "sample_size": 64,
    "caption_channels": 24,
    "use_additional_conditions": True,
}
# height, width and their quotient, of two pictures
SIZES = torch.tensor([[512.0, 768.0], [640.0, 384.0]])
RATIOS = torch.tensor([[0.75], [1.5]])
EVERY = 8


def inputs() -> dict[str, torch.Tensor]:
    return {
        "x": random("x", 2, 4, 64, 64),
        "timesteps": torch.tensor([700.0, 31.0]),
        "context": random("context", 2, 5, 24),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
    }


def main() -> None:
    from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel

    net = PixArtTransformer2DModel(**CONFIG).eval()
    shapes = {k: list(v.shape) for k, v in net.state_dict().items() if k != "pos_embed.pos_embed"}
    net.load_state_dict(drawn(shapes), strict=False)
    given = inputs()
    (out,) = net(
        given["x"],
        encoder_hidden_states=given["context"],
        timestep=given["timesteps"],
        encoder_attention_mask=given["attention_mask"],
        added_cond_kwargs={"resolution": SIZES, "aspect_ratio": RATIOS},
        return_dict=False,
    )
    kept = out[:, :4, ::EVERY, ::EVERY].contiguous()
    save_file({"out": kept}, FILE, metadata={"shapes": json.dumps(shapes), "made by": "diffusers"})
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
