"""Makes tests/data/models/addons/gligen.safetensors: what diffusers' parts of GLIGEN put out.

Not a test. Run with the diffusers library (recorded with 0.42.1) in the path: `python -m tests.addons.record_gligen`.
Weights and inputs are drawn by `tests.addons.transformer_controls.drawn`, so that only outputs are stored.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file

from tests.addons.transformer_controls import drawn, random
from tests.networks.golden import DATA

FILE = DATA / "addons" / "gligen.safetensors"
BOXES = torch.tensor([[[0.1, 0.2, 0.6, 0.9], [0.5, 0.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0]]])


def main() -> None:
    from diffusers.models.attention import GatedSelfAttentionDense
    from diffusers.models.embeddings import GLIGENTextBoundingboxProjection

    net = GLIGENTextBoundingboxProjection(24, 768)
    fuser = GatedSelfAttentionDense(32, 768, 8, 4)
    shapes = {}
    for prefix, module in (("position_net.", net), ("fuser.", fuser)):
        own = {prefix + k: list(v.shape) for k, v in module.state_dict().items()}
        shapes.update(own)
        module.load_state_dict({k.removeprefix(prefix): v for k, v in drawn(own).items()})
    objects = net(BOXES, torch.tensor([[1.0, 1.0, 0.0]]), positive_embeddings=random("texts", 1, 3, 24))
    out = fuser(random("x", 1, 6, 32), objects)
    save_file({"objects": objects, "out": out}, FILE, metadata={"shapes": json.dumps(shapes), "made by": "diffusers"})
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
