"""Accepted is accepted: nothing is lost when the server is killed (a short form of `make soak`)."""

import pytest

from tests.jobs.fault import Trial

pytestmark = pytest.mark.slow


def test_killed_again_and_again(tmp_path):
    summary = Trial(tmp_path, prompts=48, clients=8, kills=3, seed=11).run()
    assert summary["jobs"] == 48 and summary["states"].get("completed", 0) >= 40
