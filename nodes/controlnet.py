"""Nodes that load controls and hang them on conditioning."""

from __future__ import annotations

from typing import Any

import folder_paths
from comfy_api.latest import io

STRENGTH = {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.01, "tooltip": "How much the control adds."}
START = {"default": 0.0, "min": 0.0, "max": 1.0, "step": 0.001, "tooltip": "Share of sampling at which it sets in."}
END = {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.001, "tooltip": "Share of sampling at which it ends."}

# Kinds of pictures that union control nets know, by their number.
UNION_TYPES = (
    "openpose",
    "depth",
    "hed/pidi/scribble/ted",
    "canny/lineart/anime_lineart/mlsd",
    "normal",
    "segment",
    "tile",
    "repaint",
)
AUTO = "auto"


def _file_input() -> tuple:
    return (folder_paths.get_filename_list("controlnet"), {"tooltip": "File to load."})


class ControlNetLoader:
    DESCRIPTION = "Loads a ControlNet, a control LoRA or a T2I-Adapter."
    DISPLAY_NAME = "Load ControlNet Model"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("CONTROL_NET",)
    FUNCTION = "load_controlnet"
    SEARCH_ALIASES = ["controlnet", "control net", "t2i adapter"]

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"control_net_name": _file_input()}}

    def load_controlnet(self, control_net_name: str) -> tuple[Any]:
        import comfy.controlnet

        path = folder_paths.get_full_path_or_raise("controlnet", control_net_name)
        return (comfy.controlnet.load_controlnet(path),)


class DiffControlNetLoader:
    DESCRIPTION = "Loads a ControlNet whose file holds the difference to a model."
    DISPLAY_NAME = "Load ControlNet Model (diff)"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("CONTROL_NET",)
    FUNCTION = "load_controlnet"

    @classmethod
    def INPUT_TYPES(cls):
        model = ("MODEL", {"tooltip": "Model to which the file is the difference."})
        return {"required": {"model": model, "control_net_name": _file_input()}}

    def load_controlnet(self, model: Any, control_net_name: str) -> tuple[Any]:
        import comfy.controlnet

        path = folder_paths.get_full_path_or_raise("controlnet", control_net_name)
        return (comfy.controlnet.load_controlnet(path, model),)


def with_control(conditionings: tuple[list, ...], make: Any, apply_to_negative: bool) -> tuple[list, ...]:
    """The conditionings with a control on each entry, chained to what the entry has.

    `make()` gives a new control. Entries that had the same control before share one: they can then be sampled in one
    batch. apply_to_negative: whether the control counts for the negative side of the guidance too.
    """
    made: dict[int, Any] = {}
    out = []
    for conditioning in conditionings:
        entries = []
        for tensor, options in conditioning:
            previous = options.get("control")
            if id(previous) not in made:
                made[id(previous)] = make().set_previous_controlnet(previous)
            changed = {"control": made[id(previous)], "control_apply_to_uncond": apply_to_negative}
            entries.append([tensor, {**options, **changed}])
        out.append(entries)
    return tuple(out)


def apply_control(
    positive: list,
    negative: list,
    control_net: Any,
    image: Any,
    strength: float,
    start_percent: float,
    end_percent: float,
    vae: Any = None,
    extra_concat: tuple = (),
) -> tuple[list, list]:
    """Both conditionings with the control for the picture [batch, h, w, channels] on each entry."""
    if strength == 0:
        return positive, negative
    hint = image.movedim(-1, 1)

    def make() -> Any:
        percents = (start_percent, end_percent)
        return control_net.copy().set_cond_hint(hint, strength, percents, vae=vae, extra_concat=extra_concat)

    return with_control((positive, negative), make, apply_to_negative=False)


class ControlNetApply:
    DESCRIPTION = "Lets a ControlNet steer sampling by a picture, for the positive and the negative side alike."
    DISPLAY_NAME = "Apply ControlNet (DEPRECATED)"
    CATEGORY = "model/conditioning/controlnet"
    RETURN_TYPES = ("CONDITIONING",)
    FUNCTION = "apply_controlnet"
    DEPRECATED = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "conditioning": ("CONDITIONING", {"tooltip": "Conditioning to steer."}),
                "control_net": ("CONTROL_NET", {"tooltip": "What looks at the picture."}),
                "image": ("IMAGE", {"tooltip": "Picture, already prepared for the kind of control."}),
                "strength": ("FLOAT", STRENGTH),
            }
        }

    def apply_controlnet(self, conditioning: list, control_net: Any, image: Any, strength: float) -> tuple[list]:
        if strength == 0:
            return (conditioning,)
        hint = image.movedim(-1, 1)
        return with_control(
            (conditioning,), lambda: control_net.copy().set_cond_hint(hint, strength), apply_to_negative=True
        )


class ControlNetApplyAdvanced:
    DESCRIPTION = "Lets a ControlNet steer a part of sampling by a picture."
    DISPLAY_NAME = "Apply ControlNet"
    CATEGORY = "model/conditioning/controlnet"
    RETURN_TYPES = ("CONDITIONING", "CONDITIONING")
    RETURN_NAMES = ("positive", "negative")
    FUNCTION = "apply_controlnet"
    SEARCH_ALIASES = ["controlnet", "apply controlnet", "t2i adapter"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "positive": ("CONDITIONING", {"tooltip": "Positive conditioning to steer."}),
                "negative": ("CONDITIONING", {"tooltip": "Negative conditioning to steer."}),
                "control_net": ("CONTROL_NET", {"tooltip": "What looks at the picture."}),
                "image": ("IMAGE", {"tooltip": "Picture, already prepared for the kind of control."}),
                "strength": ("FLOAT", STRENGTH),
                "start_percent": ("FLOAT", START),
                "end_percent": ("FLOAT", END),
            },
            "optional": {"vae": ("VAE", {"tooltip": "For ControlNets that work on latents of the picture."})},
        }

    def apply_controlnet(
        self,
        positive: list,
        negative: list,
        control_net: Any,
        image: Any,
        strength: float,
        start_percent: float,
        end_percent: float,
        vae: Any = None,
        extra_concat: tuple = (),
    ) -> tuple[list, list]:
        return apply_control(
            positive, negative, control_net, image, strength, start_percent, end_percent, vae, extra_concat
        )


def _both_sides() -> list:
    return [
        io.Conditioning.Input("positive", tooltip="Positive conditioning to steer."),
        io.Conditioning.Input("negative", tooltip="Negative conditioning to steer."),
        io.ControlNet.Input("control_net", tooltip="What looks at the picture."),
        io.Vae.Input("vae", tooltip="Makes a latent of the picture."),
        io.Image.Input("image", tooltip="Picture, already prepared for the kind of control."),
    ]


def _outputs() -> list:
    return [io.Conditioning.Output(display_name="positive"), io.Conditioning.Output(display_name="negative")]


class ControlNetApplySD3(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ControlNetApplySD3",
            display_name="Apply Controlnet with VAE",
            category="model/conditioning/controlnet",
            description="Lets a ControlNet that works on latents steer a part of sampling by a picture.",
            is_deprecated=True,
            inputs=[
                *_both_sides(),
                io.Float.Input("strength", **STRENGTH),
                io.Float.Input("start_percent", **START),
                io.Float.Input("end_percent", **END),
            ],
            outputs=_outputs(),
        )

    @classmethod
    def execute(
        cls,
        positive: list,
        negative: list,
        control_net: Any,
        vae: Any,
        image: Any,
        strength: float,
        start_percent: float,
        end_percent: float,
    ) -> io.NodeOutput:
        return io.NodeOutput(
            *apply_control(positive, negative, control_net, image, strength, start_percent, end_percent, vae)
        )


class SetUnionControlNetType(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SetUnionControlNetType",
            display_name="Set Union ControlNet Type",
            category="model/conditioning/controlnet",
            description="Tells a ControlNet for several kinds of pictures which kind it gets.",
            inputs=[
                io.ControlNet.Input("control_net", tooltip="A union ControlNet."),
                io.Combo.Input("type", options=[AUTO, *UNION_TYPES], tooltip="Kind of picture; auto says nothing."),
            ],
            outputs=[io.ControlNet.Output()],
        )

    @classmethod
    def execute(cls, control_net: Any, type: str) -> io.NodeOutput:
        changed = control_net.copy()
        changed.set_extra_arg("control_type", [UNION_TYPES.index(type)] if type in UNION_TYPES else [])
        return io.NodeOutput(changed)


class ControlNetInpaintingAliMamaApply(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ControlNetInpaintingAliMamaApply",
            display_name="Apply ControlNet Inpainting (AliMama)",
            category="model/conditioning/controlnet",
            description="Lets an inpainting ControlNet fill the masked part of a picture.",
            search_aliases=["masked controlnet", "inpainting controlnet"],
            inputs=[
                *_both_sides(),
                io.Mask.Input("mask", tooltip="1 where the picture is to be filled."),
                io.Float.Input("strength", **STRENGTH),
                io.Float.Input("start_percent", **START, advanced=True),
                io.Float.Input("end_percent", **END, advanced=True),
            ],
            outputs=_outputs(),
        )

    @classmethod
    def execute(
        cls,
        positive: list,
        negative: list,
        control_net: Any,
        vae: Any,
        image: Any,
        mask: Any,
        strength: float,
        start_percent: float,
        end_percent: float,
    ) -> io.NodeOutput:
        import comfy.utils

        beside: tuple = ()
        if control_net.concat_mask:
            # These nets take the part to keep as 1, and see a picture that is black where it is to be filled.
            keep = 1.0 - mask.reshape(-1, 1, *mask.shape[-2:])
            height, width, channels = image.shape[1:]
            fitted = comfy.utils.common_upscale(keep, width, height, "bilinear", "center").round()
            image = image * fitted.movedim(1, -1).expand(-1, -1, -1, channels)
            beside = (keep,)
        return io.NodeOutput(
            *apply_control(
                positive, negative, control_net, image, strength, start_percent, end_percent, vae, extra_concat=beside
            )
        )


NODES = {
    "nodes": [ControlNetLoader, DiffControlNetLoader, ControlNetApply, ControlNetApplyAdvanced],
    "comfy_extras.nodes_sd3": [ControlNetApplySD3],
    "comfy_extras.nodes_controlnet": [SetUnionControlNetType, ControlNetInpaintingAliMamaApply],
}
