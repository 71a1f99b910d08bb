"""Which assets a listing asks for: filters, order, and cursors that stay valid while assets come and go."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assets.errors import AssetError
from protocol import from_json

MOST_PER_PAGE = 500
DEFAULT_PER_PAGE = 20
HIGHEST = 2**63 - 1  # the integers of SQLite
SORT_COLUMNS = ("created_at", "name", "updated_at", "size", "last_access_time")


def bad_query(message: str) -> AssetError:
    """A query parameter is not understood."""
    return AssetError("INVALID_QUERY", message)


def integer(query: Mapping[str, str], name: str, default: int, lowest: int, highest: int = HIGHEST) -> int:
    """An integer query parameter within limits. Raises AssetError."""
    text = query.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise bad_query(f"{name} must be an integer, not {text!r}") from None
    if not lowest <= value <= highest:
        told = f"at least {lowest}" if value < lowest and highest == HIGHEST else f"{lowest} to {highest}"
        raise bad_query(f"{name} must be {told}")
    return value


def choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """A query parameter that is one of `choices`, the first by default. Raises AssetError."""
    value = query.get(name, choices[0]).lower()
    if value not in choices:
        raise bad_query(f"{name} must be one of {', '.join(choices)}")
    return value


def tag_list(query: Mapping[str, str], *names: str) -> list[str]:
    """The tags of a comma list under the first of these names that is given."""
    for name in names:
        if name in query:
            return list(dict.fromkeys(t.strip().lower() for t in query[name].split(",") if t.strip()))
    return []


@dataclass
class Filters:
    """Conditions that all must hold."""

    owner: str = ""
    tags_all: list[str] = field(default_factory=list)
    tags_any: list[str] = field(default_factory=list)
    tags_none: list[str] = field(default_factory=list)
    name_contains: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_query(cls, query: Mapping[str, str], owner: str) -> Filters:
        """Read the filters of a listing. Raises AssetError."""
        filters = cls(
            owner,
            tag_list(query, "tags_all", "include_tags"),
            tag_list(query, "tags_any"),
            tag_list(query, "tags_none", "exclude_tags"),
            query.get("name_contains", ""),
        )
        both = set(filters.tags_none) & {*filters.tags_all, *filters.tags_any}
        if both:
            raise AssetError("INVALID_TAG_FILTER", f"wanted and unwanted at once: {', '.join(sorted(both))}")
        text = query.get("metadata_filter")
        if text:
            try:
                filters.metadata = from_json(text)
            except ValueError as error:
                raise bad_query(f"metadata_filter is not JSON: {error}") from error
            if not isinstance(filters.metadata, dict):
                raise bad_query("metadata_filter must be a JSON object")
        return filters

    def sql(self) -> tuple[str, list[Any]]:
        """(condition on the table `assets`, its parameters)."""
        parts, values = ["owner IN ('', ?)"], [self.owner]
        has = "EXISTS (SELECT 1 FROM asset_tags t WHERE t.asset_id = assets.id AND t.tag "
        for tag in self.tags_all:
            parts.append(f"{has}= ?)")
            values.append(tag)
        for tags, negation in ((self.tags_any, ""), (self.tags_none, "NOT ")):
            if tags:
                parts.append(f"{negation}{has}IN ({', '.join('?' * len(tags))}))")
                values += tags
        if self.name_contains:
            parts.append("name LIKE ? ESCAPE '\\'")
            escaped = self.name_contains.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            values.append(f"%{escaped}%")
        # Keys are compared, not put into a path, so they may be anything; a damaged row holds nothing.
        found = (
            "EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(user_metadata) THEN user_metadata ELSE '{}' END) m"
            " WHERE m.key = ? AND m."
        )
        for key, wanted in self.metadata.items():
            alternatives = []
            for value in wanted if isinstance(wanted, list) else [wanted]:
                if value is None:
                    alternatives.append(f"NOT {found}type != 'null')")
                    values.append(key)
                else:
                    alternatives.append(f"{found}value = ?)")
                    plain = isinstance(value, (str, int, float))
                    values += [key, value if plain else json.dumps(value, separators=(",", ":"))]
            parts.append("(" + (" OR ".join(alternatives) or "0") + ")")
        return " AND ".join(parts), values


@dataclass
class Page:
    """Order and extent of a listing; `after` is the (sort value, id) of the last asset already seen."""

    sort: str = SORT_COLUMNS[0]
    descending: bool = True
    limit: int = DEFAULT_PER_PAGE
    offset: int = 0
    after: tuple[Any, str] | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Page:
        """Read a listing's order and extent. Raises AssetError."""
        page = cls(
            choice(query, "sort", SORT_COLUMNS),
            choice(query, "order", ("desc", "asc")) == "desc",
            integer(query, "limit", DEFAULT_PER_PAGE, 1, MOST_PER_PAGE),
            integer(query, "offset", 0, 0),
        )
        if query.get("after"):
            page.after = page.read_cursor(query["after"])
        return page

    def cursor(self, value: Any, ident: str) -> str:
        """A cursor that continues after this asset, in this order."""
        raw = json.dumps([self.sort, self.descending, value, ident]).encode()
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def read_cursor(self, text: str) -> tuple[Any, str]:
        """The inverse of `cursor`. Raises AssetError for anything else, or a cursor of another order."""
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            sort, descending, value, ident = from_json(raw)
            if (sort, descending) != (self.sort, self.descending) or not isinstance(ident, str):
                raise ValueError("it belongs to another order")
            if not isinstance(value, (str, int)):
                raise ValueError("it holds no position")
        except (ValueError, TypeError, binascii.Error) as error:
            raise AssetError("INVALID_CURSOR", f"the cursor is not valid: {error}") from error
        return value, ident
