"""Wan Fun Camera: Wan that is told where the camera goes, by the rays of each pixel.

Source: VideoX-Fun (Apache-2.0).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import comfy.ops
from comfy.models import wan
from comfy.models.dit import count_blocks
from comfy.models.wan import Wan, WanConfig

# Pixels of a latent cell along a side.
CELL = 8


@dataclasses.dataclass(frozen=True)
class WanCameraConfig(WanConfig):
    """in_dim_control_adapter: channels of the rays; adapter_blocks: residual blocks on them."""

    model_type: str = "camera"
    in_dim_control_adapter: int = 24
    adapter_blocks: int = 1


def config_from_state_dict(sd: Mapping[str, Tensor], prefix: str = "", **overrides: Any) -> WanCameraConfig:
    """As of `comfy.models.wan`. Raises KeyError naming a missing tensor."""
    values = dataclasses.asdict(wan.config_from_state_dict(sd, prefix))
    values |= {
        # Wan 2.1's takes the picture's latent alone, Wan 2.2's a mask with it.
        "model_type": "camera" if values["in_dim"] == 2 * values["out_dim"] else "camera_2.2",
        "in_dim_control_adapter": sd[prefix + "control_adapter.conv.weight"].shape[1] // CELL**2,
        "adapter_blocks": count_blocks(sd, prefix + "control_adapter.residual_blocks.{}.conv1.weight"),
    }
    return WanCameraConfig(**{**values, **overrides})


class ResidualBlock(nn.Module):
    def __init__(self, width: int, operations, **factory):
        super().__init__()
        self.conv1 = operations.Conv2d(width, width, 3, padding=1, **factory)
        self.conv2 = operations.Conv2d(width, width, 3, padding=1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(x)))


class RayAdapter(nn.Module):
    """Rays of pixels [batch, channels, frames, height, width] to tokens on their grid."""

    def __init__(self, config: WanCameraConfig, operations, **factory):
        super().__init__()
        patch = config.patch_size[1:]
        channels = config.in_dim_control_adapter * CELL**2
        self.conv = operations.Conv2d(channels, config.dim, kernel_size=patch, stride=patch, **factory)
        self.residual_blocks = nn.Sequential(
            *(ResidualBlock(config.dim, operations, **factory) for _ in range(config.adapter_blocks))
        )

    def forward(self, rays: Tensor) -> Tensor:
        frames = F.pixel_unshuffle(rays.transpose(1, 2).flatten(0, 1), CELL)
        tokens = self.residual_blocks(self.conv(frames))
        return tokens.unflatten(0, (rays.shape[0], -1)).transpose(1, 2)


class WanCamera(Wan):
    """Wan that is told a path of the camera."""

    def __init__(
        self,
        config: WanCameraConfig,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        operations=comfy.ops.disable_weight_init,
    ):
        super().__init__(config, dtype, device, operations)
        self.control_adapter = RayAdapter(config, operations, dtype=dtype, device=device)

    def embedded_video(self, x: Tensor, camera_conditions: Tensor | None = None, **kwargs: Any) -> Tensor:
        """camera_conditions: [batch, in_dim_control_adapter, frames, 8 * height, 8 * width], the rays."""
        tokens = super().embedded_video(x)
        return tokens if camera_conditions is None else tokens + self.control_adapter(camera_conditions.to(x))
