"""Nodes that work on texts. Their rules are Python's own."""

from __future__ import annotations

import json
import string as string_module
from typing import Any

from comfy_api.latest import io


class StringConcatenate(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringConcatenate",
            display_name="Concatenate Text",
            category="text",
            description="Joins two texts.",
            search_aliases=["join", "append", "combine text"],
            inputs=[
                io.String.Input("string_a", tooltip="First text.", multiline=True),
                io.String.Input("string_b", tooltip="Second text.", multiline=True),
                io.String.Input("delimiter", tooltip="Text between them.", default=""),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, string_a: str, string_b: str, delimiter: str) -> io.NodeOutput:
        return io.NodeOutput(delimiter.join((string_a, string_b)))


class StringSubstring(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringSubstring",
            display_name="Substring",
            category="text",
            description="Cuts a piece out of a text.",
            inputs=[
                io.String.Input("string", tooltip="Text to cut.", multiline=True),
                io.Int.Input("start", tooltip="Where the piece begins; 0 is the first character."),
                io.Int.Input("end", tooltip="Where it ends; this character is not part of it."),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, string: str, start: int, end: int) -> io.NodeOutput:
        return io.NodeOutput(string[start:end])


class StringLength(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringLength",
            display_name="Text Length",
            category="text",
            description="Counts the characters of a text.",
            inputs=[io.String.Input("string", tooltip="Text to count.", multiline=True)],
            outputs=[io.Int.Output(display_name="length")],
        )

    @classmethod
    def execute(cls, string: str) -> io.NodeOutput:
        return io.NodeOutput(len(string))


class CaseConverter(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CaseConverter",
            display_name="Convert Text Case",
            category="text",
            description="Changes letters to upper or lower case.",
            inputs=[
                io.String.Input("string", tooltip="Text to change.", multiline=True),
                io.Combo.Input(
                    "mode", options=["UPPERCASE", "lowercase", "Capitalize", "Title Case"], tooltip="Which case."
                ),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, string: str, mode: str) -> io.NodeOutput:
        change = {
            "UPPERCASE": str.upper,
            "lowercase": str.lower,
            "Capitalize": str.capitalize,
            "Title Case": str.title,
        }[mode]
        return io.NodeOutput(change(string))


class StringTrim(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringTrim",
            display_name="Trim Text",
            category="text",
            description="Removes white space from the ends of a text.",
            inputs=[
                io.String.Input("string", tooltip="Text to trim.", multiline=True),
                io.Combo.Input("mode", options=["Both", "Left", "Right"], tooltip="Which ends."),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, string: str, mode: str) -> io.NodeOutput:
        return io.NodeOutput({"Both": str.strip, "Left": str.lstrip, "Right": str.rstrip}[mode](string))


class StringReplace(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringReplace",
            display_name="Replace Text",
            category="text",
            description="Replaces a piece of text wherever it occurs.",
            inputs=[
                io.String.Input("string", tooltip="Text to search.", multiline=True),
                io.String.Input("find", tooltip="Piece to look for.", multiline=True),
                io.String.Input("replace", tooltip="Text to put there.", multiline=True),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, string: str, find: str, replace: str) -> io.NodeOutput:
        return io.NodeOutput(string.replace(find, replace))


class StringContains(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringContains",
            display_name="Contains Text",
            category="text",
            description="Tells whether a text occurs in another.",
            inputs=[
                io.String.Input("string", tooltip="Text to search.", multiline=True),
                io.String.Input("substring", tooltip="Text to look for.", multiline=True),
                io.Boolean.Input(
                    "case_sensitive", tooltip="Whether upper and lower case must agree.", advanced=True, default=True
                ),
            ],
            outputs=[io.Boolean.Output(display_name="contains")],
        )

    @classmethod
    def execute(cls, string: str, substring: str, case_sensitive: bool) -> io.NodeOutput:
        if not case_sensitive:
            string, substring = string.lower(), substring.lower()
        return io.NodeOutput(substring in string)


class StringCompare(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringCompare",
            display_name="Compare Text",
            category="text",
            description="Compares two texts.",
            inputs=[
                io.String.Input("string_a", tooltip="Text to look at.", multiline=True),
                io.String.Input("string_b", tooltip="Text to compare it with.", multiline=True),
                io.Combo.Input("mode", options=["Starts With", "Ends With", "Equal"], tooltip="Kind of comparison."),
                io.Boolean.Input(
                    "case_sensitive", tooltip="Whether upper and lower case must agree.", advanced=True, default=True
                ),
            ],
            outputs=[io.Boolean.Output()],
        )

    @classmethod
    def execute(cls, string_a: str, string_b: str, mode: str, case_sensitive: bool) -> io.NodeOutput:
        if not case_sensitive:
            string_a, string_b = string_a.lower(), string_b.lower()
        compare = {"Equal": str.__eq__, "Starts With": str.startswith, "Ends With": str.endswith}[mode]
        return io.NodeOutput(compare(string_a, string_b))


class JsonExtractString(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="JsonExtractString",
            display_name="Extract Text from JSON",
            category="text",
            description="Gives the value of a key of a JSON object as text; empty when it is not there.",
            inputs=[
                io.String.Input("json_string", tooltip="JSON text.", multiline=True),
                io.String.Input("key", tooltip="Name of the key."),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, json_string: str, key: str) -> io.NodeOutput:
        try:
            data = json.loads(json_string)
        except ValueError:
            data = None
        value = data.get(key) if isinstance(data, dict) else None
        return io.NodeOutput("" if value is None else str(value))


class ConvertDictionaryToString(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ConvertDictionaryToString",
            display_name="Convert Dictionary to String",
            category="text",
            description="Writes a dictionary as JSON.",
            inputs=[
                io.Dict.Input("dictionary", tooltip="Dictionary to write."),
                io.Int.Input("indent", tooltip="Spaces per level; 0 writes one line.", default=2, min=0, max=8),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, dictionary: dict, indent: int) -> io.NodeOutput:
        return io.NodeOutput(json.dumps(dictionary, indent=indent or None, ensure_ascii=False))


class ConvertArrayToString(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ConvertArrayToString",
            display_name="Convert Array to String",
            category="text",
            description="Writes a list as JSON.",
            inputs=[
                io.Array.Input("array", tooltip="List to write."),
                io.Int.Input("indent", tooltip="Spaces per level; 0 writes one line.", default=2, min=0, max=8),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, array: list, indent: int) -> io.NodeOutput:
        return io.NodeOutput(json.dumps(array, indent=indent or None, ensure_ascii=False))


class _PublicFormatter(string_module.Formatter):
    """`str.format` without private attributes.

    Prompts come from clients; `{a.__init__.__globals__}` would show them the insides of the server.
    """

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if "._" in field_name:
            raise ValueError(f"{field_name!r}: attributes that begin with an underscore are not available")
        return super().get_field(field_name, args, kwargs)


class StringFormat(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StringFormat",
            display_name="Format Text",
            category="text",
            description="Fills values into a text, with Python's format rules.",
            search_aliases=["template", "f-string", "insert"],
            inputs=[
                io.Autogrow.Input(
                    "values",
                    template=io.Autogrow.TemplateNames(
                        io.AnyType.Input("value"),
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
                        min=0,
                    ),
                ),
                io.String.Input(
                    "f_string",
                    tooltip="Text with the names of values in braces, such as {a}.",
                    default="{a}",
                    multiline=True,
                ),
            ],
            outputs=[io.String.Output()],
        )

    @classmethod
    def execute(cls, values: dict[str, Any], f_string: str) -> io.NodeOutput:
        return io.NodeOutput(_PublicFormatter().vformat(f_string, (), values))


NODES = {
    "comfy_extras.nodes_string": [
        StringConcatenate,
        StringSubstring,
        StringLength,
        CaseConverter,
        StringTrim,
        StringReplace,
        StringContains,
        StringCompare,
        JsonExtractString,
        ConvertDictionaryToString,
        ConvertArrayToString,
        StringFormat,
    ],
}
