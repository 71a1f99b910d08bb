"""What can be wrong with a request about assets: a code for programs, a message for people."""

from __future__ import annotations

from typing import Any


class AssetError(Exception):
    """code: as listed in spec/http-api.md section 12; status: HTTP status."""

    def __init__(self, code: str, message: str, status: int = 400, details: dict[str, Any] | None = None):
        super().__init__(message)
        self.code = code
        self.status = status
        self.details = details or {}

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"code": self.code, "message": str(self), "details": self.details}}


def not_found(ident: str) -> AssetError:
    """No asset has this id or hash."""
    return AssetError("ASSET_NOT_FOUND", f"there is no asset {ident}", 404, {"id": ident})
