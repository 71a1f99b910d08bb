"""The shapes that requests and answers share, as JSON Schema 2020-12 (spec: http-api.md)."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
ANYTHING: Schema = {}
OBJECT: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": TEXT}
MILLISECONDS: Schema = {"type": "integer", "description": "Milliseconds since the epoch"}
SECONDS: Schema = {"type": "number", "description": "Seconds since the epoch"}
UUID: Schema = {"type": "string", "format": "uuid"}


def ref(name: str) -> Schema:
    """A reference to a schema of this module."""
    return {"$ref": f"#/components/schemas/{name}"}


def array(of: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": of}


def mapping(of: Schema) -> Schema:
    """An object with free keys and values of one kind."""
    return {"type": "object", "additionalProperties": of}


def shape(required: dict[str, Schema], optional: dict[str, Schema] | None = None, about: str = "") -> Schema:
    """An object with these keys; further keys may be there."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    if about:
        schema["description"] = about
    return schema


def nullable(schema: Schema) -> Schema:
    """A schema, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def choice(*values: str) -> Schema:
    """One of these strings."""
    return {"type": "string", "enum": list(values)}


_PROMPTS: dict[str, Schema] = {
    "Node": shape(
        {"class_type": TEXT, "inputs": OBJECT},
        {"_meta": nullable(shape({}, {"title": TEXT}))},
        "One node of a graph. An input is a value, or a link `[node id, output index]`; an array that is a value is "
        'written `{"__value__": […]}`.',
    ),
    "Graph": {**mapping(ref("Node")), "description": "Nodes by id"},
    "PromptRequest": shape(
        {"prompt": ref("Graph")},
        {
            "client_id": {**TEXT, "description": "The WebSocket client that gets the events of the run"},
            "prompt_id": {**nullable(TEXT), "format": "uuid", "description": "Made by the server when absent"},
            "number": {"type": ["number", "string"], "description": "Position in the queue; lower runs first"},
            "front": {**BOOLEAN, "description": "Run before everything that is not in front"},
            "extra_data": shape(
                {},
                {
                    "extra_pnginfo": OBJECT,
                    "client_id": TEXT,
                    "preview_method": TEXT,
                    "timeout": {**NUMBER, "exclusiveMinimum": 0, "description": "Seconds the job may run"},
                    "retry": {"description": "When to run the job again; see docs/queue.md"},
                },
                "Kept with the prompt; each key of extra_pnginfo becomes a text chunk of saved PNG files",
            ),
            "partial_execution_targets": {
                **nullable(TEXTS),
                "description": "Run only these output nodes, and what they need",
            },
            "force": {
                "type": ["boolean", "array", "null"],
                "items": TEXT,
                "description": "Run nodes although their results are known: true for all, or ids; their dependants too",
            },
        },
    ),
    "PromptAccepted": shape(
        {"prompt_id": TEXT, "number": NUMBER, "node_errors": mapping(ref("NodeErrors"))},
        about="node_errors names outputs that are left out of the run",
    ),
    "PromptRefused": shape({"error": ref("ErrorDetails"), "node_errors": mapping(ref("NodeErrors"))}),
    "ErrorDetails": shape({"type": TEXT, "message": TEXT, "details": TEXT, "extra_info": OBJECT}),
    "NodeErrors": shape({"errors": array(ref("ErrorDetails")), "dependent_outputs": TEXTS, "class_type": TEXT}),
    "ExecInfo": shape(
        {"exec_info": shape({"queue_remaining": COUNT}, {"paused": BOOLEAN}, "Pending and running prompts")}
    ),
}

HOW_IT_ENDED: Schema = {"anyOf": [ref("RunStatus"), {"type": "null"}]}

CANCEL_ANSWER: Schema = choice("cancelled", "stopping", "already_finished", "unknown")

_QUEUE: dict[str, Schema] = {
    "QueueItem": {
        "type": "array",
        "description": "`[number, prompt_id, prompt, extra_data, [output node ids]]`",
        "prefixItems": [NUMBER, TEXT, OBJECT, OBJECT, TEXTS],
        "minItems": 5,
        "items": ANYTHING,
    },
    "Queue": shape({"queue_running": array(ref("QueueItem")), "queue_pending": array(ref("QueueItem"))}),
    "Removal": shape(
        {},
        {"clear": {**BOOLEAN, "description": "Remove all"}, "delete": {**TEXTS, "description": "Remove these ids"}},
        "Unknown ids are ignored",
    ),
    "InterruptRequest": shape({}, {"prompt_id": {**nullable(TEXT), "description": "Only if this one is running"}}),
    "FreeRequest": shape(
        {},
        {
            "unload_models": {**BOOLEAN, "description": "Take models off the device"},
            "free_memory": {**BOOLEAN, "description": "Forget node results, too"},
        },
    ),
    "RunStatus": shape(
        {
            "status_str": choice("success", "error"),
            "completed": BOOLEAN,
            "messages": {**array({"type": "array", "prefixItems": [TEXT, OBJECT], "minItems": 2})},
        },
        about="How a run ended, with its `[event, data]` messages",
    ),
    "HistoryEntry": shape(
        {
            "prompt": ref("QueueItem"),
            "outputs": mapping(OBJECT),
            "status": {"anyOf": [ref("RunStatus"), {"type": "null"}]},
        },
        {"meta": mapping(OBJECT)},
    ),
    "History": {**mapping(ref("HistoryEntry")), "description": "Entries by prompt id, oldest first"},
    "Job": shape(
        {
            "id": TEXT,
            "status": choice("pending", "in_progress", "completed", "failed", "cancelled"),
            "priority": NUMBER,
            "outputs_count": COUNT,
            "previewable_outputs_count": COUNT,
        },
        {
            "create_time": MILLISECONDS,
            "execution_start_time": MILLISECONDS,
            "execution_end_time": MILLISECONDS,
            "execution_error": {**OBJECT, "description": "The data of the event execution_error"},
            "preview_output": OBJECT,
            "workflow_id": ANYTHING,
            "outputs": {**mapping(ANYTHING), "description": "Of a single job that runs or has ended"},
            "execution_status": HOW_IT_ENDED,
            "workflow": shape({"prompt": OBJECT, "extra_data": OBJECT}),
            "attempts": array(ref("Attempt")),
            "reason": {**TEXT, "description": "Why it is not completed: node_error, out_of_memory, interrupted, …"},
            "detail": {**TEXT, "description": "The same for people"},
            "by": {**OBJECT, "description": "Who cancelled it: address, route, key"},
            "instance_id": {**TEXT, "description": "With full: this start of the server"},
            "position": {**COUNT, "description": "With full, of a waiting job: from 1"},
            "estimated_start_time": nullable(MILLISECONDS),
            "estimated_seconds": nullable(NUMBER),
            "stopping": {
                **OBJECT,
                "description": "With full, of a running job that was told to stop: reason, since, by",
            },
        },
    ),
    "Attempt": shape(
        {"number": COUNT, "worker": TEXT, "start_time": MILLISECONDS},
        {
            "end_time": MILLISECONDS,
            "result": choice("completed", "failed", "cancelled", "put_back", "died"),
            "reason": TEXT,
            "detail": TEXT,
            "by": OBJECT,
        },
    ),
    "JobList": shape(
        {
            "jobs": array(ref("Job")),
            "pagination": shape(
                {"limit": nullable(COUNT), "has_more": BOOLEAN},
                {
                    "offset": COUNT,
                    "total": COUNT,
                    "next_cursor": {**nullable(TEXT), "description": "Of pages by cursor; null on the last one"},
                },
            ),
        },
        {"instance_id": TEXT},
    ),
    "JobDeleted": shape(
        {"deleted": TEXT, "files": {**TEXTS, "description": "Deleted files, as output/name.png or temp/name.png"}}
    ),
    "Health": shape(
        {
            "status": choice("ok", "degraded"),
            "instance_id": {**TEXT, "description": "New with each start of the server"},
            "started_at": SECONDS,
            "nodes_ready": BOOLEAN,
            "queue": shape({"pending": COUNT, "running": COUNT, "paused": BOOLEAN}),
            "store": shape(
                {"state": choice("ok", "degraded"), "store": TEXT, "persistent": BOOLEAN, "jobs": mapping(COUNT)},
                {"problem": TEXT},
            ),
        },
        {"worker": OBJECT},
    ),
    "Ready": shape({"ready": BOOLEAN}, {"reason": {**TEXT, "description": "Why not, for people"}}),
    "Cancelled": shape(
        {"cancelled": {**BOOLEAN, "description": "Whether there was anything to cancel"}},
        {"id": TEXT, "state": CANCEL_ANSWER, "jobs": mapping(CANCEL_ANSWER)},
        "With `?full=true` also what became of each id",
    ),
    "Move": shape(
        {"ids": {**TEXTS, "minItems": 1, "description": "In the order they are to have"}},
        {
            "number": {"description": "A number (behind those that have it), `front` or `back`"},
            "to": choice("front", "back"),
            "before": {**TEXT, "description": "Id of a waiting prompt"},
            "after": {**TEXT, "description": "Id of a waiting prompt"},
        },
        "Exactly one of number, to, before and after",
    ),
    "Moved": shape({"moved": array(shape({"id": TEXT, "number": NUMBER}))}),
    "NotPending": shape(
        {"error": TEXT, "not_pending": mapping(choice("running", "already_finished", "unknown"))},
        about="Nothing was moved",
    ),
    "Paused": shape({"paused": BOOLEAN}),
    "Estimates": shape(
        {
            "paused": BOOLEAN,
            "jobs": array(
                shape(
                    {
                        "id": TEXT,
                        "position": {**COUNT, "description": "From 1"},
                        "estimated_start_time": nullable(MILLISECONDS),
                        "estimated_seconds": nullable(NUMBER),
                    }
                )
            ),
        },
        about="Null where nothing like it has run yet, and while the queue is paused",
    ),
    "RetryRequest": shape(
        {},
        {
            "inputs": {**mapping(OBJECT), "description": "Node id -> input -> other value; makes a new job"},
            "extra_data": {**OBJECT, "description": "Only its private keys count: they are not stored"},
            "number": {"type": ["number", "string"]},
            "front": BOOLEAN,
        },
    ),
    "Retried": shape(
        {"prompt_id": TEXT, "number": NUMBER},
        {"retry_of": {**TEXT, "description": "The old job, if this is a new one"}, "node_errors": OBJECT},
    ),
    "JobIds": shape({"job_ids": array(UUID)}),
}

_SERVER: dict[str, Schema] = {
    "Refused": shape({"error": TEXT}, about="Why a request cannot be answered"),
    "InvalidIds": shape({"error": TEXT}, {"invalid_ids": TEXTS}),
    "NodeDefinition": shape(
        {
            "input": mapping(OBJECT),
            "input_order": mapping(TEXTS),
            "output": array(ANYTHING),
            "output_is_list": array(BOOLEAN),
            "output_name": array(ANYTHING),
            "name": TEXT,
            "display_name": nullable(TEXT),
            "description": nullable(TEXT),
            "python_module": TEXT,
            "category": TEXT,
            "output_node": BOOLEAN,
        },
        about="What a node takes and gives",
    ),
    "NodeDefinitions": {**mapping(ref("NodeDefinition")), "description": "Definitions by class"},
    "CustomNodePacks": shape(
        {
            "ready": {**BOOLEAN, "description": "All packs have been tried: nodes can be asked for"},
            "packs": array(
                shape(
                    {
                        "name": TEXT,
                        "version": nullable(TEXT),
                        "state": choice("waiting", "loading", "loaded", "failed", "hanging"),
                        "loaded": BOOLEAN,
                        "seconds": {**NUMBER, "description": "Time its import took"},
                        "node_count": COUNT,
                        "nodes": TEXTS,
                        "web": {**BOOLEAN, "description": "It adds scripts to the page"},
                        "error": nullable(TEXT),
                    },
                )
            ),
        },
    ),
    "NodeReplacements": mapping(array(shape({"new_node_id": TEXT, "old_node_id": TEXT}))),
    "SystemStats": shape(
        {
            "system": shape(
                {
                    "os": TEXT,
                    "ram_total": COUNT,
                    "ram_free": COUNT,
                    "comfyui_version": TEXT,
                    "python_version": TEXT,
                    "pytorch_version": TEXT,
                    "embedded_python": BOOLEAN,
                    "argv": TEXTS,
                }
            ),
            "devices": array(
                shape(
                    {
                        "name": TEXT,
                        "type": TEXT,
                        "index": nullable(COUNT),
                        "vram_total": COUNT,
                        "vram_free": COUNT,
                        "torch_vram_total": COUNT,
                        "torch_vram_free": COUNT,
                    }
                )
            ),
            "result_cache": nullable(
                shape(
                    {
                        "mode": TEXT,
                        "entries": COUNT,
                        "bytes": COUNT,
                        "hits": COUNT,
                        "misses": COUNT,
                        "evictions": COUNT,
                    }
                )
            ),
        }
    ),
    "Memory": shape(
        {
            "ram": shape({"total": COUNT, "available": COUNT}),
            "vram_state": TEXT,
            "files": shape({"disk_reads": COUNT, "disk_bytes": COUNT}),
            "devices": array(
                shape(
                    {
                        "device": TEXT,
                        "total": COUNT,
                        "free": COUNT,
                        "reserved": COUNT,
                        "peak": COUNT,
                        "loaded_bytes": COUNT,
                        "counters": mapping(COUNT),
                        "models": array(
                            shape(
                                {
                                    "name": TEXT,
                                    "file": nullable(TEXT),
                                    "bytes": COUNT,
                                    "loaded_bytes": COUNT,
                                    "pinned_bytes": COUNT,
                                    "loads": COUNT,
                                    "evictions": COUNT,
                                    "last_use": SECONDS,
                                    "evicted_by": nullable(TEXT),
                                }
                            )
                        ),
                        "events": array(
                            shape(
                                {
                                    "time": SECONDS,
                                    "event": choice("load", "shrink", "evict"),
                                    "model": TEXT,
                                    "file": nullable(TEXT),
                                    "bytes": COUNT,
                                    "by": nullable(TEXT),
                                }
                            )
                        ),
                    }
                )
            ),
        },
        about="The ledger of the models: sizes in bytes. See docs/memory.md.",
    ),
    "Features": shape({"supports_preview_metadata": BOOLEAN, "max_upload_size": COUNT, "assets": BOOLEAN}),
    "LogEntries": shape(
        {
            "entries": array(shape({"t": TEXT, "m": TEXT})),
            "size": {"anyOf": [shape({"cols": COUNT, "rows": COUNT}), {"type": "null"}]},
        }
    ),
    "LogSubscription": shape({"clientId": TEXT, "enabled": BOOLEAN}),
    "Subgraphs": mapping(shape({"source": TEXT, "name": TEXT, "info": OBJECT})),
}

_FILES: dict[str, Schema] = {
    "StoredFile": shape(
        {"name": TEXT, "subfolder": TEXT, "type": choice("input", "output", "temp")}, {"asset": ref("Asset")}
    ),
    "ModelFolder": shape({"name": TEXT, "folders": TEXTS, "extensions": TEXTS}),
    "ModelFile": shape({"name": TEXT, "pathIndex": COUNT, "modified": SECONDS, "created": SECONDS, "size": COUNT}),
    "Users": shape({"storage": TEXT}, {"migrated": BOOLEAN, "users": mapping(TEXT)}),
    "NewUser": shape({"username": TEXT}),
    "UserFile": shape({"path": TEXT, "size": COUNT, "modified": MILLISECONDS, "created": MILLISECONDS}),
    "UserFolderEntry": shape(
        {"name": TEXT, "path": TEXT, "type": choice("directory", "file")}, {"size": COUNT, "modified": SECONDS}
    ),
}

_ASSETS: dict[str, Schema] = {
    "Asset": shape(
        {"id": UUID, "name": TEXT, "size": COUNT, "tags": TEXTS, "created_at": TEXT, "updated_at": TEXT},
        {
            "hash": TEXT,
            "asset_hash": TEXT,
            "loader_path": TEXT,
            "display_name": TEXT,
            "mime_type": TEXT,
            "preview_url": TEXT,
            "preview_id": TEXT,
            "user_metadata": OBJECT,
            "is_immutable": BOOLEAN,
            "job_id": TEXT,
            "prompt_id": TEXT,
            "last_access_time": TEXT,
            "created_new": {**BOOLEAN, "description": "In the answer to a creation"},
        },
    ),
    "AssetList": shape({"assets": array(ref("Asset")), "total": COUNT, "has_more": BOOLEAN}, {"next_cursor": TEXT}),
    "AssetError": shape({"error": shape({"code": TEXT, "message": TEXT, "details": OBJECT})}),
    "AssetFromHash": shape({"hash": TEXT}, {"name": nullable(TEXT), "tags": TEXTS, "user_metadata": OBJECT}),
    "AssetChanges": {
        **shape({}, {"name": TEXT, "user_metadata": OBJECT, "preview_id": nullable(TEXT)}),
        "minProperties": 1,
    },
    "Tags": shape({"tags": TEXTS}),
    "TagsAdded": shape({"added": TEXTS, "already_present": TEXTS, "total_tags": TEXTS}),
    "TagsRemoved": shape({"removed": TEXTS, "not_present": TEXTS, "total_tags": TEXTS}),
    "TagList": shape({"tags": array(shape({"name": TEXT, "count": COUNT})), "total": COUNT, "has_more": BOOLEAN}),
    "TagCounts": shape({"tag_counts": mapping(COUNT)}),
    "ScanRequest": shape({}, {"roots": {**array(choice("models", "input", "output")), "minItems": 1}}),
    "ScanStarted": shape({"status": TEXT}, {"progress": mapping(COUNT)}),
    "ScanStatus": shape({"state": TEXT, "progress": mapping(COUNT), "errors": TEXTS}),
}

SCHEMAS: dict[str, Schema] = {**_PROMPTS, **_QUEUE, **_SERVER, **_FILES, **_ASSETS}
