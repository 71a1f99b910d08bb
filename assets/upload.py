"""Turning an upload form into an asset: checking its fields, deciding where the file goes (http-api.md section 12)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import folder_paths
from assets.errors import AssetError, not_found
from assets.hashing import hash_file, is_hash
from assets.store import Asset, AssetStore, clean_tags
from gateway.multipart import Form
from gateway.stored_files import BadFileName, place, upload_folder, upload_name
from protocol import from_json

KNOWN_FIELDS = ("tags", "name", "user_metadata", "hash", "mime_type", "preview_id", "id")
ROOTS = ("models", "input", "output")
LONGEST_TEXT = 512  # characters of a name or a tag; names travel in a header, percent-encoded
_MIME_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;[\w\s.+=\"-]*)?", re.ASCII)


def bad_body(message: str) -> AssetError:
    """A field of a body is not what it should be."""
    return AssetError("INVALID_BODY", message)


def checked_text(value: str, what: str) -> str:
    """A text that can be stored and told. Raises AssetError for half characters and for overlong texts."""
    if len(value) > LONGEST_TEXT:
        raise bad_body(f"{what} has {len(value)} characters, {LONGEST_TEXT} are the most")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise bad_body(f"{what} is not valid text")
    return value


def checked_mime_type(value: str) -> str:
    """A MIME type, which becomes a header. Raises AssetError."""
    if len(value) > LONGEST_TEXT or not _MIME_TYPE.fullmatch(value) or "\n" in value or "\r" in value:
        raise bad_body(f"mime_type must look like image/png, not {value[:80]!r}")
    return value


def parse_tags(values: list[str]) -> list[str]:
    """Tags from form fields: several fields, comma lists, or JSON arrays."""
    tags: list[str] = []
    for value in values:
        if value.lstrip().startswith("["):
            try:
                parsed = from_json(value)
            except ValueError as error:
                raise bad_body(f"tags: {error}") from error
            tags += checked_tags(parsed)
        else:
            tags += value.split(",")
    return checked_tags(tags)


def checked_tags(value: Any) -> list[str]:
    """Tags from a JSON body. Raises AssetError."""
    if not isinstance(value, list) or not all(isinstance(t, str) for t in value):
        raise bad_body("tags must be an array of strings")
    return clean_tags(checked_text(tag, "a tag") for tag in value)


def checked_metadata(value: Any) -> dict[str, Any]:
    """User metadata from a JSON body. Raises AssetError."""
    if not isinstance(value, dict):
        raise bad_body("user_metadata must be an object")
    return value


@dataclass
class AssetFields:
    """What a request says about a new asset besides its content."""

    name: str | None = None
    tags: list[str] = field(default_factory=list)
    user_metadata: dict[str, Any] = field(default_factory=dict)
    mime_type: str | None = None
    preview_id: str | None = None
    hash: str | None = None

    @classmethod
    def from_form(cls, form: Form) -> AssetFields:
        """Check the text fields of an upload. Raises AssetError."""
        unknown = sorted(set(form.texts) - set(KNOWN_FIELDS) - {"file"})
        if unknown:
            raise AssetError("UNSUPPORTED_FIELD", f"unknown field {unknown[0]!r}", details={"fields": unknown})
        metadata = form.text("user_metadata")
        try:
            parsed = from_json(metadata) if metadata else {}
        except ValueError as error:
            raise bad_body(f"user_metadata is not JSON: {error}") from error
        mime_type = form.text("mime_type") or None
        content_hash = form.text("hash").lower() or None
        if content_hash is not None and not is_hash(content_hash):
            raise AssetError("INVALID_HASH", "a hash is blake3: and 64 hex digits")
        return cls(
            checked_text(form.text("name"), "name") or None,
            parse_tags(form.texts.get("tags", [])),
            checked_metadata(parsed),
            checked_mime_type(mime_type) if mime_type else None,
            checked_text(form.text("preview_id"), "preview_id") or None,
            content_hash,
        )


def folder_for(tags: list[str], name: str) -> str:
    """The folder a new file goes to: the one of `models`, `input` and `output` that is a tag."""
    roots = [t for t in tags if t in ROOTS]
    if len(roots) != 1:
        raise bad_body("exactly one of the tags models, input and output says where the file goes")
    if roots[0] != "models":
        return upload_folder(roots[0], "", name)[0]
    for tag in tags:
        paths = folder_paths.folder_names_and_paths.get(tag, ([], set()))[0]
        if paths and tag not in ("configs", "custom_nodes"):
            return paths[0]
    raise bad_body("with the tag models, another tag must name the kind of model, such as loras")


def create(store: AssetStore, form: Form, owner: str) -> tuple[Asset, bool]:
    """(the new asset, whether its content was new) from an upload form. Blocking. Raises AssetError."""
    fields = AssetFields.from_form(form)
    details = {
        "tags": fields.tags,
        "owner": owner,
        "name": fields.name,
        "user_metadata": fields.user_metadata,
        "mime_type": fields.mime_type,
        "preview_id": fields.preview_id,
    }
    if form.path is None:
        if fields.hash is None:
            raise AssetError("MISSING_FILE", "the form has no file in the field file")
        return store.add_reference(fields.hash, **details), False
    if form.size == 0:
        raise AssetError("EMPTY_UPLOAD", "the file is empty")
    content_hash = hash_file(form.path)
    if fields.hash is not None and fields.hash != content_hash:
        raise AssetError("HASH_MISMATCH", "the file has another hash", details={"actual": content_hash})
    details["name"] = fields.name or checked_text(form.filename or "", "the file name")
    if store.file_of_hash(content_hash) is not None:
        return store.add_reference(content_hash, **details), False
    try:
        name = upload_name(form.filename or fields.name or "")
        folder = folder_for(fields.tags, name)
        placed = place(form.path, folder, name, overwrite=False)
        path = folder_paths.safe_join(folder, placed)
    except (BadFileName, folder_paths.PathOutsideFolder) as error:
        raise bad_body(str(error)) from error
    return store.add_file(path, content_hash=content_hash, **details), True


def create_from_hash(store: AssetStore, body: dict[str, Any], owner: str) -> Asset:
    """A new asset for known content, from a JSON body. Raises AssetError."""
    content_hash = body.get("hash")
    if not isinstance(content_hash, str) or not is_hash(content_hash.lower()):
        raise bad_body("hash must be blake3: and 64 hex digits")
    name = body.get("name")
    if name is not None and not isinstance(name, str):
        raise bad_body("name must be a string")
    checked_text(name or "", "name")
    tags = checked_tags(body.get("tags", []))
    metadata = checked_metadata(body.get("user_metadata", {}))
    if store.file_of_hash(content_hash.lower()) is None:
        raise not_found(content_hash)
    return store.add_reference(content_hash.lower(), name=name, tags=tags, user_metadata=metadata, owner=owner)


def changes_of(body: dict[str, Any]) -> dict[str, Any]:
    """The changes a PUT asks for. Raises AssetError."""
    changes: dict[str, Any] = {}
    if "name" in body:
        if not isinstance(body["name"], str) or not body["name"].strip():
            raise bad_body("name must be a string that is not blank")
        changes["name"] = checked_text(body["name"], "name")
    if "user_metadata" in body:
        changes["user_metadata"] = checked_metadata(body["user_metadata"])
    if "preview_id" in body:
        if body["preview_id"] is not None and not isinstance(body["preview_id"], str):
            raise bad_body("preview_id must be an asset id or null")
        checked_text(body["preview_id"] or "", "preview_id")
        changes["preview_id"] = body["preview_id"]
    if not changes:
        raise bad_body("the body needs name, user_metadata or preview_id")
    return changes
