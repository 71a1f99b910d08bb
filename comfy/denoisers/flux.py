"""FLUX.1 with its tools, FLUX.2 and Chroma: guidance as a number, pictures beside the latent or to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import comfy.conds
import comfy.utils
from comfy.denoisers.transformer import Conds, add_references
from comfy.model_base import BaseModel

# Guidance the distilled models get where a conditioning does not tell.
DEFAULT_GUIDANCE = 3.5
# Pixels per latent cell and side. FLUX.1 Fill sees the mask's pixels as channels of the cell.
CELL = 8


class Flux(BaseModel):
    """FLUX.1 dev, schnell and Kontext, and the tools that take a picture (Canny, Depth) or picture and mask (Fill)
    beside the latent: told apart by the channels their network takes."""

    default_guidance: float | None = DEFAULT_GUIDANCE

    def encode_adm(self, **kwargs: Any) -> Tensor | None:
        return kwargs.get("pooled_output")

    def extra_conds(self, **kwargs: Any) -> Conds:
        out = super().extra_conds(**kwargs)
        guidance = kwargs.get("guidance", self.default_guidance)
        if guidance is not None:
            out["guidance"] = comfy.conds.CONDRegular(torch.tensor([float(guidance)]))
        if (bias := kwargs.get("style_attention_bias")) is not None:
            image = self._image_tokens(kwargs["noise"], kwargs.get("reference_latents") or ())
            scores = torch.nn.functional.pad(bias.float(), (0, image))
            out["attention_mask"] = comfy.conds.CONDRegular(scores[:, None, None, :])
        add_references(self, out, kwargs)
        return out

    def _image_tokens(self, noise: Tensor, references: Sequence[Tensor]) -> int:
        """How many tokens the network makes of a latent and the pictures it looks at."""
        patch = getattr(self.diffusion_model.config, "patch_size", 1)
        return sum(-(-t.shape[-2] // patch) * -(-t.shape[-1] // patch) for t in (noise, *references))

    def concat_cond(self, **kwargs: Any) -> Tensor | None:
        """The picture's latent [batch, 16, ...]; for Fill followed by its mask, 64 pixels of a cell as channels."""
        config = self.diffusion_model.config
        extra = config.in_channels - config.out_channels
        if extra <= 0:
            return None
        noise, device = kwargs["noise"], kwargs["device"]
        image = kwargs.get("concat_latent_image")
        if image is None:
            image = torch.zeros_like(noise)
        else:
            image = self._fitted(self.process_latent_in(image.to(device)), noise)
        if extra <= config.out_channels:
            return image
        mask = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        return torch.cat([image, self._mask_channels(mask, noise)], dim=1)

    def _mask_channels(self, mask: Tensor | None, noise: Tensor) -> Tensor:
        """[batch, 64, height, width]: 1 = to be painted; no mask: everywhere."""
        height, width = noise.shape[-2:]
        if mask is None:
            return noise.new_ones(noise.shape[0], CELL * CELL, height, width)
        mask = mask.to(noise).reshape(-1, 1, *mask.shape[-2:])
        mask = comfy.utils.common_upscale(mask, width * CELL, height * CELL, "bilinear", "center").round()
        cells = mask.reshape(mask.shape[0], height, CELL, width, CELL).permute(0, 2, 4, 1, 3).flatten(1, 2)
        return comfy.utils.resize_to_batch_size(cells, noise.shape[0])


class Flux2(Flux):
    """FLUX.2: no pooled vector."""

    def encode_adm(self, **kwargs: Any) -> Tensor | None:
        return None


class Chroma(Flux):
    """Chroma was not distilled to a guidance; its approximator takes the number all the same."""

    default_guidance = 0.0

    def encode_adm(self, **kwargs: Any) -> Tensor | None:
        return None
