"""Nodes that change the texts of a training set, one at a time or as a list.

Each hands on a list with the changed text in it, which is what saved workflows expect of them.
"""

from __future__ import annotations

from comfy_api.latest import io


def _schema(
    node_id: str, display_name: str, about: str, *more: io.Input, deprecated: bool = True, whole_list: bool = False
) -> io.Schema:
    return io.Schema(
        node_id=node_id,
        display_name=display_name,
        category="text",
        description=about,
        inputs=[io.String.Input("texts", tooltip="Text to change."), *more],
        outputs=[io.String.Output(display_name="texts")],
        is_input_list=whole_list,
        is_experimental=True,
        is_deprecated=deprecated,
    )


class TextToLowercase(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema("TextToLowercase", "Convert Text to Lowercase (DEPRECATED)", "The text in small letters.")

    @classmethod
    def execute(cls, texts: str) -> io.NodeOutput:
        return io.NodeOutput([texts.lower()])


class TextToUppercase(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema("TextToUppercase", "Convert Text to Uppercase (DEPRECATED)", "The text in capital letters.")

    @classmethod
    def execute(cls, texts: str) -> io.NodeOutput:
        return io.NodeOutput([texts.upper()])


class TruncateText(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        length = io.Int.Input("max_length", tooltip="Characters to keep at most.", default=77, min=1, max=10000)
        return _schema("TruncateText", "Truncate Text", "The beginning of the text.", length, deprecated=False)

    @classmethod
    def execute(cls, texts: str, max_length: int) -> io.NodeOutput:
        return io.NodeOutput([texts[:max_length]])


class AddTextPrefix(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        prefix = io.String.Input("prefix", tooltip="What to put in front.", default="")
        return _schema("AddTextPrefix", "Add Text Prefix (DEPRECATED)", "The text behind another one.", prefix)

    @classmethod
    def execute(cls, texts: str, prefix: str) -> io.NodeOutput:
        return io.NodeOutput([prefix + texts])


class AddTextSuffix(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        suffix = io.String.Input("suffix", tooltip="What to put behind.", default="")
        return _schema("AddTextSuffix", "Add Text Suffix (DEPRECATED)", "The text in front of another one.", suffix)

    @classmethod
    def execute(cls, texts: str, suffix: str) -> io.NodeOutput:
        return io.NodeOutput([texts + suffix])


class ReplaceText(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        find = io.String.Input("find", tooltip="What to look for; every occurrence is replaced.", default="")
        replace = io.String.Input("replace", tooltip="What takes its place.", default="")
        return _schema("ReplaceText", "Replace Text (DEPRECATED)", "The text with a part replaced.", find, replace)

    @classmethod
    def execute(cls, texts: str, find: str, replace: str) -> io.NodeOutput:
        return io.NodeOutput([texts.replace(find, replace)])


class StripWhitespace(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return _schema("StripWhitespace", "Strip Whitespace (DEPRECATED)", "The text without blanks at its ends.")

    @classmethod
    def execute(cls, texts: str) -> io.NodeOutput:
        return io.NodeOutput([texts.strip()])


class MergeTextLists(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        name = "Merge Text Lists (DEPRECATED)"
        return _schema("MergeTextLists", name, "All texts of all lists in one list.", whole_list=True)

    @classmethod
    def execute(cls, texts: list[str]) -> io.NodeOutput:
        return io.NodeOutput([texts])


NODES = {
    "comfy_extras.nodes_dataset": [
        TextToLowercase,
        TextToUppercase,
        TruncateText,
        AddTextPrefix,
        AddTextSuffix,
        ReplaceText,
        StripWhitespace,
        MergeTextLists,
    ],
}
