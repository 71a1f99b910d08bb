"""Re-exports; see `nodes`."""

from nodes.compositing import JoinImageWithAlpha, PorterDuffImageComposite, SplitImageWithAlpha

__all__ = ["JoinImageWithAlpha", "PorterDuffImageComposite", "SplitImageWithAlpha"]
