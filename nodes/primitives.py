"""Nodes for single values: constants, conversion, logic, and looking at values."""

from __future__ import annotations

import json
import math
from typing import Any

from comfy_api.latest import io


class PrimitiveString(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PrimitiveString",
            display_name="Text",
            category="utilities/primitive",
            description="A text, to be used in several places.",
            inputs=[io.String.Input("value", tooltip="The text.")],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, value: str) -> io.NodeOutput:
        return io.NodeOutput(value)


class PrimitiveStringMultiline(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PrimitiveStringMultiline",
            display_name="Text (Multiline)",
            category="utilities/primitive",
            description="A text of several lines.",
            essentials_category="Basics",
            inputs=[io.String.Input("value", tooltip="The text.", multiline=True)],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, value: str) -> io.NodeOutput:
        return io.NodeOutput(value)


class PrimitiveInt(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PrimitiveInt",
            display_name="Int",
            category="utilities/primitive",
            description="A whole number, to be used in several places.",
            inputs=[
                io.Int.Input(
                    "value",
                    tooltip="The number.",
                    min=-9223372036854775807,
                    max=9223372036854775807,
                    control_after_generate="fixed",
                )
            ],
            outputs=[io.Int.Output()],
        )

    @classmethod
    def execute(cls, value: int) -> io.NodeOutput:
        return io.NodeOutput(value)


class PrimitiveFloat(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PrimitiveFloat",
            display_name="Float",
            category="utilities/primitive",
            description="A number, to be used in several places.",
            inputs=[
                io.Float.Input(
                    "value", tooltip="The number.", min=-9223372036854775807, max=9223372036854775807, step=0.1
                )
            ],
            outputs=[io.Float.Output()],
        )

    @classmethod
    def execute(cls, value: float) -> io.NodeOutput:
        return io.NodeOutput(float(value))


class PrimitiveBoolean(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="PrimitiveBoolean",
            display_name="Boolean",
            category="utilities/primitive",
            description="Yes or no, to be used in several places.",
            inputs=[io.Boolean.Input("value", tooltip="The value.")],
            outputs=[io.Boolean.Output()],
        )

    @classmethod
    def execute(cls, value: bool) -> io.NodeOutput:
        return io.NodeOutput(value)


class SeedNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SeedNode",
            display_name="Seed",
            category="utilities",
            description="A seed that several nodes can share.",
            inputs=[
                io.Int.Input(
                    "seed", tooltip="The seed.", min=0, max=9223372036854775807, control_after_generate="fixed"
                )
            ],
            outputs=[io.Int.Output(display_name="seed")],
        )

    @classmethod
    def execute(cls, seed: int) -> io.NodeOutput:
        return io.NodeOutput(seed)


class PreviewAny:
    DESCRIPTION = "Shows any value as text."
    DISPLAY_NAME = "Preview as Text"
    CATEGORY = "utilities"
    RETURN_TYPES = ("STRING",)
    FUNCTION = "main"
    OUTPUT_NODE = True
    SEARCH_ALIASES = ["show", "display", "inspect", "text"]

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"source": ("*", {"tooltip": "Value to show."})}}

    def main(self, source: Any = None) -> dict:
        text = as_text(source)
        return {"ui": {"text": (text,)}, "result": (text,)}


def as_text(value: Any) -> str:
    """Plain values as Python writes them, lists and dicts as indented JSON where that is possible."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    try:
        return json.dumps(value, indent=4, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


class ComfyNumberConvert(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ComfyNumberConvert",
            display_name="Convert Number",
            category="utilities",
            description="Turns a number, a text or yes/no into numbers.",
            inputs=[
                io.MultiType.Input(
                    "value",
                    types=[io.Int, io.Float, io.String, io.Boolean],
                    tooltip="Value to convert.",
                    display_name="value",
                )
            ],
            outputs=[io.Float.Output(tooltip="The value."), io.Int.Output(tooltip="The value without its fraction.")],
        )

    @classmethod
    def execute(cls, value: int | float | str | bool) -> io.NodeOutput:
        number = cls._parse(value)
        if not math.isfinite(number):
            raise ValueError(f"{value!r} is not a finite number")
        return io.NodeOutput(float(number), int(number))

    @staticmethod
    def _parse(value: int | float | str | bool) -> int | float:
        if isinstance(value, str):
            text = value.strip()
            if not text:
                raise ValueError("an empty text is not a number")
            try:
                # Whole numbers keep all their digits.
                return int(text)
            except ValueError:
                pass
            try:
                return float(text)
            except ValueError:
                raise ValueError(f"{value!r} is not a number") from None
        if isinstance(value, (bool, int, float)):
            return value
        raise TypeError(f"cannot convert a {type(value).__name__} to a number")


class ComfyNotNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ComfyNotNode",
            display_name="Not",
            category="utilities/logic",
            description="The opposite: true for empty, zero or false.",
            inputs=[io.AnyType.Input("value", tooltip="Value to look at.")],
            outputs=[io.Boolean.Output()],
        )

    @classmethod
    def execute(cls, value: Any) -> io.NodeOutput:
        return io.NodeOutput(not value)


class ComfyAndNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ComfyAndNode",
            display_name="And",
            category="utilities/logic",
            description="True when all values are.",
            inputs=[
                io.Autogrow.Input(
                    "values",
                    template=io.Autogrow.TemplatePrefix(
                        io.AnyType.Input("value", tooltip="Value to look at."), prefix="value", min=1, max=10
                    ),
                )
            ],
            outputs=[io.Boolean.Output()],
        )

    @classmethod
    def execute(cls, values: dict[str, Any]) -> io.NodeOutput:
        return io.NodeOutput(all(values.values()))


class ComfyOrNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ComfyOrNode",
            display_name="Or",
            category="utilities/logic",
            description="True when one value is.",
            inputs=[
                io.Autogrow.Input(
                    "values",
                    template=io.Autogrow.TemplatePrefix(
                        io.AnyType.Input("value", tooltip="Value to look at."), prefix="value", min=1, max=10
                    ),
                )
            ],
            outputs=[io.Boolean.Output()],
        )

    @classmethod
    def execute(cls, values: dict[str, Any]) -> io.NodeOutput:
        return io.NodeOutput(any(values.values()))


class ComfySwitchNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        template = io.MatchType.Template("switch")
        return io.Schema(
            node_id="ComfySwitchNode",
            display_name="If/Else Switch",
            category="utilities/logic",
            description="Passes on one of two values; the other one is not even computed.",
            search_aliases=["if", "branch", "select"],
            is_experimental=True,
            inputs=[
                io.Boolean.Input("switch", tooltip="Which of them."),
                io.MatchType.Input("on_false", template=template, tooltip="Value when the switch is off.", lazy=True),
                io.MatchType.Input("on_true", template=template, tooltip="Value when the switch is on.", lazy=True),
            ],
            outputs=[io.MatchType.Output(template=template, display_name="output")],
        )

    @classmethod
    def check_lazy_status(cls, switch: bool, on_false: Any = None, on_true: Any = None) -> list[str]:
        wanted, value = ("on_true", on_true) if switch else ("on_false", on_false)
        return [wanted] if value is None else []

    @classmethod
    def execute(cls, switch: bool, on_false: Any = None, on_true: Any = None) -> io.NodeOutput:
        return io.NodeOutput(on_true if switch else on_false)


class CustomCombo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CustomCombo",
            display_name="Custom Combo",
            category="utilities",
            description="A choice from a list that is written in the browser.",
            is_experimental=True,
            inputs=[io.Combo.Input("choice", options=[], tooltip="The choice.")],
            outputs=[
                io.String.Output(tooltip="The choice."),
                io.Int.Output(display_name="INDEX", tooltip="Its place in the list."),
            ],
            accept_all_inputs=True,
        )

    @classmethod
    def validate_inputs(cls, choice: str) -> bool:
        # The browser owns the list of choices; taking the check over switches the built-in one off.
        return True

    @classmethod
    def execute(cls, choice: str, index: int = 0, **options: Any) -> io.NodeOutput:
        return io.NodeOutput(choice, index)


class CreateList(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        template = io.MatchType.Template("type")
        return io.Schema(
            node_id="CreateList",
            display_name="Create List",
            category="utilities",
            description="Makes a list, so that the nodes after it run once for each member.",
            is_input_list=True,
            inputs=[
                io.Autogrow.Input(
                    "inputs",
                    template=io.Autogrow.TemplatePrefix(
                        io.MatchType.Input("input", template=template), prefix="input", min=1, max=10
                    ),
                )
            ],
            outputs=[io.MatchType.Output(template=template, display_name="list", is_output_list=True)],
        )

    @classmethod
    def execute(cls, inputs: dict[str, list]) -> io.NodeOutput:
        return io.NodeOutput([value for values in inputs.values() for value in values])


class ColorToRGBInt(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ColorToRGBInt",
            display_name="Color Picker",
            category="utilities",
            description="A colour as number, text and opacity.",
            inputs=[io.Color.Input("color", tooltip="The colour.", default="#ffffff", socketless=True)],
            outputs=[
                io.Int.Output(display_name="rgb_int", tooltip="0xRRGGBB as a number."),
                io.Color.Output(display_name="hex", tooltip="The colour as text."),
                io.Float.Output(display_name="alpha", tooltip="Opacity: 1 is opaque."),
            ],
        )

    @classmethod
    def execute(cls, color: str) -> io.NodeOutput:
        digits = color[1:] if color.startswith("#") else color
        if len(digits) not in (6, 8):
            raise ValueError(f"{color!r} is not a colour of the form #RRGGBB or #RRGGBBAA")
        try:
            rgb, alpha = int(digits[:6], 16), int(digits[6:] or "ff", 16)
        except ValueError:
            raise ValueError(f"{color!r} is not a colour of the form #RRGGBB or #RRGGBBAA") from None
        return io.NodeOutput(rgb, f"#{digits[:6]}", alpha / 255)


NODES = {
    "comfy_extras.nodes_primitive": [
        PrimitiveString,
        PrimitiveStringMultiline,
        PrimitiveInt,
        PrimitiveFloat,
        PrimitiveBoolean,
    ],
    "comfy_extras.nodes_seed": [SeedNode],
    "comfy_extras.nodes_preview_any": [PreviewAny],
    "comfy_extras.nodes_number_convert": [ComfyNumberConvert],
    "comfy_extras.nodes_logic": [ComfyNotNode, ComfyAndNode, ComfyOrNode, ComfySwitchNode, CustomCombo],
    "comfy_extras.nodes_toolkit": [CreateList],
    "comfy_extras.nodes_color": [ColorToRGBInt],
}
