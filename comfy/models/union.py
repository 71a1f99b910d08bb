"""What union control nets, which take pictures of several kinds, have in common."""

from __future__ import annotations

from collections.abc import Sequence


class UnknownUnionType(ValueError):
    """A union net was told a kind of picture it does not have."""


def check_kinds(control_type: Sequence[int], known: int) -> None:
    """Raises UnknownUnionType for numbers of kinds that a net with so many does not have."""
    if max(control_type, default=0) >= known:
        raise UnknownUnionType(
            f"this union control net knows {known} kinds of pictures, numbered from 0; "
            f"kind {max(control_type)} was asked for"
        )
