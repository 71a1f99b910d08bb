"""Nodes that search texts with regular expressions. Their rules are Python's own."""

from __future__ import annotations

import re

from comfy_api.latest import io


def _flags(case_insensitive: bool, multiline: bool, dotall: bool) -> re.RegexFlag:
    flags = re.RegexFlag(0)
    for wanted, flag in ((case_insensitive, re.IGNORECASE), (multiline, re.MULTILINE), (dotall, re.DOTALL)):
        if wanted:
            flags |= flag
    return flags


class RegexMatch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RegexMatch",
            display_name="Match Text",
            category="text",
            description="Tells whether a regular expression matches somewhere in a text.",
            inputs=[
                io.String.Input("string", tooltip="Text to search.", multiline=True),
                io.String.Input(
                    "regex_pattern", tooltip="Regular expression. An invalid one matches nothing.", multiline=True
                ),
                io.Boolean.Input(
                    "case_insensitive",
                    tooltip="Whether upper and lower case are the same.",
                    advanced=True,
                    default=True,
                ),
                io.Boolean.Input(
                    "multiline", tooltip="Whether ^ and $ match at every line.", advanced=True, default=False
                ),
                io.Boolean.Input(
                    "dotall", tooltip="Whether the dot matches line ends too.", advanced=True, default=False
                ),
            ],
            outputs=[io.Boolean.Output(display_name="matches")],
        )

    @classmethod
    def execute(
        cls, string: str, regex_pattern: str, case_insensitive: bool, multiline: bool, dotall: bool
    ) -> io.NodeOutput:
        try:
            found = re.search(regex_pattern, string, _flags(case_insensitive, multiline, dotall))
        except re.error:
            found = None
        return io.NodeOutput(found is not None)


class RegexExtract(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RegexExtract",
            display_name="Extract Text",
            category="text",
            description="Gives the parts of a text that a regular expression matches, one per line.",
            inputs=[
                io.String.Input("string", tooltip="Text to search.", multiline=True),
                io.String.Input(
                    "regex_pattern", tooltip="Regular expression. An invalid one finds nothing.", multiline=True
                ),
                io.Combo.Input(
                    "mode",
                    options=["First Match", "All Matches", "First Group", "All Groups"],
                    tooltip="Whether to give whole matches or a group, and whether all of them.",
                ),
                io.Boolean.Input(
                    "case_insensitive",
                    tooltip="Whether upper and lower case are the same.",
                    advanced=True,
                    default=True,
                ),
                io.Boolean.Input(
                    "multiline", tooltip="Whether ^ and $ match at every line.", advanced=True, default=False
                ),
                io.Boolean.Input(
                    "dotall", tooltip="Whether the dot matches line ends too.", advanced=True, default=False
                ),
                io.Int.Input(
                    "group_index",
                    tooltip="Number of the group, for the group modes.",
                    advanced=True,
                    default=1,
                    min=0,
                    max=100,
                ),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(
        cls,
        string: str,
        regex_pattern: str,
        mode: str,
        case_insensitive: bool,
        multiline: bool,
        dotall: bool,
        group_index: int,
    ) -> io.NodeOutput:
        try:
            pattern = re.compile(regex_pattern, _flags(case_insensitive, multiline, dotall))
        except re.error:
            return io.NodeOutput("")
        return io.NodeOutput(cls._extract(pattern, string, mode, group_index))

    @staticmethod
    def _extract(pattern: re.Pattern, string: str, mode: str, group: int) -> str | None:
        if mode == "All Matches":
            # With groups in the pattern a match counts as its first group.
            return "\n".join(m if isinstance(m, str) else m[0] for m in pattern.findall(string))
        if mode == "All Groups":
            return "\n".join(m.group(group) for m in pattern.finditer(string) if m.re.groups >= group)
        match = pattern.search(string)
        if match is None or (mode == "First Group" and match.re.groups < group):
            return ""
        return match.group(0 if mode == "First Match" else group)


class RegexReplace(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RegexReplace",
            display_name="Replace Text (Regex)",
            category="text",
            description="Replaces what a regular expression matches.",
            inputs=[
                io.String.Input("string", tooltip="Text to search.", multiline=True),
                io.String.Input("regex_pattern", tooltip="Regular expression.", multiline=True),
                io.String.Input(
                    "replace", tooltip="Text to put there; \\1 stands for the first group.", multiline=True
                ),
                io.Boolean.Input(
                    "case_insensitive",
                    tooltip="Whether upper and lower case are the same.",
                    optional=True,
                    advanced=True,
                    default=True,
                ),
                io.Boolean.Input(
                    "multiline",
                    tooltip="Whether ^ and $ match at every line.",
                    optional=True,
                    advanced=True,
                    default=False,
                ),
                io.Boolean.Input(
                    "dotall",
                    tooltip="Whether the dot matches line ends too.",
                    optional=True,
                    advanced=True,
                    default=False,
                ),
                io.Int.Input(
                    "count",
                    tooltip="How many to replace at most; 0 means all.",
                    optional=True,
                    advanced=True,
                    default=0,
                    min=0,
                    max=100,
                ),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(
        cls,
        string: str,
        regex_pattern: str,
        replace: str,
        case_insensitive: bool = True,
        multiline: bool = False,
        dotall: bool = False,
        count: int = 0,
    ) -> io.NodeOutput:
        pattern = re.compile(regex_pattern, _flags(case_insensitive, multiline, dotall))
        return io.NodeOutput(pattern.sub(replace, string, count=count))


NODES = {
    "comfy_extras.nodes_string": [RegexMatch, RegexExtract, RegexReplace],
}
