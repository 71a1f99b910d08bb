"""Nodes of curves: `{points: [[x, y], ...], interpolation: monotone_cubic or linear}`, from 0 to 1 both ways."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io


class CurveEditor(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CurveEditor",
            display_name="Curve Editor",
            category="utilities",
            description="A curve drawn by hand.",
            inputs=[
                io.Curve.Input("curve", tooltip="Points of the curve, and how to go between them."),
                io.Histogram.Input("histogram", optional=True, tooltip="Shown behind the curve."),
            ],
            outputs=[io.Curve.Output(display_name="curve")],
            has_intermediate_output=True,
        )

    @classmethod
    def execute(cls, curve: dict[str, Any], histogram: list[int] | None = None) -> io.NodeOutput:
        return io.NodeOutput(curve, ui=None if histogram is None else {"histogram": histogram})


NODES = {"comfy_extras.nodes_curve": [CurveEditor]}
