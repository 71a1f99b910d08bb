"""The node that lets a model work on a latent longer than it can take at once."""

from __future__ import annotations

import re
from typing import Any

from comfy import context_windows as windows
from comfy_api.latest import io


class MalformedIndexList(ValueError):
    """A list of indices holds something else than whole numbers."""


def index_list(text: str, name: str) -> list[int]:
    """The numbers of "0, 4, 8". Raises MalformedIndexList naming what is none."""
    parts = [part for part in re.split(r"[,\s]+", text.strip()) if part]
    wrong = next((part for part in parts if not re.fullmatch(r"\d+", part)), None)
    if wrong is not None:
        raise MalformedIndexList(f"{name}: {wrong!r} is no index; write whole numbers from 0, such as 0, 4, 8")
    return [int(part) for part in parts]


class ContextWindowsManual(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        mappings = {
            "context_schedule": (list(windows.CONTEXT_MAPPING), "standard_static"),
            "fuse_method": (list(windows.FUSE_MAPPING), "pyramid"),
        }
        choices = {name: {"options": options, "default": default} for name, (options, default) in mappings.items()}
        return io.Schema(
            node_id="ContextWindowsManual",
            display_name="Context Windows (Manual)",
            category="model/patch",
            description="Evaluates a long latent in overlapping windows along one of its dimensions.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.Int.Input("context_length", default=16, min=1, tooltip="Cells of a window."),
                io.Int.Input("context_overlap", default=4, min=0, tooltip="Cells that neighbouring windows share."),
                io.Combo.Input(
                    "context_schedule", tooltip="How windows are laid out in each step.", **choices["context_schedule"]
                ),
                io.Int.Input(
                    "context_stride", default=1, min=1, tooltip="Above 1 there are also windows with gaps (uniform)."
                ),
                io.Boolean.Input(
                    "closed_loop", default=False, tooltip="Whether the end leads on to the start (looped)."
                ),
                io.Combo.Input("fuse_method", tooltip="How windows are mixed.", **choices["fuse_method"]),
                io.Int.Input("dim", default=0, min=0, max=5, tooltip="Dimension of the latent: 0 batch, 2 frames."),
                io.Boolean.Input(
                    "freenoise", default=False, tooltip="Later windows start from the noise of the first, shuffled."
                ),
                io.String.Input(
                    "cond_retain_index_list",
                    default="",
                    multiline=False,
                    tooltip="Cells of the conditioning that every window sees, such as 0 for the picture at the start.",
                ),
                io.Boolean.Input(
                    "split_conds_to_windows",
                    default=False,
                    tooltip="Of combined conditionings, a window takes the one for its part of the whole.",
                ),
                io.String.Input(
                    "latent_retain_index_list",
                    default="",
                    multiline=False,
                    tooltip="Cells of the latent that every window sees.",
                ),
                io.Boolean.Input(
                    "causal_window_fix",
                    default=True,
                    tooltip="Windows that begin later see one more frame before them.",
                ),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        context_length: int,
        context_overlap: int,
        context_schedule: str,
        context_stride: int,
        closed_loop: bool,
        fuse_method: str,
        dim: int,
        freenoise: bool,
        cond_retain_index_list: str = "",
        split_conds_to_windows: bool = False,
        latent_retain_index_list: str = "",
        causal_window_fix: bool = True,
    ) -> io.NodeOutput:
        patched = model.clone()
        patched.model_options[windows.HANDLER] = windows.IndexListContextHandler(
            windows.get_matching_context_schedule(context_schedule),
            windows.get_matching_fuse_method(fuse_method),
            context_length,
            # Windows that share all their cells would never get on.
            min(context_overlap, context_length - 1),
            context_stride,
            closed_loop,
            dim,
            freenoise,
            index_list(cond_retain_index_list, "cond_retain_index_list"),
            split_conds_to_windows,
            index_list(latent_retain_index_list, "latent_retain_index_list"),
            causal_window_fix,
        )
        windows.create_prepare_sampling_wrapper(patched)
        windows.create_sampler_sample_wrapper(patched)
        return io.NodeOutput(patched)


NODES = {"comfy_extras.nodes_context_windows": [ContextWindowsManual]}
