"""The first minute of a new user: our workflow is open, one press of Run draws a picture, a reload keeps the work."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.browser.front_end import LATE_MS, FrontEnd, rgb
from tests.examples.server_process import REPO

pytestmark = pytest.mark.slow

EXAMPLE = json.loads((REPO / "examples" / "text_to_image.json").read_text())["prompt"]
STARTER_FILE = "text_to_image.workflow.json"
SAMPLER, TEXT, SAVE = 3, 6, 9
NOT_BLANK = 10  # standard deviation of pixels, of 255


@pytest.fixture(scope="module")
def first(browser, server, tmp_path_factory):
    """The page of a user whom this server has never seen; the tests of this module follow one visit."""
    assert server.get("/settings") == {}
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = FrontEnd(context.new_page(), server.url, tmp_path_factory.mktemp("screenshots"))
    page.open()
    yield page
    context.close()


def without_meta(prompt: dict) -> dict:
    return {node_id: {key: value for key, value in node.items() if key != "_meta"} for node_id, node in prompt.items()}


def most_common_colour(picture: np.ndarray) -> np.ndarray:
    """The colour that most pixels have, give or take a sixteenth: (3,)."""
    shades, counts = np.unique((picture // 16).reshape(-1, 3), axis=0, return_counts=True)
    return shades[counts.argmax()] * 16 + 8


def test_the_starter_workflow_is_open_and_nothing_covers_it(first):
    first.page.wait_for_timeout(LATE_MS)
    first.shot("1_first_visit")
    types = sorted(first.nodes().values())
    assert types == sorted([*(node["class_type"] for node in EXAMPLE.values()), "MarkdownNote"])
    assert first.tabs() == ["text_to_image"]
    assert first.dialogs() == []
    assert first.js("() => app.extensionManager.setting.get('Comfy.TutorialCompleted')") is True


def test_it_submits_what_the_example_file_holds(first):
    assert without_meta(first.prompt()) == without_meta(EXAMPLE)


def test_run_draws_the_picture_into_the_node(first, server):
    first.run()
    assert first.requested("/api/prompt")[-1].status == 200

    progress = [data for data in first.events.of("progress") if data["node"] == str(SAMPLER)]
    assert (progress[-1]["value"], progress[-1]["max"]) == (20, 20)
    assert len(progress) > 1
    running = {
        node_id
        for data in first.events.of("progress_state")
        for node_id, node in data["nodes"].items()
        if node["state"] == "running"
    }
    assert running == set(EXAMPLE)

    image = first.wait(lambda: first.images(SAVE), "image in the SaveImage node")[0]
    assert (image["width"], image["height"]) == (128, 128)
    assert first.requested("/api/view?")[-1].status == 200
    picture = rgb(first.fetch(image["src"]))
    assert picture.std() > NOT_BLANK

    first.page.wait_for_timeout(500)  # the canvas paints the image in one of its next frames
    first.shot("2_after_the_run")
    area = first.shot("3_save_node", first.node_area(SAVE))
    assert area.std() > NOT_BLANK
    colour = most_common_colour(picture)
    alike = (abs(area - colour).max(axis=-1) < 16).mean()
    assert alike > 0.05, f"the picture's main colour {colour} fills {alike:.1%} of the node"


def test_the_image_is_listed_as_a_finished_job(first):
    panel = '[data-testid=side-toolbar] [aria-label^="Assets"], .side-tool-bar-container [aria-label^="Assets"]'
    first.page.locator(panel).first.click()
    thumbnail = first.page.locator("img[src*='/view']").first
    thumbnail.wait_for(state="visible", timeout=30_000)
    first.shot("4_assets")
    first.page.locator(panel).first.click()


def test_reload_keeps_the_user_s_workflow(first):
    first.set_widget(TEXT, "text", "a small green square on a white background")
    first.page.wait_for_timeout(1500)  # the front end saves its draft half a second after the last change
    asked = len(first.requested(STARTER_FILE))
    assert asked == 1
    first.reload()
    first.page.wait_for_timeout(LATE_MS)
    first.shot("5_reloaded")
    assert first.widget(TEXT, "text") == "a small green square on a white background"
    assert first.tabs() == ["text_to_image"]
    assert first.dialogs() == []
    assert len(first.requested(STARTER_FILE)) == asked


def test_an_empty_workflow_of_the_user_s_own_stays_empty(first):
    first.js("() => app.extensionManager.command.execute('Comfy.NewBlankWorkflow')")
    first.page.wait_for_timeout(1500)
    first.reload()
    first.page.wait_for_timeout(LATE_MS)
    assert first.nodes() == {}
    assert len(first.tabs()) == 2
    assert len(first.requested(STARTER_FILE)) == 1


def test_the_menu_opens_the_starter_again(first):
    first.page.locator(".comfy-menu-button-wrapper").first.click()
    first.page.get_by_text("Help", exact=True).first.hover()
    first.page.get_by_text("Open the starter workflow").first.click()
    first.wait(lambda: first.nodes(), "starter workflow", 30)
    first.page.wait_for_timeout(500)
    first.shot("6_from_the_menu")
    assert without_meta(first.prompt()) == without_meta(EXAMPLE)
    assert len(first.tabs()) == 3


def test_no_complaints(first):
    assert first.refusals() == []
    assert first.complaints == []


def test_a_known_user_s_other_browser_gets_the_starter_too(first, new_browser):
    other = new_browser()
    other.open()
    other.page.wait_for_timeout(LATE_MS)
    other.shot("7_other_browser")
    assert without_meta(other.prompt()) == without_meta(EXAMPLE)
    assert other.tabs() == ["text_to_image"]
    assert other.dialogs() == []


def test_without_the_starter_file_the_front_end_starts_as_ever(first, new_browser):
    other = new_browser()
    other.page.route(f"**/{STARTER_FILE}", lambda route: route.fulfill(status=404, body=""))
    other.open(expected="Unsaved Workflow")
    assert other.nodes() and other.nodes() != first.nodes()
    assert any("starter workflow" in complaint for complaint in other.complaints)
    assert other.page.locator("[data-testid=queue-button]").first.is_enabled()
