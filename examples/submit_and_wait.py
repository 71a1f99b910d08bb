#!/usr/bin/env python3
"""Submit a prompt, follow it over the WebSocket, fetch the picture.

    python examples/submit_and_wait.py --text "a large yellow star on a purple background" --out star.png

Needs aiohttp, which the server needs too. Works with any ComfyUI-compatible server. The prompt file holds what a
POST /prompt takes (`{"prompt": {…}}`) or the bare graph (what the front end exports as "API").
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import uuid
from pathlib import Path
from typing import Any

import aiohttp

DEFAULT_PROMPT = Path(__file__).parent / "text_to_image.json"
SILENCE_SECONDS = 600  # a server that says nothing for so long is given up

Graph = dict[str, dict[str, Any]]


class Failed(Exception):
    """The server refused or failed; the message says why, in its own words."""


def read_graph(path: Path) -> Graph:
    """The graph of a prompt file: node id -> {"class_type", "inputs"}. Raises Failed if it holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"{path}: {error}") from error
    graph = content.get("prompt", content) if isinstance(content, dict) else None
    if not isinstance(graph, dict) or not all(isinstance(n, dict) and "class_type" in n for n in graph.values()):
        raise Failed(f"{path}: not a prompt in API format (a UI workflow has to be exported as API first)")
    return graph


def samplers(graph: Graph) -> list[dict[str, Any]]:
    """The inputs of all nodes that sample: those with a seed and a positive conditioning."""
    return [n["inputs"] for n in graph.values() if {"seed", "positive"} <= n.get("inputs", {}).keys()]


def set_seed(graph: Graph, seed: int) -> None:
    """Give every sampler this seed."""
    for inputs in samplers(graph):
        inputs["seed"] = seed


def set_text(graph: Graph, text: str) -> None:
    """Change the text at the samplers' `positive` input. Raises Failed if no node there has a text."""
    found = False
    for inputs in samplers(graph):
        link = inputs["positive"]
        encoder = graph.get(link[0], {}).get("inputs", {}) if isinstance(link, list) else {}
        if isinstance(encoder.get("text"), str):
            encoder["text"] = text
            found = True
    if not found:
        raise Failed("--text: no text encoder at the `positive` input of a sampler")


async def submit(session: aiohttp.ClientSession, server: str, graph: Graph, client_id: str) -> str:
    """POST /prompt; returns the prompt id. Raises Failed with what is wrong with which node."""
    async with session.post(f"{server}/prompt", json={"prompt": graph, "client_id": client_id}) as answer:
        if answer.status != 200:
            raise Failed(refusal(answer.status, await answer.read()))
        return (await answer.json())["prompt_id"]


def refusal(status: int, body: bytes) -> str:
    """What the server said about a prompt that it does not take, one line per problem."""
    try:
        answer = json.loads(body)
        lines = [answer["error"]["message"]]
        for node_id, node in (answer.get("node_errors") or {}).items():
            lines += [f"node {node_id} ({node['class_type']}): {e['message']}: {e['details']}" for e in node["errors"]]
        return "\n  ".join(lines)
    except (ValueError, KeyError, TypeError):
        return f"status {status}: {body[:300]!r}"


async def follow(socket: aiohttp.ClientWebSocketResponse, prompt_id: str, graph: Graph) -> list[dict[str, str]]:
    """Report progress until the prompt has ended; returns the images it saved. Raises Failed if it failed."""
    images: list[dict[str, str]] = []
    failure = None
    while True:
        frame = await socket.receive(SILENCE_SECONDS)
        if frame.type is aiohttp.WSMsgType.BINARY:
            continue  # a preview picture
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise Failed("the server has closed the connection")
        event = json.loads(frame.data)
        data = event.get("data") or {}
        if data.get("prompt_id") != prompt_id:
            continue  # the state of the queue, or another prompt
        match event["type"]:
            case "executing" if data["node"] is None:
                break  # always the last event, however the prompt ended
            case "executing":
                report(f"{graph[data['display_node']]['class_type']} …")
            case "progress":
                report(f"step {data['value']} of {data['max']}")
            case "executed":
                images += (data.get("output") or {}).get("images", [])
            case "execution_error":
                failure = f"{data['node_type']} (node {data['node_id']}): {data['exception_message'].strip()}"
            case "execution_interrupted":
                failure = "interrupted"
    report("")
    if failure:
        raise Failed(failure)
    return [image for image in images if image["type"] == "output"]


def report(text: str) -> None:
    """Show one line that the next one replaces; only where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


async def fetch(session: aiohttp.ClientSession, server: str, image: dict[str, str]) -> bytes:
    """The image file itself, through GET /view."""
    async with session.get(f"{server}/view", params=image) as answer:
        answer.raise_for_status()
        return await answer.read()


async def draw(server: str, graph: Graph) -> list[tuple[dict[str, str], bytes]]:
    """Run the graph on the server; returns (entry, file content) for each saved image."""
    client_id = str(uuid.uuid4())
    async with aiohttp.ClientSession() as session:
        # Connect before submitting: events that nobody listens to are not sent again.
        async with session.ws_connect(f"{server}/ws", params={"clientId": client_id}, max_msg_size=0) as socket:
            prompt_id = await submit(session, server, graph, client_id)
            images = await follow(socket, prompt_id, graph)
        return [(image, await fetch(session, server, image)) for image in images]


def out_path(out: Path | None, image: dict[str, str], index: int) -> Path:
    """Where the image goes: its own name here, or --out, with a number from the second image on."""
    if out is None:
        return Path(Path(image["filename"]).name)
    return out if index == 0 else out.with_name(f"{out.stem}_{index}{out.suffix}")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Submit a prompt, wait for it, save its pictures.")
    parser.add_argument("--server", default="http://127.0.0.1:8188", help="%(default)s")
    parser.add_argument("--prompt-file", type=Path, default=DEFAULT_PROMPT, help="prompt in API format")
    parser.add_argument("--text", help="what to draw, instead of the file's text")
    parser.add_argument("--seed", type=int, help="random if not given")
    parser.add_argument("--out", type=Path, help="file to write; the server's file name if not given")
    args = parser.parse_args()
    try:
        graph = read_graph(args.prompt_file)
        set_seed(graph, random.randrange(2**32) if args.seed is None else args.seed)
        if args.text is not None:
            set_text(graph, args.text)
        pictures = asyncio.run(draw(args.server.rstrip("/"), graph))
        if not pictures:
            raise Failed("the prompt saved no picture")
        for index, (image, content) in enumerate(pictures):
            path = out_path(args.out, image, index)
            path.write_bytes(content)
            print(path)
    except asyncio.TimeoutError:
        print(f"error: the server said nothing for {SILENCE_SECONDS} s", file=sys.stderr)
        return 1
    except (Failed, OSError, aiohttp.ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
