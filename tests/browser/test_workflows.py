"""What the page does with files dropped on it and with the server's refusals."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

MODEL, SAMPLER, TEXT, SAVE = 4, 3, 6, 9


def selected_errors(front_end) -> list[int]:
    return front_end.js("() => app.graph._nodes.filter((n) => n.has_errors).map((n) => Number(n.id))")


def shown_errors(front_end) -> str:
    """All text of the visible error cards and panels."""
    return "\n".join(front_end.page.locator("[data-testid*=error]:visible").all_inner_texts())


def test_a_saved_png_dropped_on_the_canvas_restores_its_graph(new_browser):
    text = "a large yellow star on a purple background"
    maker = new_browser()
    maker.open()
    maker.set_widget(TEXT, "text", text)
    maker.set_widget(SAMPLER, "steps", 4)
    maker.run()
    image = maker.wait(lambda: maker.images(SAVE), "image in the SaveImage node")[0]
    content = maker.fetch(image["src"])
    saved = json.loads(Image.open(io.BytesIO(content)).text["workflow"])

    taker = new_browser()
    taker.open()
    assert taker.widget(TEXT, "text") != text
    taker.drop_file("dropped.png", "image/png", content)
    taker.wait(lambda: taker.widget(TEXT, "text") == text, "restored graph", 30)
    taker.page.wait_for_timeout(500)
    taker.shot("dropped_png")
    assert taker.widget(SAMPLER, "steps") == 4
    assert taker.nodes() == {str(node["id"]): node["type"] for node in saved["nodes"]}
    links = taker.js("() => app.graph.serialize().links.map((l) => l.slice(0, 6))")
    assert sorted(links) == sorted(saved["links"])
    positions = taker.js("() => Object.fromEntries(app.graph._nodes.map((n) => [n.id, [...n.pos]]))")
    assert positions == {str(node["id"]): node["pos"] for node in saved["nodes"]}
    assert taker.complaints == []


def test_a_missing_input_is_shown_on_its_node(new_browser):
    page = new_browser()
    page.open()
    page.js("(id) => app.graph.getNodeById(id).disconnectInput(0)", SAMPLER)
    page.press_run()
    answer = page.wait(lambda: page.requested("/api/prompt"), "answer to POST /prompt", 30)[0]
    assert answer.status == 400
    page.wait(lambda: selected_errors(page), "node with an error", 10)
    page.page.wait_for_timeout(1000)
    page.shot("missing_input")
    assert selected_errors(page) == [SAMPLER]
    errors = page.js("() => app.lastNodeErrors")
    assert list(errors) == [str(SAMPLER)]
    assert errors[str(SAMPLER)]["errors"][0]["extra_info"]["input_name"] == "model"
    assert "model" in shown_errors(page)
    assert page.events.of("execution_start") == []


def test_a_value_that_is_not_in_the_list_is_shown_on_its_node(new_browser):
    page = new_browser()
    page.open()
    page.set_widget(MODEL, "ckpt_name", "not_there.safetensors")
    page.press_run()
    page.wait(lambda: selected_errors(page), "node with an error", 30)
    page.page.wait_for_timeout(1000)
    page.shot("missing_model")
    assert MODEL in selected_errors(page)
    errors = page.js("() => app.lastNodeErrors")
    assert errors[str(MODEL)]["errors"][0]["extra_info"]["input_name"] == "ckpt_name"


def test_a_failing_node_is_shown(new_browser):
    page = new_browser()
    page.open()
    page.js(
        """async () => {
            const form = new FormData();
            form.append("image", new File([new Uint8Array([1, 2, 3, 4])], "broken.png", { type: "image/png" }));
            await app.api.fetchApi("/upload/image", { method: "POST", body: form });
            await app.refreshComboInNodes();
            await app.loadApiJson({
                1: { class_type: "LoadImage", inputs: { image: "broken.png" } },
                2: { class_type: "PreviewImage", inputs: { images: ["1", 0] } },
            }, "broken");
        }"""
    )
    page.press_run()
    error = page.wait(lambda: page.events.of("execution_error"), "execution_error", 60)[0]
    assert (error["node_id"], error["node_type"]) == ("1", "LoadImage")
    page.page.wait_for_timeout(1500)
    assert page.js("() => String(app.lastExecutionError.node_id)") == "1"
    page.page.get_by_text("View details").first.click()
    page.page.wait_for_timeout(1500)
    page.shot("failing_node")
    assert "Load Image" in shown_errors(page)


def test_cancel_ends_a_long_run(new_browser):
    page = new_browser()
    page.open()
    page.set_widget(SAMPLER, "steps", 5000)
    page.press_run()
    page.wait(lambda: page.events.of("progress"), "progress")
    page.shot("running")
    page.page.locator('[aria-label="Cancel current run"]').first.click()
    interrupted = page.wait(lambda: page.events.of("execution_interrupted"), "execution_interrupted", 60)[0]
    assert interrupted["node_id"] == str(SAMPLER)
    page.wait(lambda: page.events.of("status")[-1]["status"]["exec_info"]["queue_remaining"] == 0, "empty queue", 30)
