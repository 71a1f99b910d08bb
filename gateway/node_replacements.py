"""Rewriting nodes of a prompt whose class is gone and has a successor (spec: http-api.md section 11).

Packs register theirs with `ComfyAPI().node_replacement.register(io.NodeReplace(...))`.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

Prompt = dict[str, Any]


@dataclass
class Replacement:
    """How a node of class `old_node_id` becomes one of class `new_node_id`.

    old_widget_ids: names of the old node's widgets in order, for editors; unused here.
    input_mapping: `{"new_id", "old_id"}` takes over an input, `{"new_id", "set_value"}` sets one; None keeps all.
    output_mapping: `{"new_idx", "old_idx"}` for links to the node; None keeps the indices.
    """

    new_node_id: str
    old_node_id: str
    old_widget_ids: list[str] | None = None
    input_mapping: list[dict[str, Any]] | None = None
    output_mapping: list[dict[str, int]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The form of GET /node_replacements."""
        return {
            "new_node_id": self.new_node_id,
            "old_node_id": self.old_node_id,
            "old_widget_ids": self.old_widget_ids,
            "input_mapping": self.input_mapping,
            "output_mapping": self.output_mapping,
        }


def _take(new: str, old: str) -> dict[str, str]:
    return {"new_id": new, "old_id": old}


BUILT_IN = (
    Replacement(
        "ResizeImageMaskNode",
        "ResizeImagesByLongerEdge",
        ["longer_edge"],
        [
            _take("input", "images"),
            {"new_id": "resize_type", "set_value": "scale longer dimension"},
            _take("resize_type.longer_size", "longer_edge"),
            {"new_id": "scale_method", "set_value": "lanczos"},
        ],
    ),
    Replacement(
        "BatchImagesNode",
        "ImageBatch",
        None,
        [_take("images.image0", "image1"), _take("images.image1", "image2")],
    ),
    Replacement(
        "ResizeImageMaskNode",
        "ImageScaleBy",
        ["upscale_method", "scale_by"],
        [
            _take("input", "image"),
            {"new_id": "resize_type", "set_value": "scale by multiplier"},
            _take("resize_type.multiplier", "scale_by"),
            _take("scale_method", "upscale_method"),
        ],
    ),
    Replacement("ControlNetLoader", "T2IAdapterLoader", None, [_take("control_net_name", "t2i_adapter_name")]),
    Replacement("Load3D", "Load3DAnimation"),
    Replacement("Preview3D", "Preview3DAnimation"),
    Replacement("SVD_img2vid_Conditioning", "SDV_img2vid_Conditioning"),
    Replacement("ConditioningAverage", "ConditioningAverage "),
)


class NodeReplaceManager:
    """All known replacements. A class may have several; the first whose new class is installed counts."""

    def __init__(self):
        self._by_class: dict[str, list[Any]] = {}
        for replacement in BUILT_IN:
            self.register(replacement)

    def register(self, replacement: Any) -> None:
        """Add a replacement: a `Replacement`, or any object with its attributes."""
        self._by_class.setdefault(replacement.old_node_id, []).append(replacement)

    def has_replacement(self, old_class: str) -> bool:
        """Whether a replacement for this class is known."""
        return old_class in self._by_class

    def get_replacement(self, old_class: str) -> list[Any] | None:
        """The replacements of a class, or None."""
        return self._by_class.get(old_class)

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """The answer of GET /node_replacements."""
        return {old: [_described(r) for r in found] for old, found in self._by_class.items()}

    def apply_replacements(self, prompt: Prompt, installed: Any = None) -> None:
        """Rewrite, in place, nodes whose class is not installed and has an installed successor.

        installed: a container of class names; by default the registered nodes.
        """
        if installed is None:
            import nodes

            installed = nodes.NODE_CLASS_MAPPINGS
        for node_id, node in prompt.items():
            old_class = node.get("class_type")
            if not isinstance(old_class, str) or old_class in installed:
                continue
            for replacement in self._by_class.get(old_class, ()):
                if replacement.new_node_id in installed:
                    _rewrite(prompt, node_id, replacement)
                    break


def _described(replacement: Any) -> dict[str, Any]:
    return {key: getattr(replacement, key, None) for key in Replacement.__dataclass_fields__}


def _rewrite(prompt: Prompt, node_id: str, replacement: Any) -> None:
    node = prompt[node_id]
    log.info("node %s: %s is now %s", node_id, node["class_type"], replacement.new_node_id)
    node["class_type"] = replacement.new_node_id
    old_inputs = node.get("inputs")
    if replacement.input_mapping is not None and isinstance(old_inputs, dict):
        inputs: dict[str, Any] = {}
        for rule in replacement.input_mapping:
            if "set_value" in rule:
                inputs[rule["new_id"]] = copy.deepcopy(rule["set_value"])
            elif rule["old_id"] in old_inputs:
                inputs[rule["new_id"]] = old_inputs[rule["old_id"]]
        node["inputs"] = inputs
    moved = {rule["old_idx"]: rule["new_idx"] for rule in replacement.output_mapping or ()}
    if not moved:
        return
    for other in prompt.values():
        inputs = other.get("inputs")
        if not isinstance(inputs, dict):
            continue
        for name, value in inputs.items():
            if isinstance(value, list) and len(value) == 2 and value[0] == node_id and value[1] in moved:
                inputs[name] = [node_id, moved[value[1]]]
