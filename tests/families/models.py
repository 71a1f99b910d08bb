"""A recorded network inside its family's model."""

from __future__ import annotations

from typing import Any

import torch

from comfy import model_detection
from comfy.model_base import BaseModel
from tests.networks.golden import Golden

# What shapes of the recorded, narrow networks do not tell.
HEADS_AND_AXES = ("num_head_channels", "num_heads", "n_heads", "axes_dim", "axes_dims", "axes_dims_rope", "theta")
MORE = ("attention_head_dim", "num_attention_heads", "pe_interpolation", "llama_layers", "num_activated_experts")


def family_model(golden: Golden) -> BaseModel:
    """Detected as a file is, except for the values above; with the recorded weights, in float32."""
    unet_config = model_detection.detect_unet_config(golden.weights, golden.prefix)
    recorded = golden.config["unet_config"]
    unet_config.update({key: recorded[key] for key in (*HEADS_AND_AXES, *MORE) if key in recorded})
    config = model_detection.model_config_from_unet_config(unet_config, golden.weights)
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model(golden.weights, golden.prefix, device="meta")
    return model.load_model_weights(dict(golden.weights), golden.prefix)


def conds(model: BaseModel, **conditioning: Any) -> dict[str, Any]:
    """What `extra_conds` makes of a conditioning entry for two 8 x 12 latents, by name."""
    channels = model.latent_format.latent_channels
    noise = torch.zeros(2, channels, *([1] if model.latent_format.latent_dimensions == 3 else []), 8, 12)
    made = model.extra_conds(noise=noise, device=torch.device("cpu"), **conditioning)
    return {name: cond.cond for name, cond in made.items()}
