"""Stand-ins for a VAE and a CLIP vision output, with the arithmetic the recordings were made with."""

from __future__ import annotations

from typing import Any

import torch


class StandInVAE:
    """encode() averages blocks of pixels: [N,H,W,C] -> [N,channels,H//s,W//s]; incomplete blocks are dropped.

    With dims 3 the N images are one video: frame 0 alone, then groups of `temporal` frames ->
    [1,channels,T,H//s,W//s]. Channel c = (mean of colour c % 3, less 0.5) * (1 + c / 16).
    """

    def __init__(self, spatial: int, temporal: int, channels: int, dims: int):
        self.spatial, self.temporal, self.latent_channels, self.dims = spatial, temporal, channels, dims

    def spacial_compression_encode(self) -> int:
        return self.spatial

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        s = self.spatial
        x = pixels[..., :3].float()
        n, h, w, _ = x.shape
        rows, columns = h // s, w // s
        blocks = x[:, : rows * s, : columns * s].reshape(n, rows, s, columns, s, 3).mean(dim=(2, 4))
        blocks = blocks.movedim(-1, 1)
        if self.dims == 3:
            t = self.temporal
            groups = [blocks[1 + i : 1 + i + t].mean(0, keepdim=True) for i in range(0, n - t, t)]
            blocks = torch.cat([blocks[:1], *groups])
        channel = torch.arange(self.latent_channels)
        latent = (blocks[:, channel % 3] - 0.5) * (1 + channel / 16).view(1, -1, 1, 1)
        return latent.movedim(0, 1).unsqueeze(0) if self.dims == 3 else latent


class Plain:
    """An object with the attributes of a dict."""

    def __init__(self, values: dict[str, Any]):
        self.__dict__.update(values)
