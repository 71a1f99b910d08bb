"""Controls: nets that look at a picture and add what they see to a diffusion network.

A control hangs on a conditioning entry under "control". Sampling calls `pre_run` before the first step, `get_control`
in each, and `cleanup` at the end; controls are chained through `previous_controlnet`, and their tensors add up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

import comfy.model_management
import comfy.utils
from comfy import mismatch
from comfy.held_weights import patcher_for
from comfy.loaded_models import run_goes_on
from comfy.model_patcher import ModelPatcher
from comfy.sampling.solvers.common import host_sigma

__all__ = [
    "ControlBase",
    "ControlLora",
    "ControlNet",
    "ControlNetSD35",
    "MissingVAE",
    "StrengthType",
    "T2IAdapter",
    "broadcast_image_to",
    "load_controlnet",
    "load_controlnet_state_dict",
    "load_t2i_adapter",
]

log = logging.getLogger(__name__)

Control = dict[str, list[Tensor | None]]
LISTS = ("input", "middle", "output")


class StrengthType(Enum):
    """CONSTANT: all tensors alike. LINEAR_UP: strength^n for the n-th from the end, so that the deepest block gets most
    of a strength below 1."""

    CONSTANT = 1
    LINEAR_UP = 2


class MissingVAE(ValueError):
    """A control works on latents of the picture, and no VAE was given to make them."""


def broadcast_image_to(tensor: Tensor, target_batch_size: int, batched_number: int) -> Tensor:
    """A batch of pictures in the size of a sampling batch, which holds `batched_number` copies of the latents. One
    picture stays one: it broadcasts by itself."""
    current = tensor.shape[0]
    if current == 1:
        return tensor
    tensor = comfy.utils.repeat_to_batch_size(tensor, target_batch_size // batched_number)
    return tensor if tensor.shape[0] == target_batch_size else torch.cat([tensor] * batched_number)


def encoded_pictures(vae: Any, pictures: Tensor) -> Tensor:
    """Latents of pictures [batch, height, width, channels]. An autoencoder of videos would take them for the frames of
    one, so it gets them one by one."""
    if getattr(vae, "latent_dim", 2) == 3:
        return torch.cat([vae.encode(picture.unsqueeze(0)) for picture in pictures])
    return vae.encode(pictures)


class ControlBase:
    """What all controls share: the picture, strength, when they are active, and the chain."""

    def __init__(self) -> None:
        self.cond_hint_original: Tensor | None = None
        self.cond_hint: Tensor | None = None
        self.strength = 1.0
        self.timestep_percent_range: tuple[float, float] = (0.0, 1.0)
        self.timestep_range: tuple[float, float] | None = None
        self.vae: Any = None
        self.latent_format: Any = None
        self.compression_ratio = 8
        self.upscale_algorithm = "nearest-exact"
        self.global_average_pooling = False
        self.strength_type = StrengthType.CONSTANT
        self.extra_args: dict[str, Any] = {}
        self.extra_conds: list[str] = []
        self.concat_mask = False
        self.extra_concat_orig: list[Tensor] = []
        self.extra_concat: list[Tensor] | None = None
        self.preprocess_image: Callable[[Tensor], Tensor] = lambda image: image
        self.extra_hooks: Any = None
        self.previous_controlnet: ControlBase | None = None

    # --- settings

    def set_cond_hint(
        self,
        cond_hint: Tensor,
        strength: float = 1.0,
        timestep_percent_range: tuple[float, float] = (0.0, 1.0),
        vae: Any = None,
        extra_concat: Sequence[Tensor] = (),
    ) -> ControlBase:
        """The picture [batch, channels, h, w] in 0..1, and how it is used: between the percentages of sampling, 0 the
        start. extra_concat: tensors put beside it on the channel axis, such as a mask."""
        self.cond_hint_original = cond_hint
        self.strength = strength
        self.timestep_percent_range = timestep_percent_range
        if self.latent_format is not None:
            if vae is None:
                log.warning("this control net needs a VAE, and none is given")
            self.vae = vae
        self.extra_concat_orig = list(extra_concat)
        if self.concat_mask and not self.extra_concat_orig:
            # Nothing is masked.
            self.extra_concat_orig.append(torch.zeros(1, 1, 1, 1))
        return self

    def set_previous_controlnet(self, controlnet: ControlBase | None) -> ControlBase:
        """What is added to this control's tensors."""
        self.previous_controlnet = controlnet
        return self

    def set_extra_arg(self, argument: str, value: Any = None) -> None:
        """An argument for the net itself."""
        self.extra_args[argument] = value

    def copy(self) -> ControlBase:
        raise NotImplementedError

    def copy_to(self, c: ControlBase) -> None:
        """All settings to another control."""
        c.cond_hint_original = self.cond_hint_original
        c.strength = self.strength
        c.timestep_percent_range = self.timestep_percent_range
        c.vae = self.vae
        c.latent_format = self.latent_format
        c.compression_ratio = self.compression_ratio
        c.upscale_algorithm = self.upscale_algorithm
        c.global_average_pooling = self.global_average_pooling
        c.strength_type = self.strength_type
        c.extra_args = self.extra_args.copy()
        c.extra_conds = self.extra_conds.copy()
        c.concat_mask = self.concat_mask
        c.extra_concat_orig = self.extra_concat_orig.copy()
        c.preprocess_image = self.preprocess_image
        c.extra_hooks = self.extra_hooks

    # --- a run

    def pre_run(self, model: Any, percent_to_timestep_function: Callable[[float], float]) -> None:
        """Called before the first step."""
        start, end = self.timestep_percent_range
        self.timestep_range = (percent_to_timestep_function(start), percent_to_timestep_function(end))
        if self.previous_controlnet is not None:
            self.previous_controlnet.pre_run(model, percent_to_timestep_function)

    def get_control(
        self, x_noisy: Tensor, t: Tensor, cond: dict[str, Any], batched_number: int, transformer_options: dict
    ) -> Control | None:
        """Tensors for one evaluation: lists under `input`, `middle`, `output` as the network takes them.

        x_noisy: [batch, channels, ...] unscaled; t: sigma [batch]; cond: the model's inputs; batched_number: how many
        conditioning entries the batch holds.
        """
        raise NotImplementedError

    def cleanup(self) -> None:
        """Called after the last step: forget what was kept for the run."""
        if self.previous_controlnet is not None:
            self.previous_controlnet.cleanup()
        self.cond_hint = None
        self.extra_concat = None
        self.timestep_range = None

    def get_models(self) -> list[Any]:
        """Patchers of all nets in the chain."""
        return [] if self.previous_controlnet is None else self.previous_controlnet.get_models()

    def get_extra_hooks(self) -> list[Any]:
        """Hooks of all controls in the chain."""
        own = [] if self.extra_hooks is None else [self.extra_hooks]
        return own if self.previous_controlnet is None else own + self.previous_controlnet.get_extra_hooks()

    def inference_memory_requirements(self, dtype: torch.dtype) -> float:
        """Bytes needed besides the weights, by the whole chain."""
        return (
            0.0 if self.previous_controlnet is None else self.previous_controlnet.inference_memory_requirements(dtype)
        )

    def is_active(self, t: Tensor) -> bool:
        """Whether the range of percentages holds the sigma `t`."""
        if self.timestep_range is None:
            return True
        start, end = self.timestep_range
        return end <= host_sigma(t) <= start

    def _of_previous(
        self, x_noisy: Tensor, t: Tensor, cond: dict[str, Any], batched_number: int, transformer_options: dict
    ) -> Control | None:
        if self.previous_controlnet is None:
            return None
        return self.previous_controlnet.get_control(x_noisy, t, cond, batched_number, transformer_options)

    # --- merging

    def control_merge(
        self, control: Control, control_prev: Control | None, output_dtype: torch.dtype | None
    ) -> Control:
        """This control's tensors, weighted, plus those of the chain before it."""
        weighted: dict[int, Tensor] = {}  # a tensor in several places is weighted once
        out: Control = {name: [] for name in LISTS}
        for name, tensors in control.items():
            for index, tensor in enumerate(tensors):
                if tensor is not None:
                    strength = self._strength_at(index, len(tensors))
                    tensor = weighted.setdefault(id(tensor), self._weighted(tensor, strength, output_dtype))
                out[name].append(tensor)
        if control_prev is None:
            return out
        for name, previous in control_prev.items():
            own = out.setdefault(name, [])
            for index, tensor in enumerate(previous):
                if index >= len(own):
                    own.append(tensor)
                elif tensor is not None:
                    own[index] = tensor if own[index] is None else own[index] + tensor
        return out

    def _strength_at(self, index: int, count: int) -> float:
        return self.strength if self.strength_type == StrengthType.CONSTANT else self.strength ** (count - index)

    def _weighted(self, tensor: Tensor, strength: float, dtype: torch.dtype | None) -> Tensor:
        if self.global_average_pooling:
            tensor = tensor.mean(dim=(2, 3), keepdim=True).expand_as(tensor)
        return (tensor * strength).to(dtype or tensor.dtype)


class ControlNet(ControlBase):
    """A control whose net sees the noisy latent, timestep and text besides the picture."""

    def __init__(
        self,
        control_model: nn.Module | None = None,
        global_average_pooling: bool = False,
        compression_ratio: int = 8,
        latent_format: Any = None,
        load_device: torch.device | None = None,
        manual_cast_dtype: torch.dtype | None = None,
        extra_conds: Sequence[str] = ("y",),
        strength_type: StrengthType = StrengthType.CONSTANT,
        concat_mask: bool = False,
        preprocess_image: Callable[[Tensor], Tensor] = lambda image: image,
    ) -> None:
        super().__init__()
        self.control_model = control_model
        self.load_device = load_device
        self.control_model_wrapped: ModelPatcher | None = None
        if control_model is not None:
            self.control_model_wrapped = patcher_for(control_model, load_device)
        self.global_average_pooling = global_average_pooling
        self.compression_ratio = compression_ratio
        self.latent_format = latent_format
        self.manual_cast_dtype = manual_cast_dtype
        self.extra_conds = list(extra_conds)
        self.strength_type = strength_type
        self.concat_mask = concat_mask
        self.preprocess_image = preprocess_image
        self.model_sampling_current: Any = None

    def copy(self) -> ControlNet:
        c = ControlNet(None, load_device=self.load_device)
        c.control_model = self.control_model
        c.control_model_wrapped = self.control_model_wrapped
        c.manual_cast_dtype = self.manual_cast_dtype
        self.copy_to(c)
        return c

    def pre_run(self, model: Any, percent_to_timestep_function: Callable[[float], float]) -> None:
        super().pre_run(model, percent_to_timestep_function)
        self.model_sampling_current = model.model_sampling

    def cleanup(self) -> None:
        super().cleanup()
        self.model_sampling_current = None

    def get_models(self) -> list[Any]:
        return [*super().get_models(), *([] if self.control_model_wrapped is None else [self.control_model_wrapped])]

    def get_control(
        self, x_noisy: Tensor, t: Tensor, cond: dict[str, Any], batched_number: int, transformer_options: dict
    ) -> Control | None:
        previous = self._of_previous(x_noisy, t, cond, batched_number, transformer_options)
        if not self.is_active(t):
            return previous
        dtype = self.manual_cast_dtype or self.control_model.dtype or x_noisy.dtype
        if self.cond_hint is None or not self._hint_fits(x_noisy):
            self.cond_hint = self._prepared_hint(x_noisy, dtype)
        if x_noisy.shape[0] != self.cond_hint.shape[0]:
            self.cond_hint = broadcast_image_to(self.cond_hint, x_noisy.shape[0], batched_number)
        context = cond.get("crossattn_controlnet", cond["c_crossattn"])
        extra = self.extra_args.copy()
        for name in self.extra_conds:
            value = cond.get(name)
            if value is not None:
                extra[name] = value.to(dtype) if value.is_floating_point() else value
        sampling = self.model_sampling_current
        x = sampling.calculate_input(t, x_noisy).to(dtype)
        inputs = {"context": context.to(dtype), **extra}
        with mismatch.explained(self.control_model, "this control net", x, inputs):
            control = self.control_model(x=x, hint=self.cond_hint, timesteps=sampling.timestep(t).float(), **inputs)
        return self.control_merge(control, previous, output_dtype=x_noisy.dtype)

    # --- the picture

    def _ratio(self) -> int:
        """Pixels per latent cell that the picture is brought to."""
        if self.vae is not None:
            return self.compression_ratio * self.vae.spacial_compression_encode()
        if self.latent_format is not None:
            raise MissingVAE("this control net needs a VAE: connect one where the control net is applied")
        return self.compression_ratio

    def _hint_fits(self, x_noisy: Tensor) -> bool:
        cells = 1 if self.vae is not None else self.compression_ratio
        return all(hint == latent * cells for hint, latent in zip(self.cond_hint.shape[-2:], x_noisy.shape[-2:]))

    def _prepared_hint(self, x_noisy: Tensor, dtype: torch.dtype) -> Tensor:
        """The picture in the size the latent needs, as the net takes it."""
        ratio = self._ratio()
        height, width = x_noisy.shape[-2] * ratio, x_noisy.shape[-1] * ratio
        hint = comfy.utils.common_upscale(self.cond_hint_original, width, height, self.upscale_algorithm, "center")
        hint = self.preprocess_image(hint)
        if self.vae is not None:
            with run_goes_on():
                hint = encoded_pictures(self.vae, hint.movedim(1, -1))
        if self.latent_format is not None:
            hint = self.latent_format.process_in(hint)
        beside = []
        for extra in self.extra_concat_orig:
            extra = comfy.utils.common_upscale(
                extra.to(hint), hint.shape[-1], hint.shape[-2], self.upscale_algorithm, "center"
            )
            if hint.ndim == 5 and extra.ndim == 4:
                extra = extra.unsqueeze(2).expand(-1, -1, hint.shape[2], -1, -1)
            beside.append(comfy.utils.repeat_to_batch_size(extra, hint.shape[0]))
        if beside:
            self.extra_concat = beside
            hint = torch.cat([hint, *beside], dim=1)
        return hint.to(device=x_noisy.device, dtype=dtype)


class ControlNetSD35(ControlNet):
    """Control nets of Stable Diffusion 3.5, whose first layers are those of the model: it lends them for the run."""

    def copy(self) -> ControlNetSD35:
        c = ControlNetSD35(None, load_device=self.load_device)
        c.control_model = self.control_model
        c.control_model_wrapped = self.control_model_wrapped
        c.manual_cast_dtype = self.manual_cast_dtype
        self.copy_to(c)
        return c

    def pre_run(self, model: Any, percent_to_timestep_function: Callable[[float], float]) -> None:
        self.control_model.borrow_from(model.diffusion_model)
        super().pre_run(model, percent_to_timestep_function)

    def cleanup(self) -> None:
        super().cleanup()
        self.control_model.borrow_from(None)


class ControlLora(ControlNet):
    """A ControlNet kept as a low-rank change of the model's own encoder: see `comfy.control_lora`.

    control_weights: `NAME.up` and `NAME.down` for changed layers, and whole tensors where the net has its own. The net
    is put together at the start of each run and uses the weights the model has then.
    """

    def __init__(
        self,
        control_weights: dict[str, Tensor],
        global_average_pooling: bool = False,
        model_options: dict | None = None,
    ) -> None:
        from comfy.control_lora import ControlLoraWeights

        super().__init__(None, global_average_pooling)
        self.control_weights = control_weights
        self.model_options = model_options or {}
        self.control_model_wrapped = patcher_for(ControlLoraWeights(control_weights))

    def copy(self) -> ControlLora:
        c = ControlLora({}, self.global_average_pooling, self.model_options)
        c.control_weights = self.control_weights
        c.control_model_wrapped = self.control_model_wrapped
        self.copy_to(c)
        return c

    def pre_run(self, model: Any, percent_to_timestep_function: Callable[[float], float]) -> None:
        from comfy.control_lora import control_lora_network

        super().pre_run(model, percent_to_timestep_function)
        self.manual_cast_dtype = model.get_dtype_inference()
        held = self.control_model_wrapped
        self.control_model = control_lora_network(model, held.model, held.load_device)

    def cleanup(self) -> None:
        super().cleanup()
        self.control_model = None

    def inference_memory_requirements(self, dtype: torch.dtype) -> float:
        # A layer's change and its sum with the model's weight.
        values = 2 * self.control_model_wrapped.model.largest_change()
        own = values * comfy.model_management.dtype_size(dtype)
        return own + ControlBase.inference_memory_requirements(self, dtype)


class T2IAdapter(ControlBase):
    """A small net that sees the picture only: its features are computed once and used in all steps."""

    def __init__(
        self,
        t2i_model: nn.Module,
        channels_in: int,
        compression_ratio: int,
        upscale_algorithm: str,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.t2i_model = t2i_model
        self.channels_in = channels_in
        self.compression_ratio = compression_ratio
        self.upscale_algorithm = upscale_algorithm
        self.device = device or comfy.model_management.get_torch_device()
        self.t2i_model_wrapped = patcher_for(t2i_model, self.device)
        self.control_input: Control | None = None

    def copy(self) -> T2IAdapter:
        c = T2IAdapter(self.t2i_model, self.channels_in, self.compression_ratio, self.upscale_algorithm, self.device)
        c.t2i_model_wrapped = self.t2i_model_wrapped
        self.copy_to(c)
        return c

    def get_models(self) -> list[Any]:
        return [*super().get_models(), self.t2i_model_wrapped]

    def get_control(
        self, x_noisy: Tensor, t: Tensor, cond: dict[str, Any], batched_number: int, transformer_options: dict
    ) -> Control | None:
        previous = self._of_previous(x_noisy, t, cond, batched_number, transformer_options)
        if not self.is_active(t):
            return previous
        height, width = self.scale_image_to(*(n * self.compression_ratio for n in x_noisy.shape[-2:]))
        if self.cond_hint is None or tuple(self.cond_hint.shape[-2:]) != (height, width):
            self.control_input = None
            hint = comfy.utils.common_upscale(self.cond_hint_original, width, height, self.upscale_algorithm, "center")
            if self.channels_in == 1 and hint.shape[1] > 1:
                hint = hint.mean(dim=1, keepdim=True)
            self.cond_hint = hint.float().to(self.device)
        if x_noisy.shape[0] != self.cond_hint.shape[0]:
            broadcast = broadcast_image_to(self.cond_hint, x_noisy.shape[0], batched_number)
            if broadcast is not self.cond_hint:
                self.cond_hint, self.control_input = broadcast, None
        if self.control_input is None:
            self.control_input = self._features()
        return self.control_merge(self.control_input, previous, x_noisy.dtype)

    def _features(self) -> Control:
        """Features by the place of the UNet's encoder that takes them; the lists are used from their end."""
        from comfy.controlnet_files import adapter_places

        features = self.t2i_model(self.cond_hint.to(self.t2i_model.dtype or torch.float32))
        return adapter_places(features, self.t2i_model.config.wide)

    def scale_image_to(self, height: int, width: int) -> tuple[int, int]:
        """The size rounded up to what the net can halve as often as it does."""
        step = self.t2i_model.config.unshuffle
        return -(-height // step) * step, -(-width // step) * step

    def cleanup(self) -> None:
        super().cleanup()
        self.control_input = None


def load_controlnet(ckpt_path: str, model: Any = None, model_options: dict | None = None) -> ControlBase:
    """See `comfy.controlnet_files`."""
    from comfy.controlnet_files import load_controlnet

    return load_controlnet(ckpt_path, model, model_options)


def load_controlnet_state_dict(
    state_dict: dict[str, Tensor], model: Any = None, model_options: dict | None = None, ckpt_path: str | None = None
) -> ControlBase | None:
    """See `comfy.controlnet_files`."""
    from comfy.controlnet_files import load_controlnet_state_dict

    return load_controlnet_state_dict(state_dict, model, model_options, ckpt_path)


def load_t2i_adapter(t2i_data: dict[str, Tensor], model_options: dict | None = None) -> T2IAdapter | None:
    """See `comfy.controlnet_files`."""
    from comfy.controlnet_files import load_t2i_adapter

    return load_t2i_adapter(t2i_data, model_options)
