"""What an entry of the model registry says about a family of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import comfy.latent_formats
import comfy.model_base
import comfy.utils
from comfy.model_sampling import ModelType
from comfy.models.unet import UNetConfig, UNetModel


class Network(NamedTuple):
    """A network class of comfy/models and the dataclass that describes its shape (with `from_dict`)."""

    module: type[nn.Module]
    config: Any


class ClipTarget(NamedTuple):
    """The text side of a family: tokenizer(embedding_directory=..., tokenizer_data=...) and encoder model.

    clip(state_dict, device, dtype, operations) builds the encoder for the given weights, without loading
    them.
    """

    tokenizer: Any
    clip: Any


class BASE:
    """One family. Class attributes are facts about it; an instance is one checkpoint's configuration.

    unet_config: what the detected configuration of the network must contain for a checkpoint to be of this
    family. required_keys: keys of the file that must be there too. unet_extra_config: what shapes do not tell.
    """

    network: Network = Network(UNetModel, UNetConfig)

    unet_config: dict[str, Any] = {}
    unet_extra_config: dict[str, Any] = {}
    required_keys: Mapping[str, Any] = {}

    base_model: type[comfy.model_base.BaseModel] = comfy.model_base.BaseModel
    latent_format: Any = comfy.latent_formats.LatentFormat
    sampling_settings: dict[str, Any] = {}
    memory_usage_factor: float = 1.0
    supported_inference_dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32)

    vae_key_prefix: tuple[str, ...] = ("first_stage_model.",)
    text_encoder_key_prefix: tuple[str, ...] = ("cond_stage_model.",)
    # Encoders without which a checkpoint's text side cannot work.
    text_encoders: tuple[str, ...] = ()
    # Where a checkpoint has its image encoder, if there is one.
    clip_vision_prefix: str = "embedder.model."
    unet_key_prefix: str = "model.diffusion_model."

    manual_cast_dtype: torch.dtype | None = None
    custom_operations: Any = None
    # Where it is going to run, if that is known.
    load_device: torch.device | None = None
    # Whether all weights are brought to one dtype on loading (a flag asked for it).
    convert_weights: bool = False

    @classmethod
    def matches(cls, unet_config: Mapping[str, Any], state_dict: Mapping[str, Tensor] | None = None) -> bool:
        """Whether a detected network configuration is of this family."""
        if any(key not in unet_config or unet_config[key] != value for key, value in cls.unet_config.items()):
            return False
        return state_dict is None or all(key in state_dict for key in cls.required_keys)

    def __init__(self, unet_config: Mapping[str, Any]):
        self.unet_config = {**unet_config, **self.unet_extra_config}
        self.sampling_settings = self.sampling_settings.copy()
        self.latent_format = self.latent_format()
        self.optimizations: dict[str, Any] = {}

    def model_type(self, state_dict: Mapping[str, Tensor], prefix: str = "") -> ModelType:
        """What the network predicts, for families where the file tells."""
        return ModelType.EPS

    def inpaint_model(self) -> bool:
        """Whether the network takes mask and masked picture beside the latent."""
        return self.unet_config.get("in_channels", 0) > self.latent_format.latent_channels

    def get_model(
        self, state_dict: Mapping[str, Tensor], prefix: str = "", device: Any = None
    ) -> comfy.model_base.BaseModel:
        """The model, its weights not yet set."""
        model = self.base_model(self, model_type=self.model_type(state_dict, prefix), device=device)
        if self.inpaint_model():
            model.set_inpaint()
        return model

    def set_inference_dtype(self, dtype: torch.dtype | None, manual_cast_dtype: torch.dtype | None) -> None:
        """What weights rest in, and what is computed in if that is something else."""
        self.unet_config["dtype"] = dtype
        self.manual_cast_dtype = manual_cast_dtype

    def clip_target(self, state_dict: Mapping[str, Tensor] | None = None) -> ClipTarget | None:
        """The text side; None for families without one."""
        return None

    # Names in the file <-> names in the model.

    def process_unet_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return state_dict

    def process_vae_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return state_dict

    def process_clip_state_dict(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the text encoder(s), named as the encoder model names them."""
        return comfy.utils.state_dict_prefix_replace(
            state_dict, dict.fromkeys(self.text_encoder_key_prefix, ""), filter_keys=True
        )

    def process_unet_state_dict_for_saving(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return comfy.utils.state_dict_prefix_replace(
            dict(state_dict), {"diffusion_model.": self.unet_key_prefix}, filter_keys=True
        )

    def process_vae_state_dict_for_saving(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return {self.vae_key_prefix[0] + k: v for k, v in state_dict.items()}

    def process_clip_state_dict_for_saving(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return {self.text_encoder_key_prefix[0] + k: v for k, v in state_dict.items()}

    def process_clip_vision_state_dict_for_saving(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"{self.clip_vision_prefix}visual.{k}": v for k, v in state_dict.items()}
