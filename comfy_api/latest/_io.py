"""The name under which some packs import `io`."""

from comfy_api.latest.io import *  # noqa: F403
from comfy_api.latest.io import __all__ as __all__
