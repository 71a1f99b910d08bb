"""A browser, a server and a page for the tests of this folder.

Everything ends with its module: the browser's driver keeps an event loop running, which async tests could not bear.
"""

from __future__ import annotations

import os
import shutil

import pytest

from tests.browser.front_end import FrontEnd
from tests.examples.server_process import MODEL_FILE, ServerProcess

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser():
    """A running chromium: that of $CHROMIUM, else the one on the path."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium; `make browser`)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that nobody has used yet, with the built-in model."""
    assert MODEL_FILE.is_file(), f"{MODEL_FILE} belongs to the checkout"
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def new_browser(browser, server, tmp_path):
    """A function that makes a page in a browser profile without history; the profiles go at the test's end."""
    contexts = []

    def new() -> FrontEnd:
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        contexts.append(context)
        return FrontEnd(context.new_page(), server.url, tmp_path)

    yield new
    for context in contexts:
        context.close()
