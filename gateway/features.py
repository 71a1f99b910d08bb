"""What this server can do, as `GET /features` and the WebSocket answer it (spec: http-api.md section 10)."""

from __future__ import annotations

import logging
from typing import Any

from comfy.cli_args import feature_flags

log = logging.getLogger(__name__)


class Features:
    """The feature object; built-in keys cannot be replaced by `--feature-flag`."""

    def __init__(self, args: Any):
        self._given, warnings = feature_flags(args)
        for warning in warnings:
            log.warning(warning)
        self._own = {
            "supports_preview_metadata": True,
            "supports_model_type_tags": True,
            "max_upload_size": max_body_size(args),
            "extension": {"manager": {"supports_v4": True}},
            "node_replacements": True,
            "assets": bool(args.enable_assets),
        }

    def __call__(self) -> dict[str, Any]:
        """A fresh copy of the feature object."""
        return {**self._given, **self._own}


def max_body_size(args: Any) -> int:
    """The largest request body in bytes."""
    return round(args.max_upload_size * 1024 * 1024)
