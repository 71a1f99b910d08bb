"""Small complete checkpoints, put together from the recorded networks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.networks.golden import DATA, Golden

CLIP_VOCABULARY = 49408


def parts(unet: str = "unet_sd1") -> dict[str, dict[str, torch.Tensor]]:
    """Tensors of UNet, VAE and text encoder, named as in a checkpoint."""
    clip = {k: v for k, v in Golden("clip_l").weights.items() if k.startswith("cond_stage_model.")}
    table = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    # The recorded vocabulary is too short for real prompts.
    rows = torch.randn(CLIP_VOCABULARY, clip[table].shape[1], generator=torch.Generator().manual_seed(0)) * 0.1
    clip[table] = rows
    return {"unet": Golden(unet).weights, "vae": Golden("vae_kl4").weights, "clip": clip}


def write(path: Path, *names: str, dtype: torch.dtype = torch.float16, unet: str = "unet_sd1") -> str:
    """A checkpoint with the named parts (default: all)."""
    tensors = {}
    for name, part in parts(unet).items():
        if not names or name in names:
            tensors.update({k: v.to(dtype).contiguous() for k, v in part.items()})
    save_file(tensors, path)
    return str(path)


def key_map(name: str, dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    """The tensors of a published checkpoint by name and shape, without values."""
    shapes = json.loads(gzip.decompress((DATA / "keys" / f"{name}.json.gz").read_bytes()))
    return {k: torch.empty(shape, dtype=dtype, device="meta") for k, shape in shapes.items()}
