"""Re-exports; see `nodes`."""

from nodes.perp_neg import PerpendicularGuider as Guider_PerpNeg
from nodes.perp_neg import PerpNeg, PerpNegGuider

__all__ = ["Guider_PerpNeg", "PerpNeg", "PerpNegGuider"]
