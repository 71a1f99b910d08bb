"""Operations on assets. All are blocking and may be called from any thread.

An asset's JSON form leaves out what is null; see spec/http-api.md section 12 for its keys.
"""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import folder_paths
from assets.database import Database
from assets.errors import AssetError, not_found
from assets.hashing import hash_file
from assets.query import Filters, Page
from gateway.files import content_type
from protocol import to_json

Asset = dict[str, Any]


def now() -> str:
    """The present as ISO time, in UTC."""
    return datetime.now(timezone.utc).isoformat()


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Tags in lower case without blanks and duplicates, in order."""
    return list(dict.fromkeys(t.strip().lower() for t in tags if t.strip()))


def loader_path(path: str) -> str | None:
    """The name under which loaders know a file: relative to the folder it is in."""
    model = folder_paths.get_relative_path(path)
    if model is not None:
        return model[1].replace(os.sep, "/")
    for folder in (folder_paths.get_input_directory(), folder_paths.get_output_directory()):
        if folder_paths.is_lexically_within(path, folder):
            return os.path.relpath(path, folder).replace(os.sep, "/")
    return None


class AssetStore:
    """Assets of all users; `owner` is the user's id, empty for what belongs to everybody."""

    def __init__(self, database: Database):
        self._database = database

    # --- forms ------------------------------------------------------------------------------------

    def _describe(self, db: sqlite3.Connection, row: sqlite3.Row) -> Asset:
        tags = [r[0] for r in db.execute("SELECT tag FROM asset_tags WHERE asset_id = ? ORDER BY tag", [row["id"]])]
        is_image = (row["mime_type"] or "").startswith("image/")
        preview = row["preview_id"] or (row["id"] if is_image else None)
        asset = {
            "id": row["id"],
            "name": row["name"],
            "hash": row["hash"],
            "asset_hash": row["hash"],
            "loader_path": loader_path(row["path"]),
            "display_name": row["name"],
            "size": row["size"],
            "mime_type": row["mime_type"],
            "tags": tags,
            "preview_url": f"/api/assets/{preview}/content" if preview else None,
            "preview_id": row["preview_id"],
            "user_metadata": json.loads(row["user_metadata"]),
            "is_immutable": False,
            "job_id": row["job_id"],
            "prompt_id": row["job_id"],
            "created_at": row["created_at"],
            "updated_at": row["updated_at"],
            "last_access_time": row["last_access_time"],
        }
        return {key: value for key, value in asset.items() if value is not None}

    def _row(self, db: sqlite3.Connection, ident: str, owner: str) -> sqlite3.Row:
        row = db.execute("SELECT * FROM assets WHERE id = ? AND owner IN ('', ?)", [ident.lower(), owner]).fetchone()
        if row is None:
            raise not_found(ident)
        return row

    # --- making -----------------------------------------------------------------------------------

    def add_file(
        self,
        path: str,
        *,
        tags: Iterable[str] = (),
        owner: str = "",
        name: str | None = None,
        mime_type: str | None = None,
        user_metadata: dict[str, Any] | None = None,
        preview_id: str | None = None,
        content_hash: str | None = None,
        with_hash: bool = True,
        job_id: str | None = None,
    ) -> Asset:
        """A new asset for a file on disk. The hash is computed unless given or `with_hash` is false.

        job_id: the prompt that made the file.
        """
        if content_hash is None and with_hash:
            content_hash = hash_file(path)
        ident, time, size = str(uuid.uuid4()), now(), os.path.getsize(path)
        name = name or os.path.basename(path)
        with self._database.transaction() as db:
            if content_hash is not None:
                # The file may have been overwritten: nobody may get the new content under the old hash.
                db.execute("DELETE FROM contents WHERE path = ? AND hash != ?", [path, content_hash])
                db.execute("UPDATE assets SET hash = NULL WHERE path = ? AND hash != ?", [path, content_hash])
                db.execute("INSERT OR IGNORE INTO contents VALUES (?, ?)", [content_hash, path])
            db.execute(
                "INSERT INTO assets (id, owner, name, hash, path, size, mime_type, user_metadata, preview_id,"
                " job_id, created_at, updated_at, last_access_time) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [ident, owner, name, content_hash, path, size, mime_type or content_type(path),
                 to_json(user_metadata or {}).decode(), preview_id, job_id, time, time, time],
            )  # fmt: skip
            self._tag(db, ident, clean_tags(tags))
            return self._describe(db, self._row(db, ident, owner))

    def add_reference(self, content_hash: str, **fields: Any) -> Asset:
        """A new asset for content that is known already; fields as of `add_file`. Raises AssetError."""
        return self.add_file(self.path_of_hash(content_hash), content_hash=content_hash, **fields)

    def path_of_hash(self, content_hash: str) -> str:
        """A file with this content. Raises AssetError if there is none any more."""
        with self._database.transaction() as db:
            paths = [
                row[0]
                for row in db.execute(
                    "SELECT path FROM contents WHERE hash = ? UNION SELECT path FROM assets WHERE hash = ?",
                    [content_hash, content_hash],
                )
            ]
        for path in paths:
            if os.path.isfile(path):
                return path
        raise not_found(content_hash)

    def file_of_hash(self, content_hash: str) -> tuple[str, str, str | None] | None:
        """(path, name, MIME type) of content, for `GET /view?filename=blake3:…`; None if unknown."""
        try:
            path = self.path_of_hash(content_hash)
        except AssetError:
            return None
        with self._database.transaction() as db:
            row = db.execute("SELECT name, mime_type FROM assets WHERE hash = ?", [content_hash]).fetchone()
        return (path, row["name"], row["mime_type"]) if row else (path, os.path.basename(path), None)

    def knows_path(self, path: str) -> bool:
        """Whether some asset is this file."""
        with self._database.transaction() as db:
            return db.execute("SELECT 1 FROM assets WHERE path = ?", [path]).fetchone() is not None

    # --- one asset --------------------------------------------------------------------------------

    def get(self, ident: str, owner: str) -> Asset:
        """One asset. Raises AssetError."""
        with self._database.transaction() as db:
            return self._describe(db, self._row(db, ident, owner))

    def content(self, ident: str, owner: str) -> tuple[str, str, str | None]:
        """(path, name, MIME type) of an asset's file; counts as an access. Raises AssetError."""
        with self._database.transaction() as db:
            row = self._row(db, ident, owner)
            db.execute("UPDATE assets SET last_access_time = ? WHERE id = ?", [now(), row["id"]])
        path = row["path"]
        if not os.path.isfile(path):
            raise AssetError("FILE_NOT_FOUND", f"the file of asset {ident} is gone", 404, {"id": ident})
        return path, row["name"], row["mime_type"]

    def update(self, ident: str, owner: str, changes: dict[str, Any]) -> Asset:
        """Change `name`, `user_metadata` (replaced as a whole) or `preview_id`. Raises AssetError."""
        with self._database.transaction() as db:
            row = self._row(db, ident, owner)
            if changes.get("preview_id") is not None:
                self._row(db, changes["preview_id"], owner)
            for column, value in changes.items():
                if column == "user_metadata":
                    value = to_json(value or {}).decode()
                db.execute(f"UPDATE assets SET {column} = ? WHERE id = ?", [value, row["id"]])
            db.execute("UPDATE assets SET updated_at = ? WHERE id = ?", [now(), row["id"]])
            return self._describe(db, self._row(db, ident, owner))

    def delete(self, ident: str, owner: str) -> None:
        """Remove the reference; the file stays. Raises AssetError."""
        with self._database.transaction() as db:
            row = self._row(db, ident, owner)
            db.execute("DELETE FROM assets WHERE id = ?", [row["id"]])

    def forget_path(self, path: str) -> None:
        """Remove the references to a file that has been deleted."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM assets WHERE path = ?", [path])
            db.execute("DELETE FROM contents WHERE path = ?", [path])

    def prune(self) -> int:
        """Remove references whose file is gone; returns how many."""
        with self._database.transaction() as db:
            rows = db.execute("SELECT id, path FROM assets").fetchall()
            gone = [row["id"] for row in rows if not os.path.isfile(row["path"])]
            db.executemany("DELETE FROM assets WHERE id = ?", [[ident] for ident in gone])
        return len(gone)

    # --- listing ----------------------------------------------------------------------------------

    def list(self, filters: Filters, page: Page) -> dict[str, Any]:
        """A page of assets: `{"assets", "total", "has_more", "next_cursor"?}`."""
        where, values = filters.sql()
        direction, beyond = ("DESC", "<") if page.descending else ("ASC", ">")
        with self._database.transaction() as db:
            total = db.execute(f"SELECT COUNT(*) FROM assets WHERE {where}", values).fetchone()[0]
            if page.after is not None:
                where += f" AND ({page.sort}, id) {beyond} (?, ?)"
                values = [*values, *page.after]
            rows = db.execute(
                f"SELECT * FROM assets WHERE {where} ORDER BY {page.sort} {direction}, id {direction} LIMIT ? OFFSET ?",
                [*values, page.limit + 1, page.offset],
            ).fetchall()
            more, rows = len(rows) > page.limit, rows[: page.limit]
            answer: dict[str, Any] = {
                "assets": [self._describe(db, row) for row in rows],
                "total": total,
                "has_more": more,
            }
        if more:
            answer["next_cursor"] = page.cursor(rows[-1][page.sort], rows[-1]["id"])
        return answer

    def tag_counts(self, filters: Filters) -> dict[str, int]:
        """How many of these assets have each tag."""
        where, values = filters.sql()
        with self._database.transaction() as db:
            rows = db.execute(
                "SELECT tag, COUNT(*) FROM asset_tags WHERE asset_id IN"
                f" (SELECT id FROM assets WHERE {where}) GROUP BY tag ORDER BY 2 DESC, 1",
                values,
            )
            return dict(rows.fetchall())

    # --- tags -------------------------------------------------------------------------------------

    def _tag(self, db: sqlite3.Connection, ident: str, tags: Iterable[str]) -> None:
        for tag in tags:
            db.execute("INSERT OR IGNORE INTO tags VALUES (?)", [tag])
            db.execute("INSERT OR IGNORE INTO asset_tags VALUES (?, ?)", [ident, tag])

    def add_tags(self, ident: str, owner: str, tags: Iterable[str]) -> dict[str, Any]:
        """Tag an asset: `{"added", "already_present", "total_tags"}`. Raises AssetError."""
        tags = clean_tags(tags)
        with self._database.transaction() as db:
            before = self._describe(db, self._row(db, ident, owner))["tags"]
            self._tag(db, ident.lower(), tags)
            after = self._describe(db, self._row(db, ident, owner))["tags"]
        return {
            "added": [t for t in tags if t not in before],
            "already_present": [t for t in tags if t in before],
            "total_tags": after,
        }

    def remove_tags(self, ident: str, owner: str, tags: Iterable[str]) -> dict[str, Any]:
        """Take tags off an asset: `{"removed", "not_present", "total_tags"}`. Raises AssetError."""
        tags = clean_tags(tags)
        with self._database.transaction() as db:
            before = self._describe(db, self._row(db, ident, owner))["tags"]
            db.executemany("DELETE FROM asset_tags WHERE asset_id = ? AND tag = ?", [[ident.lower(), t] for t in tags])
        return {
            "removed": [t for t in tags if t in before],
            "not_present": [t for t in tags if t not in before],
            "total_tags": [t for t in before if t not in tags],
        }

    def list_tags(
        self, owner: str, prefix: str, limit: int, offset: int, by_name: bool, include_zero: bool
    ) -> dict[str, Any]:
        """Tags with the number of assets that have them: `{"tags", "total", "has_more"}`."""
        with self._database.transaction() as db:
            rows = db.execute(
                "SELECT tags.name, COUNT(assets.id) AS uses FROM tags"
                " LEFT JOIN asset_tags ON asset_tags.tag = tags.name"
                " LEFT JOIN assets ON assets.id = asset_tags.asset_id AND assets.owner IN ('', ?)"
                " WHERE substr(tags.name, 1, ?) = ? GROUP BY tags.name HAVING uses >= ? ORDER BY "
                + ("tags.name" if by_name else "uses DESC, tags.name"),
                [owner, len(prefix), prefix, 0 if include_zero else 1],
            ).fetchall()
        page = rows[offset : offset + limit]
        return {
            "tags": [{"name": row["name"], "count": row["uses"]} for row in page],
            "total": len(rows),
            "has_more": offset + len(page) < len(rows),
        }
