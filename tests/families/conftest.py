import pytest
import torch

import folder_paths
from tests.families.text import unpack_vocabularies


@pytest.fixture(autouse=True)
def inference():
    """As in the server: nothing records gradients."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    unpack_vocabularies(folder)
    return folder


@pytest.fixture
def vocabularies(models_folder, monkeypatch):
    """A models folder with the vocabularies in it."""
    monkeypatch.setattr(folder_paths, "models_dir", str(models_folder))
    return models_folder
