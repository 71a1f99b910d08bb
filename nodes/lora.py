"""Core nodes that add LoRA files to a model and its text encoder."""

from __future__ import annotations

from typing import Any

import folder_paths

STRENGTH = {"default": 1.0, "min": -100.0, "max": 100.0, "step": 0.01}


class LoraLoader:
    DESCRIPTION = "Adds a LoRA to a model and to its text encoder. Several loaders in a row add up."
    DISPLAY_NAME = "Load LoRA (Model and CLIP)"
    CATEGORY = "model/loaders"
    ESSENTIALS_CATEGORY = "Image Generation"
    RETURN_TYPES = ("MODEL", "CLIP")
    FUNCTION = "load_lora"
    SEARCH_ALIASES = ["lora", "lycoris", "dora", "apply lora"]
    OUTPUT_TOOLTIPS = ("The model with the LoRA.", "The text encoder with the LoRA.")

    def __init__(self) -> None:
        # Path, modification time and contents of the file used last: only strengths change most of the time.
        self.loaded_lora: tuple[str, float, Any] | None = None

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to add the LoRA to."}),
                "clip": ("CLIP", {"tooltip": "Text encoder to add the LoRA to."}),
                "lora_name": (folder_paths.get_filename_list("loras"), {"tooltip": "File to load."}),
                "strength_model": (
                    "FLOAT",
                    {**STRENGTH, "tooltip": "How much of the LoRA the model gets; negative values subtract it."},
                ),
                "strength_clip": (
                    "FLOAT",
                    {**STRENGTH, "tooltip": "How much of the LoRA the text encoder gets; negative values subtract it."},
                ),
            }
        }

    def load_lora(
        self, model: Any, clip: Any, lora_name: str, strength_model: float, strength_clip: float
    ) -> tuple[Any, Any]:
        if strength_model == 0 and strength_clip == 0:
            return (model, clip)
        import comfy.sd

        lora, metadata = self._contents(folder_paths.get_full_path_or_raise("loras", lora_name))
        return comfy.sd.load_lora_for_models(model, clip, lora, strength_model, strength_clip, lora_metadata=metadata)

    def _contents(self, path: str) -> Any:
        """(tensors, metadata) of a file, read again only when another or a changed one is asked for."""
        import os

        import comfy.lora

        modified = os.path.getmtime(path)
        if self.loaded_lora is None or self.loaded_lora[:2] != (path, modified):
            self.loaded_lora = None
            self.loaded_lora = (path, modified, comfy.lora.load_lora_file(path))
        return self.loaded_lora[2]


class LoraLoaderModelOnly(LoraLoader):
    DESCRIPTION = "Adds a LoRA to a model; the text encoder stays as it is."
    DISPLAY_NAME = "Load LoRA"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load_lora_model_only"
    OUTPUT_TOOLTIPS = ("The model with the LoRA.",)

    @classmethod
    def INPUT_TYPES(cls):
        both = super().INPUT_TYPES()["required"]
        return {"required": {name: both[name] for name in ("model", "lora_name", "strength_model")}}

    def load_lora_model_only(self, model: Any, lora_name: str, strength_model: float) -> tuple[Any]:
        return (self.load_lora(model, None, lora_name, strength_model, 0)[0],)


NODES = {"nodes": [LoraLoader, LoraLoaderModelOnly]}
