import pytest

import nodes  # noqa: F401  (names are looked up the way packs do it: when the built-in nodes are there)
from tools import surface


@pytest.fixture(scope="session", autouse=True)
def server_instance():
    """`server.PromptServer.instance`, which packs reach at import; removed again for tests that have their own."""
    from server import PromptServer

    had_one = hasattr(PromptServer, "instance")
    surface.make_instance()
    yield
    if not had_one:
        del PromptServer.instance
