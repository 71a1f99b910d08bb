"""The registry of model families. A checkpoint is of the first family in `models` that matches it.

To add one: its network in `comfy/models`, a detector in `comfy.model_detection`, what conditioning it takes in
`comfy/denoisers`, and a class here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import comfy.latent_formats
from comfy import supported_models_base
from comfy.denoisers import flux as flux_denoisers
from comfy.denoisers import svd as svd_denoisers
from comfy.denoisers import transformer as transformer_denoisers
from comfy.denoisers import unclip as unclip_denoisers
from comfy.denoisers import unet as unet_denoisers
from comfy.denoisers import wan as wan_denoisers
from comfy.denoisers import zero123 as zero123_denoisers
from comfy.model_sampling import ModelType
from comfy.models import (
    auraflow,
    chroma,
    flux,
    flux2,
    hidream,
    lumina2,
    mmdit,
    pixart,
    qwen_image,
    wan,
    wan_camera,
    wan_vace,
)
from comfy.supported_models_base import BASE, ClipTarget, Network
from comfy.text_encoders import families as text_families
from comfy.text_encoders.checkpoint_layouts import (
    EncoderPlace,
    model_to_checkpoint,
    separate_encoders,
    take_encoders,
)

__all__ = ["BASE", "models", "supported_models_base"]

BFLOAT_FIRST = (torch.bfloat16, torch.float16, torch.float32)
NO_HALF = (torch.bfloat16, torch.float32)


class UNetFamily(BASE):
    """Stable Diffusion 1, 2 and XL. encoders: where a checkpoint has its text encoders."""

    encoders: tuple[EncoderPlace, ...] = ()

    @classmethod
    def matches(cls, unet_config: Mapping[str, Any], state_dict: Mapping[str, Tensor] | None = None) -> bool:
        # Networks for videos have layers more than those for pictures.
        for_videos = cls.unet_config.get("temporal", False)
        return super().matches(unet_config, state_dict) and unet_config.get("temporal", False) == for_videos

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.encoders)

    def process_clip_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return take_encoders(state_dict, self.encoders)

    def process_clip_state_dict_for_saving(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return model_to_checkpoint(state_dict, self.encoders)


class SD15(UNetFamily):
    """Stable Diffusion 1.x and its inpainting model, of any width."""

    unet_config = {"image_model": "unet", "use_linear_in_transformer": False, "adm_in_channels": None}
    latent_format = comfy.latent_formats.SD15
    encoders = (EncoderPlace("clip_l", "cond_stage_model."),)

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.SD1


class SD15_instructpix2pix(SD15):
    """InstructPix2Pix on Stable Diffusion 1.5."""

    unet_config = {**SD15.unet_config, "in_channels": 8}
    base_model = unet_denoisers.SD15_instructpix2pix

    def inpaint_model(self) -> bool:
        return False


class Stable_Zero123(SD15):
    """Stable Zero123: a picture's latent beside the noisy one, its vector and the camera's place instead of a text."""

    unet_config = {**SD15.unet_config, "in_channels": 8}
    required_keys = {"cc_projection.weight": None, "cc_projection.bias": None}
    base_model = zero123_denoisers.Stable_Zero123
    clip_vision_prefix = "cond_stage_model.model."

    def inpaint_model(self) -> bool:
        return False

    def get_model(self, state_dict: Mapping[str, Tensor], prefix: str = "", device: Any = None) -> Any:
        model = super().get_model(state_dict, prefix, device)
        model.take_projection(state_dict)
        return model


class SVD_img2vid(UNetFamily):
    """Stable Video Diffusion: a picture's latent beside the noisy frames, its vector instead of a text."""

    unet_config = {"image_model": "unet", "temporal": True, "in_channels": 8, "adm_in_channels": 768}
    # As for Stable Diffusion 2, out of which it was made.
    unet_extra_config = {"attn_precision": torch.float32}
    base_model = svd_denoisers.SVD_img2vid
    latent_format = comfy.latent_formats.SD15
    memory_usage_factor = 2.0
    sampling_settings = {"sigma_max": 700.0, "sigma_min": 0.002}
    clip_vision_prefix = "conditioner.embedders.0.open_clip.model."

    def inpaint_model(self) -> bool:
        return False

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.V_PREDICTION_EDM


class SD20(UNetFamily):
    """Stable Diffusion 2.x: predicting noise (512 pixels, inpainting) or velocity (768 pixels)."""

    unet_config = {"image_model": "unet", "use_linear_in_transformer": True, "adm_in_channels": None}
    # Half-precision attention overflows in these weights.
    unet_extra_config = {"attn_precision": torch.float32}
    latent_format = comfy.latent_formats.SD15
    encoders = (EncoderPlace("clip_h", "cond_stage_model.model.", open_clip=True),)

    @classmethod
    def matches(cls, unet_config: Mapping[str, Any], state_dict: Mapping[str, Tensor] | None = None) -> bool:
        # A table of labels is the x4 upscaler's.
        labels = cls.unet_config.get("label_count")
        return super().matches(unet_config, state_dict) and unet_config.get("label_count") == labels

    # Files do not say what they predict. Where the last attention's norm is spread wider than this, it is velocity.
    V_PREDICTION_SPREAD = 0.09

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        if self.unet_config["in_channels"] != 4:
            return ModelType.EPS
        last = len(self.unet_config["transformer_depth_output"]) - 1
        bias = state_dict.get(f"{prefix}output_blocks.{last}.1.transformer_blocks.0.norm1.bias")
        if bias is None or bias.is_meta or bias.float().std(unbiased=False) <= self.V_PREDICTION_SPREAD:
            return ModelType.EPS
        return ModelType.V_PREDICTION

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.SD2


class SD_X4Upscaler(SD20):
    """Stable Diffusion's x4 upscaler: a small picture beside the latent, and how much noise it has got."""

    unet_config = {"image_model": "unet", "label_count": 1000, "in_channels": 7}
    unet_extra_config = {}
    base_model = unet_denoisers.SD_X4Upscaler
    latent_format = comfy.latent_formats.SD_X4
    sampling_settings = {"linear_start": 0.0001, "linear_end": 0.02}

    def inpaint_model(self) -> bool:
        return False

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.V_PREDICTION


class SD21UnclipH(SD20):
    """Stable Diffusion 2.1 unCLIP: the vector of ViT-H's image part, and how blurred it is."""

    unet_config = {**SD20.unet_config, "adm_in_channels": 2 * 1024}
    base_model = unclip_denoisers.SD21UNCLIP


class SD21UnclipL(SD20):
    """As above, with ViT-L."""

    unet_config = {**SD20.unet_config, "adm_in_channels": 2 * 768}
    base_model = unclip_denoisers.SD21UNCLIP


class SDXL(UNetFamily):
    """Stable Diffusion XL, of any width: a vector beside the text, no attention at the finest level.

    Files that predict something else than noise say so by an extra tensor.
    """

    unet_config = {"image_model": "unet", "use_linear_in_transformer": True}
    base_model = unet_denoisers.SDXL
    latent_format = comfy.latent_formats.SDXL
    memory_usage_factor = 0.8
    encoders = (
        EncoderPlace("clip_l", "conditioner.embedders.0."),
        EncoderPlace("clip_g", "conditioner.embedders.1.model.", open_clip=True),
    )

    @classmethod
    def matches(cls, unet_config: Mapping[str, Any], state_dict: Mapping[str, Tensor] | None = None) -> bool:
        return (
            super().matches(unet_config, state_dict)
            and unet_config.get("adm_in_channels") is not None
            and unet_config["transformer_depth"][0] == 0
        )

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        if "edm_mean" in state_dict and "edm_std" in state_dict:  # Playground 2.5
            self.latent_format = comfy.latent_formats.SDXL_Playground_2_5()
            self.sampling_settings |= {"sigma_data": 0.5, "sigma_max": 80.0, "sigma_min": 0.002}
            return ModelType.EDM
        if "edm_vpred.sigma_max" in state_dict:  # CosXL
            self.sampling_settings["sigma_max"] = float(state_dict["edm_vpred.sigma_max"].item())
            if "edm_vpred.sigma_min" in state_dict:
                self.sampling_settings["sigma_min"] = float(state_dict["edm_vpred.sigma_min"].item())
            return ModelType.V_PREDICTION_EDM
        if "v_pred" in state_dict:
            if "ztsnr" in state_dict:
                self.sampling_settings["zsnr"] = True
            return ModelType.V_PREDICTION
        return ModelType.EPS

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.SDXL


class SDXL_instructpix2pix(SDXL):
    """SDXL that edits a picture (8 input channels)."""

    unet_config = {**SDXL.unet_config, "in_channels": 8}
    base_model = unet_denoisers.SDXL_instructpix2pix

    def inpaint_model(self) -> bool:
        return False


class SSD1B(SDXL):
    """Segmind's distilled SDXL."""

    unet_config = {**SDXL.unet_config, "transformer_depth": [0, 0, 2, 2, 4, 4]}


class Segmind_Vega(SDXL):
    """Segmind's smallest SDXL."""

    unet_config = {**SDXL.unet_config, "transformer_depth": [0, 0, 1, 1, 2, 2]}


class KOALA_700M(SDXL):
    """KOALA, one residual block per level."""

    unet_config = {**SDXL.unet_config, "transformer_depth": [0, 2, 5]}


class KOALA_1B(SDXL):
    """KOALA with a deeper last level."""

    unet_config = {**SDXL.unet_config, "transformer_depth": [0, 2, 6]}


class SDXLRefiner(UNetFamily):
    """SDXL's refiner: no attention at the coarsest level either, only the larger text encoder."""

    unet_config = {"image_model": "unet", "use_linear_in_transformer": True}
    base_model = unet_denoisers.SDXLRefiner
    latent_format = comfy.latent_formats.SDXL
    encoders = (EncoderPlace("clip_g", "conditioner.embedders.0.model.", open_clip=True),)

    @classmethod
    def matches(cls, unet_config: Mapping[str, Any], state_dict: Mapping[str, Tensor] | None = None) -> bool:
        depths = unet_config.get("transformer_depth") or [1]
        return (
            super().matches(unet_config, state_dict)
            and unet_config.get("adm_in_channels") is not None
            and depths[0] == depths[-1] == 0
        )

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.REFINER


class TransformerFamily(BASE):
    """Diffusion transformers: a file that has encoders at all has them below `text_encoders.`, one name each."""

    vae_key_prefix = ("vae.",)
    text_encoder_key_prefix = ("text_encoders.",)

    def inpaint_model(self) -> bool:
        return False

    def process_clip_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return separate_encoders(super().process_clip_state_dict(state_dict))


class SD3(TransformerFamily):
    """Stable Diffusion 3 and 3.5. Files may have any of the three encoders."""

    unet_config = {"image_model": "mmdit"}
    network = Network(mmdit.MMDiT, mmdit.MMDiTConfig)
    base_model = transformer_denoisers.SD3
    latent_format = comfy.latent_formats.SD3
    sampling_settings = {"shift": 3.0}
    memory_usage_factor = 1.6
    vae_key_prefix = ("first_stage_model.",)

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLOW

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.SD3


class AuraFlow(TransformerFamily):
    unet_config = {"image_model": "auraflow"}
    text_encoders = ("pile_t5xl",)
    network = Network(auraflow.AuraFlow, auraflow.AuraFlowConfig)
    base_model = transformer_denoisers.AuraFlow
    latent_format = comfy.latent_formats.SDXL
    sampling_settings = {"multiplier": 1.0, "shift": 1.73}
    memory_usage_factor = 2.0

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLOW

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.AURAFLOW


class PixArtSigma(TransformerFamily):
    unet_config = {"image_model": "pixart_sigma"}
    text_encoders = ("t5xxl",)
    network = Network(pixart.PixArt, pixart.PixArtConfig)
    base_model = transformer_denoisers.PixArt
    latent_format = comfy.latent_formats.SDXL
    sampling_settings = {
        "beta_schedule": "sqrt_linear",
        "linear_start": 0.0001,
        "linear_end": 0.02,
        "timesteps": 1000,
    }
    memory_usage_factor = 0.5

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.PIXART


class PixArtAlpha(PixArtSigma):
    """PixArt-alpha: as Sigma on Stable Diffusion's latents, and told the size of the picture."""

    unet_config = {"image_model": "pixart_alpha"}
    base_model = transformer_denoisers.PixArtAlpha
    latent_format = comfy.latent_formats.SD15


class Flux(TransformerFamily):
    """FLUX.1 dev, Kontext, Canny, Depth: distilled to a guidance."""

    unet_config = {"image_model": "flux", "guidance_embed": True}
    text_encoders = ("clip_l", "t5xxl")
    network = Network(flux.Flux, flux.FluxConfig)
    base_model = flux_denoisers.Flux
    latent_format = comfy.latent_formats.Flux
    memory_usage_factor = 3.1
    supported_inference_dtypes = BFLOAT_FIRST

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLUX

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.FLUX


class FluxInpaint(Flux):
    """FLUX.1 Fill: latent, picture and mask."""

    unet_config = {**Flux.unet_config, "in_channels": 96}
    supported_inference_dtypes = NO_HALF


class FluxSchnell(Flux):
    """FLUX.1 schnell, for few steps: no guidance, no shift of the noise levels."""

    unet_config = {"image_model": "flux", "guidance_embed": False}
    sampling_settings = {"multiplier": 1.0, "shift": 1.0}

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLOW


class Flux2(Flux):
    text_encoders = ()
    unet_config = {"image_model": "flux2"}
    network = Network(flux2.Flux2, flux2.Flux2Config)
    base_model = flux_denoisers.Flux2
    latent_format = comfy.latent_formats.Flux2
    sampling_settings = {"shift": 2.02}

    # The published model's factor at its width; smaller ones keep fewer activations.
    MEMORY_PER_CHANNEL = 1 / 210

    def __init__(self, unet_config: Mapping[str, Any]):
        super().__init__(unet_config)
        self.memory_usage_factor = self.unet_config["hidden_size"] * self.MEMORY_PER_CHANNEL

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        names = {key.partition(".")[0] for key in state_dict or ()}
        if "qwen3_8b" in names:
            return text_families.KLEIN_8B
        return text_families.KLEIN if "qwen3_4b" in names else text_families.FLUX2


class Chroma(Flux):
    unet_config = {"image_model": "chroma"}
    text_encoders = ("t5xxl",)
    network = Network(chroma.Chroma, chroma.ChromaConfig)
    base_model = flux_denoisers.Chroma
    sampling_settings = {"multiplier": 1.0}
    memory_usage_factor = 3.2
    vae_key_prefix = ("first_stage_model.",)
    text_encoder_key_prefix = ("cond_stage_model.",)

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.CHROMA


class Lumina2(TransformerFamily):
    unet_config = {"image_model": "lumina2", "z_image": False}
    text_encoders = ("gemma2_2b",)
    network = Network(lumina2.Lumina2, lumina2.Lumina2Config)
    base_model = transformer_denoisers.Lumina2
    latent_format = comfy.latent_formats.Flux
    sampling_settings = {"multiplier": 1.0, "shift": 6.0}
    memory_usage_factor = 1.4
    supported_inference_dtypes = NO_HALF

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLOW

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.LUMINA2


class ZImage(Lumina2):
    unet_config = {"image_model": "lumina2", "z_image": True}
    text_encoders = ("qwen3_4b",)
    sampling_settings = {"multiplier": 1.0, "shift": 3.0}
    memory_usage_factor = 2.8
    supported_inference_dtypes = BFLOAT_FIRST

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.ZIMAGE


class QwenImage(TransformerFamily):
    unet_config = {"image_model": "qwen_image"}
    text_encoders = ("qwen25_7b",)
    network = Network(qwen_image.QwenImage, qwen_image.QwenImageConfig)
    base_model = transformer_denoisers.QwenImage
    latent_format = comfy.latent_formats.Wan21
    sampling_settings = {"multiplier": 1.0, "shift": 1.15}
    memory_usage_factor = 1.8
    supported_inference_dtypes = NO_HALF

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLUX

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.QWEN_IMAGE


class HiDream(TransformerFamily):
    unet_config = {"image_model": "hidream"}
    network = Network(hidream.HiDream, hidream.HiDreamConfig)
    base_model = transformer_denoisers.HiDream
    latent_format = comfy.latent_formats.Flux
    memory_usage_factor = 2.0
    supported_inference_dtypes = NO_HALF

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLOW

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.HIDREAM


class WAN21_T2V(TransformerFamily):
    """Wan 2.1 from a text, and Wan 2.2 14B, which sees pictures only beside the latent."""

    unet_config = {"image_model": "wan2.1", "model_type": "t2v"}
    text_encoders = ("umt5xxl",)
    network = Network(wan.Wan, wan.WanConfig)
    base_model = wan_denoisers.WAN21
    latent_format = comfy.latent_formats.Wan21
    sampling_settings = {"shift": 8.0}

    # The published models' factors at their widths.
    MEMORY_PER_CHANNEL = 1 / 2222

    def __init__(self, unet_config: Mapping[str, Any]):
        super().__init__(unet_config)
        self.memory_usage_factor = self.unet_config.get("dim", 2000) * self.MEMORY_PER_CHANNEL

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        return ModelType.FLOW

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget:
        return text_families.WAN


class WAN21_I2V(WAN21_T2V):
    """Wan 2.1 from a picture, or from a first and a last one."""

    unet_config = {"image_model": "wan2.1", "model_type": "i2v", "in_dim": 36}


class WAN21_FunControl2V(WAN21_T2V):
    """Wan 2.1 Fun Control: a video that controls and a picture beside the latent."""

    unet_config = {"image_model": "wan2.1", "model_type": "i2v", "in_dim": 48}


class WAN21_Vace(WAN21_T2V):
    """VACE: videos to follow or to change."""

    unet_config = {"image_model": "wan2.1", "model_type": "vace"}
    network = Network(wan_vace.WanVace, wan_vace.WanVaceConfig)
    base_model = wan_denoisers.WAN21_Vace
    MEMORY_PER_CHANNEL = 1.2 / 2222


class WAN21_Camera(WAN21_T2V):
    """Wan 2.1 Fun Camera: a picture and a path of the camera."""

    unet_config = {"image_model": "wan2.1", "model_type": "camera", "in_dim": 32}
    network = Network(wan_camera.WanCamera, wan_camera.WanCameraConfig)
    base_model = wan_denoisers.WAN21_Camera


class WAN22_Camera(WAN21_Camera):
    """Wan 2.2 Fun Camera: with a mask beside the picture."""

    unet_config = {"image_model": "wan2.1", "model_type": "camera_2.2", "in_dim": 36}


class WAN22_T2V(WAN21_T2V):
    """Wan 2.2 5B: from a text, or from frames in the latent."""

    unet_config = {"image_model": "wan2.1", "model_type": "t2v", "out_dim": 48}
    base_model = wan_denoisers.WAN22
    latent_format = comfy.latent_formats.Wan22


# Special cases before the general ones.
models: list[Any] = [
    SD_X4Upscaler,
    Stable_Zero123,
    SVD_img2vid,
    SD15_instructpix2pix,
    SD15,
    SD20,
    SD21UnclipL,
    SD21UnclipH,
    SDXLRefiner,
    SDXL_instructpix2pix,
    SSD1B,
    Segmind_Vega,
    KOALA_700M,
    KOALA_1B,
    SDXL,
    SD3,
    AuraFlow,
    PixArtAlpha,
    PixArtSigma,
    FluxInpaint,
    Flux,
    FluxSchnell,
    Flux2,
    Chroma,
    Lumina2,
    ZImage,
    QwenImage,
    HiDream,
    WAN22_T2V,
    WAN21_T2V,
    WAN21_I2V,
    WAN21_FunControl2V,
    WAN21_Vace,
    WAN21_Camera,
    WAN22_Camera,
]
