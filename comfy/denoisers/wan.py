"""Wan 2.1 and 2.2: what goes beside the latent, pictures to look at, and frames that are known already."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import comfy.conds
import comfy.utils
from comfy.denoisers.transformer import Conds
from comfy.model_base import BaseModel, UnfitConditioning
from comfy.models.wan_camera import CELL

# Channels of the mask that tells which frames are given: the pixel frames of one latent frame.
MASK_CHANNELS = 4


class WAN21(BaseModel):
    """Wan 2.1, Wan 2.2 14B and their relatives. What goes beside the latent is told by the channels their network
    takes: nothing; latents of pictures or control videos; or these behind a mask."""

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        if (seen := kwargs.get("clip_vision_output")) is not None:
            out["clip_fea"] = comfy.conds.CONDRegular(seen.penultimate_hidden_states)
        if (frames := kwargs.get("time_dim_concat")) is not None:
            out["time_dim_concat"] = comfy.conds.CONDRegular(self.process_latent_in(frames))
        if latents := kwargs.get("reference_latents"):
            picture = self.process_latent_in(latents[-1])[:, :, 0]
            out["reference_latent"] = comfy.conds.CONDRegular(picture)
        return out

    def concat_cond(self, **kwargs: Any) -> Tensor | None:
        """Mask (1 = given) and latents [batch, extra channels, frames, height, width]; None where the network takes
        the latent alone. Raises UnfitConditioning for latents that have another number of frames or too few
        channels."""
        noise, device = kwargs["noise"], kwargs["device"]
        extra = self.diffusion_model.config.in_dim - noise.shape[1]
        if extra <= 0:
            return None
        image = kwargs.get("concat_latent_image")
        if image is None:
            return noise.new_zeros(noise.shape[0], extra, *noise.shape[2:], device=device)
        image = self._scaled(self._fitted(image.to(device), noise))
        if self.takes_mask(extra) and image.shape[1] != extra:
            mask = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
            image = self._with_mask(mask, image[:, : extra - MASK_CHANNELS], kwargs.get("concat_mask_index", 0), noise)
        if image.shape[1] != extra or image.shape[2] != noise.shape[2]:
            raise UnfitConditioning(
                f"{type(self.model_config).__name__} takes {extra} channels and {noise.shape[2]} frames beside its "
                f"latent; this conditioning brings {image.shape[1]} and {image.shape[2]}"
            )
        return image

    def takes_mask(self, extra: int) -> bool:
        """Whether some of the `extra` channels are the mask's: latents alone would come in whole."""
        return extra % self.latent_format.latent_channels == MASK_CHANNELS

    def _scaled(self, latents: Tensor) -> Tensor:
        """Latents side by side on the channel axis in the network's scale."""
        parts = latents.split(self.latent_format.latent_channels, dim=1)
        return torch.cat([self.process_latent_in(part) for part in parts], dim=1)

    def _with_mask(self, mask: Tensor | None, image: Tensor, place: int, noise: Tensor) -> Tensor:
        """The mask (of a conditioning: 1 = to be made) as the network sees it, put before channel `place`."""
        if mask is None:
            known = torch.zeros_like(image[:, :1]).expand(-1, MASK_CHANNELS, -1, -1, -1)
        else:
            mask = mask.to(image)
            if mask.shape[1] != MASK_CHANNELS:
                mask = mask.mean(dim=1, keepdim=True).expand(-1, MASK_CHANNELS, -1, -1, -1)
            known = self._fitted(1.0 - mask, noise)
            # Frames it says nothing about are to be made.
            known = F.pad(known, (0, 0, 0, 0, 0, max(0, noise.shape[2] - known.shape[2])))[:, :, : noise.shape[2]]
        return torch.cat([image[:, :place], known, image[:, place:]], dim=1)


class WAN21_Vace(WAN21):
    """VACE: videos to follow or to change, each with its mask and its strength."""

    CHANNELS, MASK = 32, 64  # of a video's two latents; of its mask

    def extra_conds(self, **kwargs: Any) -> Conds:
        """Raises UnfitConditioning for videos of another size than the latent."""
        out = super().extra_conds(**kwargs)
        noise, device = kwargs["noise"], kwargs["device"]
        videos, masks = kwargs.get("vace_frames"), kwargs.get("vace_mask")
        if videos is None:
            videos = [noise.new_zeros(noise.shape[0], self.CHANNELS, *noise.shape[2:])]
        if masks is None:
            masks = [noise.new_ones(noise.shape[0], self.MASK, *noise.shape[2:])] * len(videos)
        for video in videos:
            if video.shape[2:] != noise.shape[2:]:
                sizes = " and ".join("x".join(map(str, t.shape[2:])) for t in (video, noise))
                raise UnfitConditioning(f"VACE is shown a video of another size than its latent: {sizes} cells")
        shown = [torch.cat([self._scaled(v.to(device)), m.to(device, v.dtype)], dim=1) for v, m in zip(videos, masks)]
        out["vace_context"] = comfy.conds.CONDRegular(torch.stack(shown, dim=1))
        strengths = kwargs.get("vace_strength", [1.0] * len(videos))
        out["vace_strength"] = comfy.conds.CONDConstant(list(strengths))
        return out


class WAN21_Camera(WAN21):
    """Wan Fun Camera: a path of the camera, as the rays of the pixels."""

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        if (rays := kwargs.get("camera_conditions")) is not None:
            noise = kwargs["noise"]
            size = (noise.shape[2], *(n * CELL for n in noise.shape[3:]))
            if rays.shape[2:] != size:
                sizes = " instead of ".join("x".join(map(str, s)) for s in (rays.shape[2:], size))
                raise UnfitConditioning(f"the path of the camera is for another size of video: {sizes}")
            out["camera_conditions"] = comfy.conds.CONDRegular(rays)
        return out


class WAN22(WAN21):
    """Wan 2.2 5B: frames that are given are in the latent itself, free of noise, and at timestep 0."""

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        if (mask := kwargs.get("denoise_mask")) is not None:
            out["denoise_mask"] = comfy.conds.CONDRegular(mask)
        return out

    def process_timestep(self, timestep: Tensor, denoise_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Of each frame [batch, frames]: as much of it as the mask says is to be made."""
        if denoise_mask is None:
            return timestep
        return denoise_mask.float().mean(dim=(1, 3, 4)) * timestep[:, None]

    def scale_latent_inpaint(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, **kwargs: Any) -> Tensor:
        return latent_image
