"""The name under which some packs import `io`; with what is not part of the public face."""

from comfy_api.latest._dynamic import DynamicSlot as DynamicSlot
from comfy_api.latest.io import *  # noqa: F403
from comfy_api.latest.io import __all__ as __all__
