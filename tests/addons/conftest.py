import pytest
import torch


@pytest.fixture(autouse=True)
def inference():
    """As in the server: nothing records gradients."""
    with torch.inference_mode():
        yield
