"""What each route takes and answers, declared beside the route, and the OpenAPI 3.1 document made from it.

A route is declared as `table.post("/free", "Free memory.", body="FreeRequest", answers={200: EMPTY})`. Names in quotes
are schemas of `gateway/openapi_schemas.py`; a dict is a schema of its own. Source: OpenAPI Specification 3.1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.openapi_schemas import SCHEMAS

Schema = Mapping[str, Any]
OPENAPI = "3.1.1"
JSON = "application/json"
TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
OBJECT: Schema = {"type": "object"}
ANYTHING: Schema = {}

_REASONS = {
    101: "Switching protocols",
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "Done",
    206: "A range of the file",
    304: "Not modified",
    400: "The request is malformed",
    401: "Unknown user",
    403: "Not allowed",
    404: "Not found",
    409: "In conflict with what is there",
    413: "The body is too large",
    415: "A type that cannot be used here",
    416: "The range is outside the file",
    426: "Not a WebSocket handshake",
    429: "The queue is full; Retry-After says when to try again",
    503: "Not available",
    507: "The disk is full",
}

# What a path parameter means, wherever it appears.
_PATH_PARAMETERS = {
    "prompt_id": "Id of a prompt",
    "class_name": "Class of a node",
    "folder": "Name of a model folder",
    "file": "Path of a file in the user's folder; `/` is written `%2F`",
    "dest": "New path of the file; `/` is written `%2F`",
    "pack": "Name of a custom node pack",
    "path": "Path of the file; may hold `/`",
    "name": "Path of the file; may hold `/`",
    "index": "Which search path of the folder, from 0",
    "directory": "`input`, `output` or `temp`",
    "hash": "`blake3:` and 64 hex digits",
    "id": "Id",
}


@dataclass(frozen=True)
class Answer:
    """One answer. content: media type -> schema; empty for an answer without a body."""

    content: Mapping[str, Schema] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True)
class Body:
    """A request body. content: media type -> schema."""

    content: Mapping[str, Schema]
    required: bool = True
    description: str = ""


@dataclass(frozen=True)
class Parameter:
    """A parameter in the query, or in a header."""

    name: str
    schema: Schema = field(default_factory=lambda: TEXT)
    description: str = ""
    required: bool = False
    location: str = "query"


EMPTY = Answer()
REFUSED = {400: "Refused"}
USER = Parameter("comfy-user", TEXT, "The user's id; looked at with --multi-user only", location="header")


def text(description: str = "") -> Answer:
    """A plain text."""
    return Answer({"text/plain": TEXT}, description)


def file(description: str = "", media_type: str = "*/*") -> Answer:
    """The bytes of a file."""
    return Answer({media_type: ANYTHING}, description)


def one_of(*values: str) -> Schema:
    """A string that is one of these; the first is the default."""
    return {"type": "string", "enum": list(values), "default": values[0]}


def bounded(minimum: int | None = None, maximum: int | None = None, default: int | None = None) -> Schema:
    """An integer within bounds."""
    bounds = {"minimum": minimum, "maximum": maximum, "default": default}
    return {"type": "integer", **{key: value for key, value in bounds.items() if value is not None}}


def array(of: str | Schema) -> Schema:
    """An array of a schema."""
    return {"type": "array", "items": _schema(of)}


def form(file_field: str, file_required: bool = True, **texts: Schema) -> Body:
    """A multipart form with one file."""
    properties = {file_field: {"type": "string", "contentMediaType": "application/octet-stream"}, **texts}
    shape: dict[str, Any] = {"type": "object", "properties": properties}
    if file_required:
        shape["required"] = [file_field]
    return Body({"multipart/form-data": shape})


AnswerLike = Answer | str | Schema
BodyLike = Body | str | Schema


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    alias_of: the path under which the same operation is described already.
    """

    method: str
    path: str
    resource: str
    summary: str | None
    params: tuple[Parameter, ...] = ()
    body: BodyLike | None = None
    answers: Mapping[int, AnswerLike] = field(default_factory=dict)
    alias_of: str | None = None

    @property
    def public_path(self) -> str:
        """The path as OpenAPI writes it: without the patterns of its parameters."""
        return _PATH_PARAMETER.sub(r"{\1}", self.path)

    @property
    def ident(self) -> str:
        """A name for generated code, unique in the document."""
        words = re.findall(r"[A-Za-z0-9]+", self.public_path)
        return "_".join([self.method.lower(), *words])


# A parameter of an aiohttp path: `{name}` or `{name:pattern}`, where the pattern may hold `{n}`.
_PATH_PARAMETER = re.compile(r"\{(\w+)(?::((?:[^{}]|\{\d+\})*))?\}")
_DOCUMENT_REFERENCE = re.compile(r" \([\w-]+\.md[^)]*\)")


def document(operations: Iterable[Operation], resources: Mapping[str, str], info: Mapping[str, str]) -> dict[str, Any]:
    """The OpenAPI document of these operations.

    resources: name -> one line about it (references to the specification are left out).
    """
    operations = list(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        if operation.summary is not None:
            paths.setdefault(operation.public_path, {})[operation.method.lower()] = _operation(operation)
    used = dict.fromkeys(operation.resource for operation in operations)
    return {
        "openapi": OPENAPI,
        "info": dict(info),
        "tags": [{"name": name, "description": _DOCUMENT_REFERENCE.sub("", resources[name])} for name in used],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {
                "AnotherSite": {"description": "The request comes from another site (empty), or is not allowed"},
                "TooLarge": {"description": "The body is larger than --max-upload-size"},
                "NoNodes": {
                    "description": "The nodes cannot be loaded, or the feature is switched off",
                    "content": {JSON: {"schema": ANYTHING}},
                },
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.ident,
        "summary": operation.summary,
        "tags": [operation.resource],
    }
    if operation.alias_of is not None:
        described["x-alias-of"] = operation.alias_of
    parameters = [_path_parameter(name, pattern) for name, pattern in _PATH_PARAMETER.findall(operation.path)]
    parameters += [_parameter(parameter) for parameter in operation.params]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation.body)
    answers = {str(status): _answer(status, answer) for status, answer in operation.answers.items()}
    answers.setdefault("403", {"$ref": "#/components/responses/AnotherSite"})
    answers.setdefault("503", {"$ref": "#/components/responses/NoNodes"})
    if operation.body is not None:
        answers.setdefault("413", {"$ref": "#/components/responses/TooLarge"})
    described["responses"] = dict(sorted(answers.items()))
    return described


def _schema(value: str | Schema) -> Schema:
    if not isinstance(value, str):
        return value
    if value not in SCHEMAS:
        raise KeyError(f"no schema is named {value!r}")
    return {"$ref": f"#/components/schemas/{value}"}


def _content(content: Mapping[str, str | Schema]) -> dict[str, Any]:
    return {media_type: {"schema": _schema(schema)} for media_type, schema in content.items()}


def _path_parameter(name: str, pattern: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if pattern and not pattern.startswith("."):
        schema["pattern"] = f"^{pattern}$"
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": _PATH_PARAMETERS.get(name, name),
        "schema": schema,
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described = {"name": parameter.name, "in": parameter.location, "schema": _schema(parameter.schema)}
    if parameter.description:
        described["description"] = parameter.description
    if parameter.required:
        described["required"] = True
    return described


def _body(body: BodyLike) -> dict[str, Any]:
    if not isinstance(body, Body):
        body = Body({JSON: body})
    described: dict[str, Any] = {"required": body.required, "content": _content(body.content)}
    if body.description:
        described["description"] = body.description
    return described


def _answer(status: int, answer: AnswerLike) -> dict[str, Any]:
    if not isinstance(answer, Answer):
        answer = Answer({JSON: answer})
    described: dict[str, Any] = {"description": answer.description or _REASONS.get(status, str(status))}
    if answer.content:
        described["content"] = _content(answer.content)
    return described
