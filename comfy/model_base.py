"""Diffusion models as sampling sees them: noisy latent and sigma in, denoised latent out.

A model joins a network (`diffusion_model`), its parametrisation and sigma table (`model_sampling`) and its
latent format, and knows which of the conditioning's values its network takes.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import comfy.conds
import comfy.fast_network
import comfy.model_management
import comfy.ops
import comfy.utils
from comfy import mismatch, patcher_extension
from comfy.model_sampling import ModelType, model_sampling
from comfy.models.attention import options_in_force
from comfy.patcher_extension import WrapperExecutor, WrappersMP
from comfy.quantization import to_dtype
from comfy.quantized_files import UnfitScales, is_scaled, refusal
from comfy.quantized_layers import place_scales
from comfy.weights import source_of

__all__ = ["BaseModel", "MissingConditioning", "ModelType", "WeightsMismatch", "convert_tensor", "model_sampling"]

log = logging.getLogger(__name__)

# The classes of the families, by the module that has them: also attributes of this one.
_FAMILIES = {
    "comfy.denoisers.unet": (
        "IP2P",
        "SD15_instructpix2pix",
        "SD_X4Upscaler",
        "SDXL",
        "SDXL_instructpix2pix",
        "SDXLRefiner",
    ),
    "comfy.denoisers.transformer": ("AuraFlow", "HiDream", "Lumina2", "PixArt", "PixArtAlpha", "QwenImage", "SD3"),
    "comfy.denoisers.flux": ("Chroma", "Flux", "Flux2"),
    "comfy.denoisers.wan": ("WAN21", "WAN22", "WAN21_Camera", "WAN21_Vace"),
    "comfy.denoisers.zero123": ("Stable_Zero123",),
    "comfy.denoisers.svd": ("SVD_img2vid",),
    "comfy.denoisers.unclip": ("CLIPEmbeddingNoiseAugmentation", "SD21UNCLIP"),
}

# Activations a network keeps at its peak, in bytes per latent cell and byte of its number format, for
# `memory_usage_factor` 1: the usual figure for the Stable Diffusion 1 UNet with fused attention.
ACTIVATION_BYTES_PER_CELL = 0.01 * 1024 * 1024

# The latent of a plain grey picture: what an inpainting model sees where it has no picture.
GREY_LATENT = (0.8223, -0.6876, 0.6364, 0.1380)


class WeightsMismatch(ValueError):
    """A state dict lacks tensors the model needs, or has them in another shape."""


class MissingConditioning(ValueError):
    """A conditioning lacks a value that the model cannot do without."""


class UnfitConditioning(ValueError):
    """A conditioning brings a value that is not of the shape the model takes."""


class BaseModel(nn.Module):
    """A model whose network takes a latent, timesteps and a context sequence.

    model_config: an entry of `comfy.supported_models` (network and its configuration, latent format, dtypes).
    unet_model: a network class in place of the entry's, built from the configuration's values by name.
    """

    # Names of what is put beside the latent on the channel axis, in order; see `concat_cond`.
    concat_keys: tuple[str, ...] = ()

    def __init__(
        self,
        model_config: Any,
        model_type: ModelType = ModelType.EPS,
        device: torch.device | str | None = None,
        unet_model: type[nn.Module] | None = None,
    ):
        super().__init__()
        self.model_config = model_config
        self.latent_format = model_config.latent_format
        self.manual_cast_dtype = model_config.manual_cast_dtype
        self.memory_usage_factor = model_config.memory_usage_factor
        self.device = device
        self.current_patcher = None
        unet_config = model_config.unet_config
        self.adm_channels = unet_config.get("adm_in_channels") or 0
        if not unet_config.get("disable_unet_model_creation", False):
            self.diffusion_model = self.build_network(unet_model, unet_config, device)
            self.diffusion_model.eval().requires_grad_(False)
        self.model_type = model_type
        self.model_sampling = model_sampling(model_config, model_type)

    def build_network(self, network: type[nn.Module] | None, unet_config: Mapping[str, Any], device: Any) -> nn.Module:
        """The network, its weights not yet set."""
        dtype = unet_config.get("dtype")
        operations = self.model_config.custom_operations
        if operations is None:
            device_to = self.model_config.load_device
            operations = comfy.ops.pick_operations(dtype, self.manual_cast_dtype, device_to)
        if network is not None:
            return network(**unet_config, device=device, operations=operations)
        module, config = self.model_config.network
        return module(config.from_dict(unet_config), dtype=dtype, device=device, operations=operations)

    # --- one evaluation

    def apply_model(
        self,
        x: Tensor,
        t: Tensor,
        c_concat: Tensor | None = None,
        c_crossattn: Tensor | None = None,
        control: dict | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The denoised latent. x: [batch, channels, ...] float32, t: sigma [batch]; the rest as made by
        `extra_conds`. Wrappers: APPLY_MODEL."""
        options = {} if transformer_options is None else transformer_options
        return WrapperExecutor.new_class_executor(
            self._apply_model,
            self,
            patcher_extension.get_all_wrappers(WrappersMP.APPLY_MODEL, options),
        ).execute(x, t, c_concat, c_crossattn, control, options, **kwargs)

    def _apply_model(
        self,
        x: Tensor,
        t: Tensor,
        c_concat: Tensor | None = None,
        c_crossattn: Tensor | None = None,
        control: dict | None = None,
        transformer_options: dict | None = None,
        **kwargs: Any,
    ) -> Tensor:
        options = {} if transformer_options is None else transformer_options
        dtype = self.get_dtype_inference()
        network_input = self.model_sampling.calculate_input(t, x)
        if c_concat is not None:
            # After the scaling: what is put beside the latent carries no noise.
            network_input = torch.cat([network_input, c_concat.to(network_input)], dim=1)
        timestep = self.model_sampling.timestep(t).float()
        context = None if c_crossattn is None else _cast_floats(c_crossattn, x.device, dtype)
        timestep = self.process_timestep(timestep, x=x, **kwargs)
        extra = {name: _cast_floats(value, x.device, dtype) for name, value in kwargs.items()}
        with mismatch.explained(
            self.diffusion_model,
            type(self.model_config).__name__,
            network_input,
            {"context": context, **extra},
            control,
        ):
            output = self._network_output(network_input.to(dtype), timestep, context, control, options, extra)
        return self.model_sampling.calculate_denoised(t, output.float(), x)

    def _network_output(
        self,
        network_input: Tensor,
        timestep: Tensor,
        context: Tensor | None,
        control: dict | None,
        options: dict,
        extra: dict[str, Any],
    ) -> Tensor:
        if self._may_be_compiled(network_input.device, options, control):
            network = comfy.fast_network.compiled(self.diffusion_model)
            return network(network_input, timestep, context=context, transformer_options={}, **extra)
        network = WrapperExecutor.new_class_executor(
            self._run_network,
            self.diffusion_model,
            patcher_extension.get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options),
        )
        with options_in_force(options):
            return network.execute(
                network_input,
                timestep,
                context=context,
                control=control,
                transformer_options=options,
                **extra,
            )

    def _run_network(self, *args: Any, **kwargs: Any) -> Tensor:
        with options_in_force(kwargs.get("transformer_options")):  # a wrapper may have changed them
            return self.diffusion_model(*args, **kwargs)

    def process_timestep(self, timestep: Tensor, **kwargs: Any) -> Tensor:
        """What the network is told of the noise level, from the timestep [batch]. kwargs: the latent as `x`, and the
        conditioning of the evaluation."""
        return timestep

    def _may_be_compiled(self, device: torch.device, options: Mapping[str, Any], control: Any) -> bool:
        if not comfy.fast_network.wanted(device) or not comfy.fast_network.is_plain(options, control):
            return False
        place = self.__dict__.get("placement")
        return place is None or place.complete

    # --- conditioning

    def extra_conds(self, **kwargs: Any) -> dict[str, comfy.conds.CONDRegular]:
        """What one conditioning entry brings into `apply_model`.

        kwargs: the entry's own values (`cross_attn`, `pooled_output`, ...) and the run's: `noise` [batch,
        channels, ...], `device`, `latent_image`, `denoise_mask`, `width` and `height` in pixels,
        `prompt_type`, `seed`.
        """
        out: dict[str, comfy.conds.CONDRegular] = {}
        if (concat := self.concat_cond(**kwargs)) is not None:
            out["c_concat"] = comfy.conds.CONDNoiseShape(concat)
        if (adm := self.encode_adm(**kwargs)) is not None:
            out["y"] = comfy.conds.CONDRegular(adm)
        if (context := kwargs.get("cross_attn")) is not None:
            out["c_crossattn"] = comfy.conds.CONDCrossAttn(context)
        if (control_context := kwargs.get("cross_attn_controlnet")) is not None:
            out["crossattn_controlnet"] = comfy.conds.CONDCrossAttn(control_context)
        return out

    def encode_adm(self, **kwargs: Any) -> Tensor | None:
        """The vector `y` [batch, adm_channels], None for models without one."""
        return None

    def concat_cond(self, **kwargs: Any) -> Tensor | None:
        """What goes beside the latent [batch, extra channels, ...]: for inpainting models the mask (1 = to be
        painted) and the latent of the picture under it."""
        if not self.concat_keys:
            return None
        noise, device = kwargs["noise"], kwargs["device"]
        mask = kwargs.get("concat_mask", kwargs.get("denoise_mask"))
        image = kwargs.get("concat_latent_image")
        image = kwargs.get("latent_image") if image is None else self.process_latent_in(image)
        if mask is not None:
            mask = comfy.utils.reshape_mask(mask.to(device), noise.shape)[:, :1]
        if image is not None:
            image = self._fitted(image.to(device), noise)
        parts = []
        for key in self.concat_keys:
            if key == "mask":
                parts.append(torch.ones_like(noise)[:, :1] if mask is None else mask)
            elif key == "masked_image":
                parts.append(self.blank_inpaint_image_like(noise) if image is None or mask is None else image)
            elif key == "mask_inverted":
                parts.append(torch.zeros_like(noise)[:, :1] if mask is None else 1.0 - mask)
        return torch.cat(parts, dim=1)

    def _fitted(self, latent: Tensor, noise: Tensor) -> Tensor:
        """`latent` in size and batch of `noise`."""
        if latent.shape[2:] != noise.shape[2:]:
            latent = comfy.utils.common_upscale(latent, noise.shape[-1], noise.shape[-2], "bilinear", "center")
        return comfy.utils.resize_to_batch_size(latent, noise.shape[0])

    def blank_inpaint_image_like(self, latent_image: Tensor) -> Tensor:
        """A grey picture as latent."""
        grey = torch.tensor(GREY_LATENT, device=latent_image.device, dtype=latent_image.dtype)
        return grey.view(1, -1, 1, 1).expand_as(latent_image[:, : len(GREY_LATENT)])

    def set_inpaint(self) -> None:
        """The network takes mask and masked picture beside the latent."""
        self.concat_keys = ("mask", "masked_image")

    # --- latents

    def process_latent_in(self, latent: Tensor) -> Tensor:
        """From the VAE's scale to the network's."""
        return self.latent_format.process_in(latent)

    def process_latent_out(self, latent: Tensor) -> Tensor:
        """From the network's scale to the VAE's."""
        return self.latent_format.process_out(latent)

    def scale_latent_inpaint(self, sigma: Tensor, noise: Tensor, latent_image: Tensor, **kwargs: Any) -> Tensor:
        """The known part of an inpainted latent, noised to `sigma`."""
        shape = [sigma.shape[0]] + [1] * (noise.ndim - 1)
        return self.model_sampling.noise_scaling(sigma.reshape(shape), noise, latent_image)

    # --- weights and memory

    def load_model_weights(self, sd: dict[str, Tensor], unet_prefix: str = "", assign: bool = True) -> BaseModel:
        """Take the network's tensors out of `sd` (keys below `unet_prefix`) without copying them.

        Tensors that the network has no place for are logged. Raises WeightsMismatch naming what is missing or
        of another shape.
        """
        own = {k[len(unet_prefix) :]: sd.pop(k) for k in [k for k in sd if k.startswith(unet_prefix)]}
        self.weights_file = source_of(own.values())
        own = self.model_config.process_unet_state_dict(own)
        own = _in_dtypes_of(self.diffusion_model, own, self.model_config)
        load_assigned(self.diffusion_model, own, type(self).__name__, assign)
        return self

    def get_dtype(self) -> torch.dtype | None:
        """What the weights rest in."""
        return self.diffusion_model.dtype

    def get_dtype_inference(self) -> torch.dtype:
        """What the network computes in."""
        return self.manual_cast_dtype or self.get_dtype() or torch.float32

    def memory_required(
        self, input_shape: list[int], cond_shapes: Mapping[str, list[list[int]]] | None = None
    ) -> float:
        """Bytes of activations for one evaluation of a latent of that shape."""
        cells = input_shape[0] * math.prod(input_shape[2:])
        bytes_per_value = comfy.model_management.dtype_size(self.get_dtype_inference())
        return cells * bytes_per_value * ACTIVATION_BYTES_PER_CELL * self.memory_usage_factor

    def extra_conds_shapes(self, **kwargs: Any) -> dict[str, list[int]]:
        """Shapes of `extra_conds` values that matter for memory, before they exist."""
        return {}

    def state_dict_for_saving(
        self,
        unet_state_dict: dict[str, Tensor],
        clip_state_dict: dict[str, Tensor] | None = None,
        vae_state_dict: dict[str, Tensor] | None = None,
        clip_vision_state_dict: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """All parts under the names a checkpoint file has. unet_state_dict: keys start with
        `diffusion_model.`."""
        config = self.model_config
        out = config.process_unet_state_dict_for_saving(unet_state_dict)
        if self.model_type == ModelType.V_PREDICTION:
            # The marker by which a file says that it predicts velocity.
            out["v_pred"] = torch.tensor([])
        if vae_state_dict is not None:
            out.update(config.process_vae_state_dict_for_saving(vae_state_dict))
        if clip_state_dict is not None:
            out.update(config.process_clip_state_dict_for_saving(clip_state_dict))
        if clip_vision_state_dict is not None:
            out.update(config.process_clip_vision_state_dict_for_saving(clip_vision_state_dict))
        return out


def convert_tensor(extra: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor as networks take it: floating-point ones in their dtype; anything else as it is."""
    return _cast_floats(extra, device, dtype)


def _cast_floats(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Floating-point tensors (also in lists) in the dtype of computing; integers keep theirs."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, list):
        return [_cast_floats(v, device, dtype) for v in value]
    return value


def _in_dtypes_of(network: nn.Module, sd: dict[str, Tensor], model_config: Any) -> dict[str, Tensor]:
    """The tensors as they come where layers cast on each call; else all in the network's one dtype."""
    dtype = model_config.unet_config.get("dtype")
    if dtype is None:
        return sd
    keep_mixed = model_config.manual_cast_dtype is not None and not model_config.convert_weights
    if keep_mixed:
        return sd
    # Of float8 only matrices: norms, biases and scales would lose too much for what they save.
    least = 2 if dtype.itemsize == 1 else 0
    return {
        k: to_dtype(v, dtype) if v.is_floating_point() and v.ndim >= least and not is_scaled(sd, k) else v
        for k, v in sd.items()
    }


def load_assigned(module: nn.Module, sd: Mapping[str, Tensor], name: str, assign: bool = True) -> list[str]:
    """Make the tensors of `sd` the weights of `module` (the very tensors, with `assign`); returns unused
    keys.

    Raises WeightsMismatch for missing tensors or other shapes.
    """
    if (why := refusal(sd)) is not None:
        raise WeightsMismatch(f"{name}: {why}")
    try:
        sd = place_scales(module, sd)
    except UnfitScales as e:
        raise WeightsMismatch(f"{name}: {e}") from e
    module.weights_file = getattr(module, "weights_file", None) or source_of(sd.values())
    # Before loading: an assigned tensor takes over whether its predecessor wanted a gradient.
    module.requires_grad_(False)
    try:
        missing, unexpected = module.load_state_dict(sd, strict=False, assign=assign)
    except RuntimeError as e:
        raise WeightsMismatch(f"{name}: {e}") from e
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise WeightsMismatch(f"{name}: the file lacks {shown}")
    if unexpected:
        # Of other numbers, but named as the module's own are: the file has a gap, or blocks that nothing runs.
        own = {_NUMBER.sub(".#.", key) for key in sd.keys() - set(unexpected)}
        odd = [key for key in unexpected if _NUMBER.sub(".#.", key) in own]
        level, shown = (logging.WARNING, odd) if odd else (logging.INFO, unexpected)
        log.log(level, "%s: %d tensors of the file are not used, such as %s", name, len(unexpected), shown[0])
    return unexpected


_NUMBER = re.compile(r"\.\d+\.")


def __getattr__(name: str) -> Any:
    """The families' classes, which are built on this module and so cannot be imported before it."""
    for module, names in _FAMILIES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
