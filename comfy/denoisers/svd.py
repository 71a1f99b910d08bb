"""Stable Video Diffusion (Blattmann et al. 2023): a short video that begins with a picture."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import comfy.conds
from comfy.denoisers.unet import IP2P, size_vector
from comfy.model_base import BaseModel, ModelType

FPS, MOTION_BUCKET, AUGMENTATION = 6, 127, 0.0  # where a conditioning does not tell


class SVD_img2vid(IP2P, BaseModel):
    """The picture's latent, not scaled, goes beside each frame; the network is told of frames per second, of how much
    moves, and of how much noise the picture has got. The whole batch is one video."""

    def __init__(self, model_config: Any, model_type: ModelType = ModelType.V_PREDICTION_EDM, device: Any = None):
        super().__init__(model_config, model_type, device)

    def encode_adm(self, **kwargs: Any) -> Tensor:
        numbers = [
            kwargs.get("fps", FPS) - 1,  # the training counted so
            kwargs.get("motion_bucket_id", MOTION_BUCKET),
            kwargs.get("augmentation_level", AUGMENTATION),
        ]
        none = kwargs["noise"].new_zeros(1, 0)
        return size_vector(none, numbers)

    def extra_conds(self, **kwargs: Any) -> dict[str, Any]:
        out = super().extra_conds(**kwargs)
        if (time_context := kwargs.get("time_conditioning")) is not None:
            out["time_context"] = comfy.conds.CONDCrossAttn(time_context)
        out["num_video_frames"] = comfy.conds.CONDConstant(kwargs["noise"].shape[0])
        return out
