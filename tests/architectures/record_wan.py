"""Makes tests/data/models/wan_pictures.safetensors: what diffusers' networks of Wan put out that look at pictures.

Not a test. Run with the diffusers library (recorded with 0.42.1) in the path: `python -m
tests.architectures.record_wan`. Weights and inputs are drawn, so that only outputs are stored.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.addons.transformer_controls import drawn, random
from tests.networks.golden import DATA

FILE = DATA / "wan_pictures.safetensors"
PICTURE_TOKENS, WORDS = 5, 512  # diffusers takes the last 512 tokens for the text
_SHAPE = {
    **{"num_attention_heads": 2, "attention_head_dim": 16, "text_dim": 12, "freq_dim": 16, "ffn_dim": 40},
    **{"num_layers": 4, "image_dim": 20, "added_kv_proj_dim": 32},
}
# name -> arguments of diffusers' class
NETS: dict[str, dict[str, Any]] = {
    "picture": {**_SHAPE, "in_channels": 36},
    "first_last": {**_SHAPE, "in_channels": 36, "pos_embed_seq_len": 2 * PICTURE_TOKENS},
    "vace": {**_SHAPE, "image_dim": None, "added_kv_proj_dim": None, "vace_layers": [0, 2]},
}
VACE_STRENGTH = 0.7

# Patterns of diffusers' names and what the published files call it.
_NAMES = [
    (r"condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
    (r"condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
    (r"condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
    (r"condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
    (r"condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
    (r"condition_embedder\.image_embedder\.pos_embed", "img_emb.emb_pos"),
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.", ".cross_attn."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".o."),
    (r"\.add_([kv])_proj\.", r".\1_img."),
    (r"\.norm_added_k\.", ".norm_k_img."),
    (r"blocks\.(\d+)\.norm2\.", r"blocks.\1.norm3."),
    (r"\.ffn\.net\.0\.proj\.", ".ffn.0."),
    (r"\.ffn\.net\.2\.", ".ffn.2."),
    (r"\.proj_in\.", ".before_proj."),
    (r"\.proj_out\.", ".after_proj."),
    (r"^proj_out\.", "head.head."),
    (r"^scale_shift_table", "head.modulation"),
    (r"\.scale_shift_table", ".modulation"),
]


def published_name(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def weights(shapes: dict) -> dict[str, Tensor]:
    """Under diffusers' names; norms near 1."""
    return {k: v + 1.0 if re.search(r"norm\w*\.weight$", k) else v * 2.0 for k, v in drawn(shapes).items()}


def inputs(name: str) -> dict[str, Tensor]:
    config = NETS[name]
    given = {
        "x": random("x", 1, config.get("in_channels", 16), 2, 4, 6),
        "timesteps": torch.tensor([600.0]),
        "context": random("context", 1, WORDS, 12),
    }
    pictures = {"picture": 1, "first_last": 2}.get(name)
    if pictures:
        given["clip_fea"] = random("pictures", 1, pictures * PICTURE_TOKENS, 20)
    if name == "vace":
        given["shown"] = random("shown", 1, 96, 2, 4, 6)
    return given


def main() -> None:
    from diffusers import WanTransformer3DModel, WanVACETransformer3DModel

    out, shapes = {}, {}
    for name, config in NETS.items():
        net = (WanVACETransformer3DModel if name == "vace" else WanTransformer3DModel)(**config).eval()
        shapes[name] = {k: list(v.shape) for k, v in net.state_dict().items()}
        net.load_state_dict(weights(shapes[name]))
        given = inputs(name)
        further: dict[str, Any] = {}
        if "clip_fea" in given:
            # One row for each picture.
            further["encoder_hidden_states_image"] = given["clip_fea"].unflatten(1, (-1, PICTURE_TOKENS)).flatten(0, 1)
        if "shown" in given:
            strengths = torch.full((len(config["vace_layers"]),), VACE_STRENGTH)
            further |= {"control_hidden_states": given["shown"], "control_hidden_states_scale": strengths}
        made = net(given["x"], given["timesteps"], given["context"], return_dict=False, **further)
        out[name] = made[0].contiguous()
    save_file(out, FILE, metadata={"shapes": json.dumps(shapes), "made by": "diffusers"})
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
