"""One server process for all tests of this folder that only need a server."""

from __future__ import annotations

import pytest

from tests.examples.server_process import MODEL_FILE, ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    assert MODEL_FILE.is_file(), f"{MODEL_FILE} belongs to the checkout"
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process
