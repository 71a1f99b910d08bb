"""The options a patcher hands to sampling and to the network, and the methods that set them.

`model_options` holds functions for the sampler; its entry `transformer_options` goes to the network and holds
`patches`, `patches_replace` (see `comfy.models.attention`) and wrappers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from comfy.patcher_extension import copy_nested_dicts


def create_model_options_clone(orig_model_options: dict[str, Any]) -> dict[str, Any]:
    """A copy whose dicts and lists can be changed without touching the original."""
    return copy_nested_dicts(orig_model_options)


def set_model_options_patch_replace(
    model_options: dict[str, Any],
    patch: Callable,
    name: str,
    block_name: str,
    number: int,
    transformer_index: int | None = None,
) -> dict[str, Any]:
    """A copy of the options where `patch` replaces what `name` (such as "attn1") computes in one block."""
    options = create_model_options_clone(model_options)
    block = (block_name, number) if transformer_index is None else (block_name, number, transformer_index)
    replacements = options.setdefault("transformer_options", {}).setdefault("patches_replace", {})
    replacements.setdefault(name, {})[block] = patch
    return options


def set_model_options_post_cfg_function(
    model_options: dict[str, Any], post_cfg_function: Callable, disable_cfg1_optimization: bool = False
) -> dict[str, Any]:
    """The options with one more function called on the guided prediction."""
    return _append(model_options, "sampler_post_cfg_function", post_cfg_function, disable_cfg1_optimization)


def set_model_options_pre_cfg_function(
    model_options: dict[str, Any], pre_cfg_function: Callable, disable_cfg1_optimization: bool = False
) -> dict[str, Any]:
    """The options with one more function called on the predictions before guidance."""
    return _append(model_options, "sampler_pre_cfg_function", pre_cfg_function, disable_cfg1_optimization)


def _append(options: dict[str, Any], name: str, function: Callable, disable_cfg1: bool) -> dict[str, Any]:
    options[name] = [*options.get(name, []), function]
    if disable_cfg1:
        options["disable_cfg1_optimization"] = True
    return options


class OptionSetters:
    """The methods by which nodes change a patcher's `model_options`."""

    model_options: dict[str, Any]

    @property
    def _transformer_options(self) -> dict[str, Any]:
        return self.model_options.setdefault("transformer_options", {})

    def set_model_sampler_cfg_function(
        self, sampler_cfg_function: Callable, disable_cfg1_optimization: bool = False
    ) -> None:
        """Replace guidance: function(args) with cond, uncond, cond_scale... An old one takes these three."""
        function = sampler_cfg_function
        if len(inspect.signature(function).parameters) == 3:

            def function(args: dict[str, Any]) -> torch.Tensor:
                return sampler_cfg_function(args["cond"], args["uncond"], args["cond_scale"])

        self.model_options["sampler_cfg_function"] = function
        if disable_cfg1_optimization:
            self.model_options["disable_cfg1_optimization"] = True

    def set_model_sampler_post_cfg_function(
        self, post_cfg_function: Callable, disable_cfg1_optimization: bool = False
    ) -> None:
        set_model_options_post_cfg_function(self.model_options, post_cfg_function, disable_cfg1_optimization)

    def set_model_sampler_pre_cfg_function(
        self, pre_cfg_function: Callable, disable_cfg1_optimization: bool = False
    ) -> None:
        set_model_options_pre_cfg_function(self.model_options, pre_cfg_function, disable_cfg1_optimization)

    def set_model_sampler_calc_cond_batch_function(self, sampler_calc_cond_batch_function: Callable) -> None:
        self.model_options["sampler_calc_cond_batch_function"] = sampler_calc_cond_batch_function

    def disable_model_cfg1_optimization(self) -> None:
        """Have the negative evaluated also where guidance would leave it out."""
        self.model_options["disable_cfg1_optimization"] = True

    def set_model_unet_function_wrapper(self, unet_wrapper_function: Callable) -> None:
        """function(apply_model, {"input", "timestep", "c", "cond_or_uncond"}) in place of each model call."""
        self.model_options["model_function_wrapper"] = unet_wrapper_function

    def set_model_denoise_mask_function(self, denoise_mask_function: Callable) -> None:
        """function(sigma, mask, extra_options=...) -> the mask in force at that sigma."""
        self.model_options["denoise_mask_function"] = denoise_mask_function

    def set_model_patch(self, patch: Any, name: str) -> None:
        """Add to the list of network patches of that name."""
        self._transformer_options.setdefault("patches", {}).setdefault(name, []).append(patch)

    def set_model_patch_replace(
        self, patch: Callable, name: str, block_name: str, number: int, transformer_index: int | None = None
    ) -> None:
        self.model_options = set_model_options_patch_replace(
            self.model_options, patch, name, block_name, number, transformer_index
        )

    def set_model_attn1_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "attn1_patch")

    def set_model_attn2_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "attn2_patch")

    def set_model_attn1_replace(self, patch, block_name, number, transformer_index=None) -> None:
        self.set_model_patch_replace(patch, "attn1", block_name, number, transformer_index)

    def set_model_attn2_replace(self, patch, block_name, number, transformer_index=None) -> None:
        self.set_model_patch_replace(patch, "attn2", block_name, number, transformer_index)

    def set_model_attn1_output_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "attn1_output_patch")

    def set_model_attn2_output_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "attn2_output_patch")

    def set_model_input_block_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "input_block_patch")

    def set_model_input_block_patch_after_skip(self, patch: Callable) -> None:
        self.set_model_patch(patch, "input_block_patch_after_skip")

    def set_model_output_block_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "output_block_patch")

    def set_model_emb_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "emb_patch")

    def set_model_forward_timestep_embed_patch(self, patch: tuple[type, Callable]) -> None:
        self.set_model_patch(patch, "forward_timestep_embed_patch")

    def set_model_double_block_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "double_block")

    def set_model_post_input_patch(self, patch: Callable) -> None:
        self.set_model_patch(patch, "post_input")

    def set_model_compute_dtype(self, dtype: torch.dtype) -> None:
        """Compute in another dtype than the model would."""
        self.add_object_patch("manual_cast_dtype", dtype)

    def model_patches_to(self, device_or_dtype: Any) -> None:
        """Move patches that bring tensors along (those with a method `to`)."""
        options = self._transformer_options
        for patches in options.get("patches", {}).values():
            for i, patch in enumerate(patches):
                if hasattr(patch, "to"):
                    patches[i] = patch.to(device_or_dtype)
        for replacements in options.get("patches_replace", {}).values():
            for key, patch in replacements.items():
                if hasattr(patch, "to"):
                    replacements[key] = patch.to(device_or_dtype)
        wrapper = self.model_options.get("model_function_wrapper")
        if hasattr(wrapper, "to"):
            self.model_options["model_function_wrapper"] = wrapper.to(device_or_dtype)
