"""What a connected client said it can do, and what this server can (spec websocket.md, http-api.md GET /features)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SERVER_FEATURE_FLAGS: dict[str, Any] = {"supports_preview_metadata": True}


def get_connection_feature(
    sockets_metadata: Mapping[str, Mapping[str, Any]], sid: str | None, feature_name: str, default: Any = False
) -> Any:
    """The value of a client's feature flag, `default` if it has not announced it."""
    flags = sockets_metadata.get(sid, {}).get("feature_flags", {}) if sid is not None else {}
    return flags.get(feature_name, default)


def supports_feature(sockets_metadata: Mapping[str, Mapping[str, Any]], sid: str | None, feature_name: str) -> bool:
    """Whether a client has announced a feature as true."""
    return get_connection_feature(sockets_metadata, sid, feature_name) is True


def get_server_features() -> dict[str, Any]:
    """The flags of the running server; without one, those that always hold."""
    import sys

    server = sys.modules.get("server")
    instance = getattr(getattr(server, "PromptServer", None), "instance", None)
    features = getattr(instance, "features", None)
    return dict(features()) if callable(features) else dict(SERVER_FEATURE_FLAGS)
