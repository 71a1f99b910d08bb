"""Jobs: queued, running and finished prompts in one list (http-api.md section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass
