"""`--demo`: once the server can, draw one picture with the built-in model, through POST /prompt."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request

import folder_paths

log = logging.getLogger("darkroom")

BODY_FILE = os.path.join(folder_paths.program_path, "examples", "text_to_image.json")
POLL_SECONDS = 0.1


class DemoFailed(RuntimeError):
    """The demonstration picture could not be drawn; the message says why."""


def start(server, url: str) -> None:
    """Draw the picture on a thread of its own. `server` is the running PromptServer, `url` its address."""
    take_terminal()
    threading.Thread(target=_run, args=(server, url), name="demo", daemon=True).start()


def take_terminal() -> None:
    """Receive the terminal's Ctrl-C alone, so that the `make` above sees our exit status, not the signal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return
    try:
        previous = os.tcgetpgrp(terminal)
        if previous != os.getpgrp() or os.getpgrp() == os.getpid():
            return
        # A background process that takes the terminal is stopped by SIGTTOU unless it ignores it.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpgrp())
    except OSError:
        return
    finally:
        os.close(terminal)


def _run(server, url: str) -> None:
    try:
        server.wait_nodes_ready()
        with open(BODY_FILE, encoding="utf-8") as stream:
            body = json.load(stream)
        body["prompt"]["3"]["inputs"]["seed"] = random.randrange(2**32)
        started = time.perf_counter()
        picture = draw(url, body)
        seconds = time.perf_counter() - started
    except (DemoFailed, OSError, KeyError, ValueError) as error:
        log.error("the demo picture could not be drawn: %s", error)
        return
    text = body["prompt"]["6"]["inputs"]["text"]
    file = os.path.relpath(BODY_FILE)
    print(
        f'\n  Drawn in {seconds:.1f} s: "{text}"\n'
        f"  Picture  {picture}\n"
        f"  Browser  {url}\n"
        f"  Shell    curl -s {url}/prompt -d @{file}\n\n"
        "  Ctrl-C ends the server.\n",
        flush=True,
    )


def draw(url: str, body: dict, timeout: float = 120) -> str:
    """Submit the body of a POST /prompt to the server at `url`, wait, and return the picture's full path.

    Raises DemoFailed with the server's own words if it refuses or fails.
    """
    request = urllib.request.Request(url + "/prompt", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            prompt_id = json.load(answer)["prompt_id"]
    except urllib.error.HTTPError as error:
        raise DemoFailed(error.read().decode("utf-8", "replace")) from error
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.closing(urllib.request.urlopen(f"{url}/history/{prompt_id}", timeout=timeout)) as answer:
            entry = json.load(answer).get(prompt_id)
        if entry is None:
            time.sleep(POLL_SECONDS)
            continue
        if entry["status"]["status_str"] != "success":
            raise DemoFailed(entry["status"]["messages"][-1][1].get("exception_message", "unknown error"))
        image = next(i for output in entry["outputs"].values() for i in output.get("images", []))
        folder = folder_paths.get_directory_by_type(image["type"])
        return os.path.join(folder, image["subfolder"], image["filename"])
    raise DemoFailed(f"no picture after {timeout:.0f} s")
