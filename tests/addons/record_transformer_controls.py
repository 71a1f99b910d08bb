"""Makes tests/data/models/addons/transformer_controls.safetensors: what diffusers' ControlNets of transformers put out.

Not a test. Run with the diffusers library (recorded with 0.42.1) in the path: `python -m
tests.addons.record_transformer_controls`. Weights and inputs are drawn by `drawn`, so that only outputs are stored.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.addons.transformer_controls import FILE, NETS, drawn, inputs


def main() -> None:
    from diffusers.models.controlnets.controlnet_flux import FluxControlNetModel
    from diffusers.models.controlnets.controlnet_qwenimage import QwenImageControlNetModel
    from diffusers.models.controlnets.controlnet_sd3 import SD3ControlNetModel
    from diffusers.models.embeddings import PatchEmbed

    classes = {"flux": FluxControlNetModel, "sd3": SD3ControlNetModel, "qwen": QwenImageControlNetModel}
    out: dict[str, Tensor] = {}
    shapes = {}
    for name, (family, config) in NETS.items():
        net = classes[family](**config).eval()
        own = {k: v for k, v in net.state_dict().items() if not k.endswith("pos_embed.pos_embed")}
        shapes[name] = {k: list(v.shape) for k, v in own.items()}
        net.load_state_dict(drawn(shapes[name]), strict=False)
        given = inputs(name)
        common = {"encoder_hidden_states": given["context"], "timestep": given["timesteps"]}
        if family == "flux":
            ids = torch.cartesian_prod(torch.arange(given["rows"]), torch.arange(given["columns"]))
            made = net(
                given["tokens"],
                given["hint_pixels"] if "hint_pixels" in given else given["hint_tokens"],
                controlnet_mode=given.get("mode"),
                pooled_projections=given["y"],
                guidance=given["guidance"],
                img_ids=torch.cat([torch.zeros(len(ids), 1), ids], dim=1),
                txt_ids=torch.zeros(given["context"].shape[1], 3),
                return_dict=False,
                **common,
            )
            tensors = [*made[0], *(made[1] or [])]
        elif family == "qwen":
            sizes = [[(1, given["rows"], given["columns"])]]
            tensors = net(given["tokens"], given["hint_tokens"], img_shapes=sizes, return_dict=False, **common)
        else:
            x = given["x"]
            if net.pos_embed is None:
                width = net.inner_dim
                embed = PatchEmbed(8, 8, 2, x.shape[1], width, pos_embed_max_size=8)
                embed.load_state_dict({f"proj.{k}": v for k, v in given["lent"].items()}, strict=False)
                embed.pos_embed = given["table"]
                x, common["encoder_hidden_states"] = embed(x), None
            else:
                net.pos_embed.pos_embed = given["table"]
            (tensors,) = net(x, given["hint"], pooled_projections=given["y"], return_dict=False, **common)
        out.update({f"{name}.{i}": tensor.contiguous() for i, tensor in enumerate(tensors)})
    save_file(out, FILE, metadata={"shapes": json.dumps(shapes), "made by": "diffusers"})
    sys.stdout.write(f"{len(out)} tensors, {FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
