"""Re-exports; see `nodes`."""

from nodes.calculator import ComfyMathExpression

__all__ = ["ComfyMathExpression"]
