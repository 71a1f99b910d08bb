"""Keys and values of reference pictures, computed in a run's first step and kept for the others.

Source: Black Forest Labs 2026, FLUX.2 [klein] KV, as its published pipeline runs it: references are conditioned on
timestep 0 and look at nothing but themselves, so that every step would compute the same of them. The later steps run
without their tokens, on which text and image look through what was kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comfy.models.references import TIMESTEP_ZERO
from comfy.patcher_extension import CallbacksMP

COUNTS = "reference_image_num_tokens"
# Where a network says how it places references.
DEFAULT_METHOD = "default_ref_method"


class IncompleteReferenceCache(RuntimeError):
    """A block runs that was left out when the references were computed."""


class ReferenceCache:
    """Patches `post_input` and `attn1_patch` of one model. What is kept belongs to one run, and there to one set of
    conditionings evaluated together."""

    def __init__(self) -> None:
        self._runs: dict[Any, dict[tuple[str, int], tuple[Tensor, Tensor]]] = {}
        self._present: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        self._filled = False
        self._mask: Tensor | None = None

    def clear(self, *args: Any) -> None:
        """Forget everything: a run begins or ends."""
        self._runs, self._present, self._filled, self._mask = {}, {}, False, None

    def enter(self, values: dict[str, Any]) -> dict[str, Any]:
        """For `post_input`: without the references' tokens, once they are known."""
        options, img = values["transformer_options"], values["img"]
        counts = options.get(COUNTS)
        if not counts:
            return {}
        rows = tuple(options.get("uuids") or ()), tuple(options.get("cond_or_uncond") or ())
        call = (*rows, tuple(counts), img.shape[0])
        self._filled = call in self._runs
        self._present = self._runs.setdefault(call, {})
        self._mask = None
        return {"img": img[:, : -sum(counts)]} if self._filled else {}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, pe: Tensor, attn_mask: Tensor | None, extra_options: dict[str, Any]
    ) -> dict[str, Any]:
        """For `attn1_patch`: keep the references' keys and values, or bring them back."""
        counts = extra_options.get(COUNTS)
        if not counts:
            return {}
        block, references = (extra_options["block_type"], extra_options["block_index"]), sum(counts)
        if not self._filled:
            self._present[block] = (k[:, :, -references:].clone(), v[:, :, -references:].clone())
            return {"attn_mask": self._alone(attn_mask, q.shape[2], references, q.device)}
        if block not in self._present:
            raise IncompleteReferenceCache(
                f"{block[0]} block {block[1]} was left out when the reference pictures were computed, and runs now: "
                "a node that leaves blocks out for a part of the steps does not go with the cache of references"
            )
        keys, values = self._present[block]
        if attn_mask is not None and attn_mask.shape[-2] > 1:
            attn_mask = attn_mask[..., : q.shape[2], :]
        return {"k": torch.cat([k, keys], dim=2), "v": torch.cat([v, values], dim=2), "attn_mask": attn_mask}

    def _alone(self, mask: Tensor | None, tokens: int, references: int, device: torch.device) -> Tensor:
        """`mask` with the references looking at themselves only."""
        if self._mask is None:
            self._mask = torch.ones(tokens, tokens, dtype=torch.bool, device=device)
            self._mask[-references:, :-references] = False
        if mask is None:
            return self._mask
        return mask & self._mask if mask.dtype == torch.bool else mask.masked_fill(~self._mask, float("-inf"))


def apply_reference_cache(model: Any) -> Any:
    """A clone of a FLUX patcher whose runs compute references once."""
    cache = ReferenceCache()
    patched = model.clone()
    patched.set_model_post_input_patch(cache.enter)
    patched.set_model_attn1_patch(cache.attend)
    patched.add_object_patch(f"diffusion_model.{DEFAULT_METHOD}", TIMESTEP_ZERO)
    patched.add_callback(CallbacksMP.ON_PRE_RUN, cache.clear)
    patched.add_callback(CallbacksMP.ON_CLEANUP, cache.clear)
    return patched
