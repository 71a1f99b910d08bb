"""The tests that are written for a real device, on the simulated one."""

import pytest
import torch

import tests.memory.test_gpu as gpu_tests
from comfy import streaming
from comfy.ledger import ledger_of
from comfy.loaded_models import load_models_gpu
from tests.cuda.simulation import DEVICE

PLAIN = [
    gpu_tests.test_the_same_again_moves_nothing,
    gpu_tests.test_a_changed_strength_equals_a_fresh_load,
    gpu_tests.test_unloading_gives_the_memory_back,
    gpu_tests.test_out_of_memory_and_back,
    gpu_tests.test_the_text_of_the_device_is_understood,
]


@pytest.mark.parametrize("test", PLAIN, ids=lambda test: test.__name__)
def test_passes(cuda, test):
    test(DEVICE)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_streaming_gives_the_same_results(cuda, monkeypatch, share):
    gpu_tests.test_streaming_gives_the_same_results(DEVICE, monkeypatch, share, torch.bfloat16)
    assert ledger_of(DEVICE).counters.streamed > 50


def test_a_step_reads_nothing(cuda):
    model = gpu_tests.patcher(DEVICE)
    load_models_gpu([model])
    gpu_tests.run(model, DEVICE)
    before = len(cuda.reads)
    gpu_tests.run(model, DEVICE)
    assert cuda.reads[before:] == ["to"], "what it gives back"


def test_a_layer_never_runs_before_its_weights_are_there(cuda, monkeypatch):
    """Without the waiting of `Streamer.fetch` the simulation objects: the weights come on streams of their own."""
    model = gpu_tests.patcher(DEVICE)
    gpu_tests.in_part(monkeypatch, 0.5)
    load_models_gpu([model])
    gpu_tests.run(model, DEVICE)  # learns the order; now layers are copied ahead
    monkeypatch.setattr("tests.cuda.simulation.Stream.wait_event", lambda stream, event: None)
    with pytest.raises(AssertionError, match="another stream"):
        gpu_tests.run(model, DEVICE)
    assert issubclass(type(model.model.placement.streamer), streaming.Streamer)
