"""Re-exports; see `nodes`."""

from nodes.primitives import PrimitiveBoolean, PrimitiveFloat, PrimitiveInt, PrimitiveString, PrimitiveStringMultiline

__all__ = ["PrimitiveBoolean", "PrimitiveFloat", "PrimitiveInt", "PrimitiveString", "PrimitiveStringMultiline"]
