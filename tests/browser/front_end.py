"""The front end in a real browser, as the tests of this folder drive it.

Selectors and start-up behaviour belong to the front end package that pyproject pins.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from playwright.sync_api import ConsoleMessage, Page, Response, WebSocket

START_MS = 120_000
RUN_SECONDS = 120
SETTLE_MS = 1_000  # what opens at once after the start has done so
LATE_MS = 4_000  # the template browser, where it opens by itself, does so well within this time
T = TypeVar("T")

# What a fresh user does not have yet: the page asks, and takes 404 for an answer.
OPTIONAL_PATHS = re.compile(
    r"^(/api)?/(user\.css|userdata/user\.css|userdata/comfy\.templates\.json|userdata/workflows%2F\.index\.json"
    r"|userdata\?dir=(workflows|subgraphs)&.*)$"
)
# The front end's own complaint at every start; it comes without our extension as well.
FRONT_END_NOISE = ("ComfyApp graph accessed before initialization",)


@dataclass(frozen=True)
class Answer:
    """One answered request. path: with query, without the server's address; for other hosts the whole URL."""

    method: str
    path: str
    status: int
    body: str | None = None


@dataclass
class Events:
    """What came over the page's WebSockets. json: (type, data) in order; previews: number of binary frames."""

    json: list[tuple[str, Any]] = field(default_factory=list)
    previews: int = 0

    def of(self, kind: str) -> list[Any]:
        """The data of all events of a type."""
        return [data for name, data in self.json if name == kind]


class FrontEnd:
    """A page of the front end, with a record of all it asked, received and complained about."""

    def __init__(self, page: Page, base: str, screenshots: Path):
        self.page, self.base, self.screenshots = page, base, screenshots
        self.answers: list[Answer] = []
        self.events = Events()
        self.complaints: list[str] = []
        page.on("response", self._on_response)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        page.on("websocket", self._on_websocket)

    # --- recording ---------------------------------------------------------------------------------

    def _on_response(self, response: Response) -> None:
        if not response.url.startswith(self.base):
            return
        path = response.url.removeprefix(self.base)
        body = response.request.post_data if path.startswith("/api/prompt") else None
        self.answers.append(Answer(response.request.method, path, response.status, body))

    def _on_console(self, message: ConsoleMessage) -> None:
        ours = message.type == "warning" and "Darkroom" in message.text
        if message.type != "error" and not ours:
            return
        if any(noise in message.text for noise in FRONT_END_NOISE):
            return
        url = (message.location or {}).get("url", "")
        if "Failed to load resource" in message.text:
            # Other hosts cannot be reached from a test; a 404 of our server is judged by its path.
            if not url.startswith(self.base) or OPTIONAL_PATHS.match(url.removeprefix(self.base)):
                return
        elif "Content Security Policy" in message.text or "Failed to fetch" in message.text:
            return  # a request to another host
        self.complaints.append(f"{message.type}: {message.text} ({url})")

    def _on_websocket(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._on_frame)

    def _on_frame(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self.events.previews += 1
            return
        event = json.loads(frame)
        self.events.json.append((event["type"], event.get("data")))

    # --- driving -----------------------------------------------------------------------------------

    def open(self, expected: str = "text_to_image") -> None:
        """Load the page in a browser that has no workflow yet; wait until the expected one alone is open."""
        self.page.goto(f"{self.base}/", wait_until="domcontentloaded")
        self.wait_until_started()
        self.wait(lambda: self.tabs() == [expected], f"workflow {expected}")
        self.page.wait_for_timeout(SETTLE_MS)

    def reload(self) -> None:
        """Load the page again, in the same browser."""
        self.page.reload(wait_until="domcontentloaded")
        self.wait_until_started()
        self.page.wait_for_timeout(SETTLE_MS)

    def wait_until_started(self) -> None:
        """Wait for the start to end: the Run button is there and the front end has opened what it opens."""
        self.page.wait_for_function(
            "window.app?.graph && window.app.extensionManager?.spinner === false", timeout=START_MS
        )
        self.page.wait_for_selector("[data-testid=queue-button]", timeout=START_MS)

    def js(self, expression: str, argument: Any = None) -> Any:
        """The JSON value of a JavaScript expression or function, awaited."""
        return self.page.evaluate(expression, argument)

    def wait(self, condition: Callable[[], T], what: str, seconds: float = RUN_SECONDS) -> T:
        """Wait until the condition holds; returns its value. Raises AssertionError with `what`."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"no {what} in {seconds} s; complaints: {self.complaints}"
            self.page.wait_for_timeout(100)
        return value

    def press_run(self) -> None:
        """Press the Run button."""
        self.page.locator("[data-testid=queue-button]").first.click()

    def run(self) -> None:
        """Press Run and wait until the prompt has ended, which must be a success."""
        before = len(self.events.json)
        self.press_run()

        def ended() -> bool:
            return any(t == "executing" and d["node"] is None for t, d in self.events.json[before:])

        self.wait(ended, "end of the run")
        kinds = [kind for kind, _ in self.events.json[before:]]
        assert "execution_success" in kinds, self.events.of("execution_error")

    def shot(self, name: str, clip: dict[str, float] | None = None) -> np.ndarray:
        """A screenshot, also kept as a file: (height, width, 3), 0…255."""
        content = self.page.screenshot(path=str(self.screenshots / f"{name}.png"), clip=clip)
        return rgb(content)

    def drop_file(self, name: str, mime: str, content: bytes) -> None:
        """Drop a file on the canvas, as from a file manager."""
        self.js(
            """([name, type, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], name, { type }));
                const canvas = document.querySelector("#graph-canvas");
                const options = { dataTransfer: data, bubbles: true, cancelable: true, clientX: 600, clientY: 700 };
                for (const kind of ["dragover", "drop"]) canvas.dispatchEvent(new DragEvent(kind, options));
            }""",
            [name, mime, list(content)],
        )

    # --- looking -----------------------------------------------------------------------------------

    def nodes(self) -> dict[str, str]:
        """Node id -> type of the graph on the canvas."""
        return self.js("() => Object.fromEntries(app.graph._nodes.map((n) => [String(n.id), n.type]))")

    def widget(self, node_id: int, name: str) -> Any:
        """The value of a widget."""
        return self.js(
            "([id, name]) => app.graph.getNodeById(id).widgets.find((w) => w.name === name).value",
            [node_id, name],
        )

    def set_widget(self, node_id: int, name: str, value: Any) -> None:
        """Change a widget as its own input field would, undo history included."""
        self.js(
            """([id, name, value]) => {
                const widget = app.graph.getNodeById(id).widgets.find((w) => w.name === name);
                widget.value = value;
                widget.callback?.(value);
                app.graph.setDirtyCanvas(true, true);
                const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
                (tracker.captureCanvasState ?? tracker.checkState).call(tracker);
            }""",
            [node_id, name, value],
        )

    def prompt(self) -> dict[str, Any]:
        """The graph as the front end would submit it."""
        return self.js("async () => (await app.graphToPrompt()).output")

    def tabs(self) -> list[str]:
        """Names of the open workflows."""
        return self.js("() => app.extensionManager.workflow.openWorkflows.map((w) => w.filename)")

    def dialogs(self) -> list[str]:
        """Text of each visible dialog."""
        return self.page.locator("[role=dialog]:visible").all_inner_texts()

    def images(self, node_id: int) -> list[dict[str, Any]]:
        """The loaded images that a node shows: src, width, height."""
        return self.js(
            """(id) => (app.graph.getNodeById(id).imgs ?? [])
                .filter((i) => i.complete && i.naturalWidth)
                .map((i) => ({ src: i.src, width: i.naturalWidth, height: i.naturalHeight }))""",
            node_id,
        )

    def node_area(self, node_id: int) -> dict[str, float]:
        """Where a node's body is on the page: x, y, width, height."""
        return self.js(
            """(id) => {
                const node = app.graph.getNodeById(id), { offset, scale } = app.canvas.ds;
                const box = app.canvas.canvas.getBoundingClientRect();
                return {
                    x: box.x + (node.pos[0] + offset[0]) * scale, y: box.y + (node.pos[1] + offset[1]) * scale,
                    width: node.size[0] * scale, height: node.size[1] * scale,
                };
            }""",
            node_id,
        )

    def fetch(self, url: str) -> bytes:
        """The content behind a URL, asked for by the page's browser."""
        response = self.page.request.get(url)
        assert response.ok, f"{url}: {response.status}"
        return response.body()

    def requested(self, part: str) -> list[Answer]:
        """All answered requests whose path contains `part`."""
        return [answer for answer in self.answers if part in answer.path]

    def refusals(self) -> list[Answer]:
        """Answers with an error status that a fresh user does not get from a healthy server."""
        return [a for a in self.answers if a.status >= 400 and not OPTIONAL_PATHS.match(a.path)]


def rgb(content: bytes) -> np.ndarray:
    """An image file's pixels: (height, width, 3), 0…255."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(np.int16)
