"""Writes the checkpoint: float16, with the tensor names of a Stable Diffusion 1 file.

    python -m tools.tiny_model.export models/checkpoints/darkroom-tiny.safetensors

puts together the saved state of `train_unet` and the autoencoder as they are now.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.tiny_model.networks import STATE_FILE, TOKENS, VAE_FILE, VOCABULARY, WIDTH
from tools.tiny_model.shapes import COLOURS, SHAPES

UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
CLIP_PREFIX = "cond_stage_model.transformer."
TOKEN_TABLE = "text_model.embeddings.token_embedding.weight"
UNTRAINED_STD = 0.02  # as the trained rows started, so that an unknown word is a weak one

TITLE = "Darkroom tiny"
LICENCE = "Apache-2.0"


def token_table(trained: Tensor, rows: Sequence[int], seed: int) -> Tensor:
    """CLIP's whole token table [49408, width] with the trained rows in their places."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCABULARY, trained.shape[1], generator=generator) * UNTRAINED_STD
    table[torch.tensor(rows)] = trained
    return table


def metadata(facts: Mapping[str, str]) -> dict[str, str]:
    """What the file's header says about it."""
    return {
        "modelspec.title": TITLE,
        "modelspec.architecture": "stable-diffusion-v1",
        "modelspec.license": LICENCE,
        "modelspec.resolution": "128x128",
        "modelspec.prediction_type": "epsilon",
        "modelspec.description": "Coloured shapes on plain backgrounds; trained on drawn pictures only.",
        "format": "pt",
        "darkroom.colours": ", ".join(COLOURS),
        "darkroom.shapes": ", ".join(SHAPES),
        "darkroom.training": json.dumps(dict(facts), sort_keys=True),
    }


def checkpoint(
    trained: Mapping[str, Tensor], rows: Sequence[int], vae: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """State dict of the file. `trained` has parameters of `train_unet.Model` (`unet.*`, `clip.*`), the token table
    being that of `rows` only; `vae` those of the autoencoder."""
    out: dict[str, Tensor] = {}
    for name, value in trained.items():
        part, name = name.split(".", 1)
        if name == TOKEN_TABLE:
            value = token_table(value, rows, seed)
        out[{"unet": UNET_PREFIX, "clip": CLIP_PREFIX}[part] + name] = value
    out |= {VAE_PREFIX + name: value for name, value in vae.items()}
    out = {name: value.to(torch.float16).contiguous() for name, value in out.items()}
    assert out[CLIP_PREFIX + TOKEN_TABLE].shape == (VOCABULARY, WIDTH)
    out[CLIP_PREFIX + "text_model.embeddings.position_ids"] = torch.arange(TOKENS)[None]
    return out


def export(
    trained: Mapping[str, Tensor],
    rows: Sequence[int],
    vae: Mapping[str, Tensor],
    path: Path,
    facts: Mapping[str, str],
    seed: int,
) -> None:
    """Write the checkpoint, in one piece or not at all. `facts` about the training go into the header."""
    partial = path.with_suffix(".partial")
    save_file(checkpoint(trained, rows, vae, seed), partial, metadata(facts))
    partial.chmod(0o644)
    os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    arguments = parser.parse_args()
    state = torch.load(STATE_FILE, weights_only=True)
    export(
        state["average"], state["rows"], load_file(VAE_FILE), arguments.checkpoint, state["facts"], seed=state["seed"]
    )


if __name__ == "__main__":
    main()
