"""The recorded session on devices of 4, 8 and 24 GB: what is promised about peaks and about what moves."""

import pytest

from comfy.device_memory import GB
from tests.memory.workload import run_session


@pytest.fixture(scope="module", params=[4, 8, 24])
def session(request):
    return request.param * GB, run_session(request.param * GB)


def test_the_peak_stays_below_the_device(session):
    size, prompts = session
    assert all(0.5 * size < prompt.peak <= size for prompt in prompts[3:])


def test_a_repeated_prompt_moves_less_and_nothing_if_it_fits(session):
    size, prompts = session
    first, again = prompts[0].counters, prompts[1].counters
    assert again.moved() < first.moved()
    assert (again.moved() == again.patches == again.evictions == 0) == (size == 24 * GB)


def test_a_changed_strength_costs_its_own_weights_only(session):
    size, prompts = session
    changed = prompts[2].counters
    if size == 24 * GB:
        assert 0 < changed.patches < prompts[0].counters.patches
        assert changed.copied_bytes < prompts[0].counters.copied_bytes / 5 and changed.evictions == 0


def test_flux_is_streamed_where_it_does_not_fit(session):
    size, prompts = session
    flux = [prompt.counters for prompt in prompts if prompt.name == "Flux"]
    assert all((counters.streamed > 0) == (size < 24 * GB) for counters in flux)
