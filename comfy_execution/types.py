"""Do two socket types fit? (spec execution.md 2.4)"""

from __future__ import annotations

from typing import Any

MATCH_ANY = ("*", "COMFY_MATCHTYPE_V3")


def spelled(kind: Any) -> str | None:
    """The name of a type; packs have names that equal every other one, or have no hash. None for what is no text."""
    return str.__str__(kind) if isinstance(kind, str) else None


def types_fit(received: Any, wanted: Any) -> bool:
    """Whether an output of type `received` may be linked to an input of type `wanted`."""
    # Written as "not unequal": packs make wildcards from str subclasses whose __ne__ never holds.
    if not received != wanted:  # noqa: SIM202
        return True
    if any(kind == side for kind in MATCH_ANY for side in (received, wanted)):
        return True
    if isinstance(received, list | tuple) and wanted == "COMBO":
        return True
    if not isinstance(received, str) or not isinstance(wanted, str):
        return False
    offered = {part.strip() for part in received.split(",")}
    accepted = {part.strip() for part in wanted.split(",")}
    return "*" in offered or "*" in accepted or not offered.isdisjoint(accepted)
