"""Built-in nodes, and the names that custom node packs import from `nodes` (spec: node-api.md 2.5).

Every family is a module here with a table NODES: `python_module` as clients see it -> its classes. Core classes, the
ones whose `python_module` is `nodes`, are also attributes of this package.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys

import comfy.interrupt
import folder_paths

from .constants import MAX_RESOLUTION
from .loader import EXTENSION_WEB_DIRS, LOADED_MODULE_DIRS, PACKS, load_custom_node, load_custom_packs
from .registry import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, add_built_in, node_info

log = logging.getLogger(__name__)

# Packs import nodes by the module names of the reference; the room `compat` has modules of these names.
_COMPAT = os.path.join(folder_paths.program_path, "compat")
if _COMPAT not in sys.path:
    sys.path.append(_COMPAT)

CORE_FAMILIES = (
    "sampling",
    "loaders",
    "lora",
    "controlnet",
    "gligen",
    "conditioning",
    "vision",
    "vae",
    "latents",
    "latent_files",
    "images",
    "image_files",
)
EXTRA_FAMILIES = (
    "schedulers",
    "model_schedulers",
    "tabled_schedulers",
    "sigmas",
    "solvers",
    "solvers_advanced",
    "custom_sampling",
    "guiders",
    "guidance",
    "projected_guidance",
    "differential_diffusion",
    "guidance_methods",
    "perp_neg",
    "model_sampling",
    "model_parametrisation",
    "hooks",
    "hook_keyframes",
    "hook_conditioning",
    "model_conditioning",
    "picture_upscaler",
    "view_models",
    "family_text",
    "llm_text",
    "picture_text",
    "text_generation",
    "unet_patches",
    "attention_guidance",
    "normalized_attention",
    "reference_cache",
    "context_windows",
    "attention_weights",
    "model_advanced",
    "model_patches",
    "hypernetworks",
    "lora_tools",
    "model_merging",
    "model_saving",
    "empty_latents",
    "latent_math",
    "latent_batches",
    "wan",
    "wan_control",
    "wan_camera",
    "masks",
    "compositing",
    "image_transform",
    "image_batches",
    "image_tiles",
    "image_resize",
    "upscale_models",
    "image_filters",
    "color_transfer",
    "edges",
    "image_output",
    "primitives",
    "calculator",
    "text",
    "text_patterns",
    "text_lists",
    "image_lists",
    "boxes",
    "curves",
    "audio",
    "audio_mixing",
    "sound_files",
    "video_files",
    "video_parts",
    "video_compression",
)

__all__ = [
    "EXTENSION_WEB_DIRS",
    "LOADED_MODULE_DIRS",
    "MAX_RESOLUTION",
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "PACKS",
    "before_node_execution",
    "init_extra_nodes",
    "interrupt_processing",
    "load_custom_node",
    "load_custom_packs",
    "node_info",
]


def _add_family(name: str) -> None:
    """Register a family. One that cannot be imported, for want of a library, is logged and left out."""
    try:
        family = importlib.import_module(f".{name}", __name__)
    except ImportError as error:
        log.error("The built-in nodes of %s are not available: %s", name, error)
        return
    for module, classes in family.NODES.items():
        add_built_in(module, classes)
        if module == "nodes":
            globals().update((cls.__name__, cls) for cls in classes)
    if hasattr(family, "common_ksampler"):
        globals()["common_ksampler"] = family.common_ksampler


for _family in CORE_FAMILIES + EXTRA_FAMILIES:
    _add_family(_family)


def interrupt_processing(value: bool = True) -> None:
    """Ask the running prompt to stop at its next chance (or take that back)."""
    comfy.interrupt.interrupt_current_processing(value)


def before_node_execution() -> None:
    """Raises InterruptProcessingException if the running prompt was asked to stop."""
    comfy.interrupt.throw_exception_if_processing_interrupted()


async def init_extra_nodes(init_custom_nodes: bool = True, init_api_nodes: bool = False) -> None:
    """Register what comes on top of the core nodes, then the custom packs.

    init_api_nodes: accepted for the interface's sake; remote paid nodes are not part of this program.
    """
    if init_custom_nodes:
        await load_custom_packs()
    else:
        log.info("Custom nodes are not loaded")
