"""Style tokens from three depths of SigLIP, for FLUX.1 to look at beside the words.

Source: Wu et al. 2025, "USO: Unified Style and Subject-Driven Generation" (arXiv 2508.18966).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

import comfy.ops

# Name of a depth in files, and its block counted from the last.
DEPTHS = {"high": -2, "mid": -11, "low": -20}


@dataclasses.dataclass(frozen=True)
class StyleProjectorConfig:
    """patches: tokens that SigLIP makes of a picture; tokens: what is made of them at each depth; in_width and width:
    of the two."""

    patches: int = 729
    tokens: int = 64
    in_width: int = 1152
    width: int = 3072


def config_from_state_dict(sd: Mapping[str, Tensor]) -> StyleProjectorConfig:
    """Raises KeyError naming a missing tensor."""
    tokens, patches = sd["high_embedding_linear.0.weight"].shape
    width, in_width = sd["high_projection.weight"].shape
    return StyleProjectorConfig(patches, tokens, in_width, width)


class StyleProjector(nn.Module):
    """For each depth: a linear layer over the picture's patches and SiLU, a norm, a linear layer to the width."""

    def __init__(
        self,
        config: StyleProjectorConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.manual_cast,
    ):
        super().__init__()
        factory = {"dtype": dtype, "device": device}
        self.config = config
        self.dtype = dtype
        for name in DEPTHS:
            mixing = nn.Sequential(operations.Linear(config.patches, config.tokens, **factory), nn.SiLU())
            setattr(self, f"{name}_embedding_linear", mixing)
            setattr(self, f"{name}_layer_norm", operations.LayerNorm(config.in_width, **factory))
            setattr(self, f"{name}_projection", operations.Linear(config.in_width, config.width, **factory))

    def forward(self, hidden: Tensor) -> Tensor:
        """Tokens [batch, 3 * tokens, width]. hidden: what comes out of SigLIP, [batch, blocks, patches, in_width]."""
        parts = []
        for name, block in DEPTHS.items():
            mixed = getattr(self, f"{name}_embedding_linear")(hidden[:, block].transpose(1, 2)).transpose(1, 2)
            parts.append(getattr(self, f"{name}_projection")(getattr(self, f"{name}_layer_norm")(mixed)))
        return torch.cat(parts, dim=1)
