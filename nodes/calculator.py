"""The node around the calculator."""

from __future__ import annotations

import math

from comfy_api.latest import io

from .expression import ExpressionError, UnknownNameError, evaluate


class ComfyMathExpression(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ComfyMathExpression",
            display_name="Math Expression",
            category="utilities",
            description="Computes an arithmetic expression of its inputs.",
            search_aliases=["calculate", "formula", "arithmetic"],
            inputs=[
                io.String.Input(
                    "expression",
                    tooltip=(
                        "Expression of a, b, c, … and of the list `values`. Functions: abs, ceil, cos, "
                        "float, floor, int, log, log2, log10, max, min, pow, round, sin, sqrt, sum, "
                        "tan."
                    ),
                    default="a + b",
                    multiline=True,
                ),
                io.Autogrow.Input(
                    "values",
                    template=io.Autogrow.TemplateNames(
                        io.MultiType.Input("value", types=[io.Float, io.Int, io.Boolean]),
                        names=[
                            "a",
                            "b",
                            "c",
                            "d",
                            "e",
                            "f",
                            "g",
                            "h",
                            "i",
                            "j",
                            "k",
                            "l",
                            "m",
                            "n",
                            "o",
                            "p",
                            "q",
                            "r",
                            "s",
                            "t",
                            "u",
                            "v",
                            "w",
                            "x",
                            "y",
                            "z",
                        ],
                        min=1,
                    ),
                ),
            ],
            outputs=[
                io.Float.Output(tooltip="The result."),
                io.Int.Output(tooltip="The result without its fraction."),
                io.Boolean.Output(display_name="BOOL", tooltip="Whether it is not zero."),
            ],
        )

    @classmethod
    def execute(cls, expression: str, values: dict[str, float | int | bool]) -> io.NodeOutput:
        try:
            result = evaluate(expression, {**values, "values": list(values.values())})
        except UnknownNameError:
            raise
        except ExpressionError as error:
            # Clients know this exception by the name of the built-in one.
            raise ValueError(str(error)) from None
        if not isinstance(result, (bool, int, float)):
            raise ValueError(f"{expression!r} gives a {type(result).__name__}, not a number")
        try:
            as_float = float(result)
        except OverflowError:
            raise ValueError(f"the result of {expression!r} is too large") from None
        if not math.isfinite(as_float):
            raise ValueError(f"the result of {expression!r} is {result}")
        return io.NodeOutput(as_float, int(result), bool(result))


NODES = {
    "comfy_extras.nodes_math": [ComfyMathExpression],
}
