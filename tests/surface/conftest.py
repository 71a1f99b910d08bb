import pytest

import nodes  # noqa: F401  (names are looked up the way packs do it: when the built-in nodes are there)
from tools import surface


@pytest.fixture(scope="package", autouse=True)
def server_instance():
    """A real `server.PromptServer.instance`, which packs reach at import, whatever other tests have put there."""
    from server import PromptServer

    missing = object()
    before = getattr(PromptServer, "instance", missing)
    if before is not missing:
        del PromptServer.instance
    surface.make_instance()
    yield
    if before is missing:
        del PromptServer.instance
    else:
        PromptServer.instance = before


@pytest.fixture(scope="package")
def tiny_checkpoint():
    """(model, clip, vae, None) of the checkpoint that comes with the repository."""
    import comfy.sd
    import folder_paths

    path = folder_paths.get_full_path_or_raise("checkpoints", "darkroom-tiny.safetensors")
    return comfy.sd.load_checkpoint_guess_config(path)
