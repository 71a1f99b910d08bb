"""A server in the test's own event loop: real routes, real queue, no worker, and nodes that need no torch."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path

import aiohttp
import pytest

import folder_paths
from comfy.cli_args import args, build_parser
from comfy_execution.prompt_queue import PromptQueue
from jobs.ledger import Ledger
from server import PromptServer


class TextNode:
    """Output node with one text."""

    RETURN_TYPES = ("STRING",)
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"text": ("STRING", {})}, "optional": {"number": ("INT", {"min": 0, "max": 9})}}

    def run(self, text, number=0):
        return {"ui": {"text": [text]}, "result": (text,)}


class BrokenNode(TextNode):
    """A node that cannot describe itself."""

    @classmethod
    def INPUT_TYPES(cls):
        raise RuntimeError("no inputs today")


def stub_nodes() -> types.ModuleType:
    """A stand-in for the package `nodes`."""
    module = types.ModuleType("nodes")
    module.NODE_CLASS_MAPPINGS = {"Text": TextNode, "Broken": BrokenNode}
    module.NODE_DISPLAY_NAME_MAPPINGS = {}
    module.EXTENSION_WEB_DIRS = {}

    def node_info(name):
        cls = module.NODE_CLASS_MAPPINGS[name]
        return {"name": name, "input": cls.INPUT_TYPES(), "highest": float("inf")}

    module.node_info = node_info
    return module


class Running:
    """A listening server and a client of it."""

    def __init__(self, server: PromptServer, url: str, session: aiohttp.ClientSession, base: Path):
        self.server = server
        self.url = url
        self.session = session
        self.base = base

    async def request(self, method: str, path: str, **kwargs):
        """(status, parsed JSON or bytes, headers) of a request."""
        import yarl

        url = yarl.URL(self.url + path, encoded=True)
        async with self.session.request(method, url, **kwargs) as response:
            body = await response.read()
            if response.content_type == "application/json" and body:
                return response.status, await response.json(), response.headers
            return response.status, body, response.headers

    async def get(self, path: str, **kwargs):
        return await self.request("GET", path, **kwargs)

    async def post(self, path: str, **kwargs):
        return await self.request("POST", path, **kwargs)

    async def upload(self, name: str, data: bytes, path: str = "/upload/image", field: str = "image", **texts: str):
        """Send a form as a careless client would: names are not checked, only quoted."""
        boundary = "b0undary"
        quoted = name.replace('"', "%22")
        parts = [
            f'name="{field}"; filename="{quoted}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode() + data
        ]
        parts += [f'name="{key}"\r\n\r\n{value}'.encode() for key, value in texts.items()]
        body = b"".join(f"--{boundary}\r\nContent-Disposition: form-data; ".encode() + part + b"\r\n" for part in parts)
        body += f"--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        return await self.post(path, data=body, headers=headers)

    def ws(self, client_id: str | None = None, **kwargs):
        query = f"?clientId={client_id}" if client_id is not None else ""
        return self.session.ws_connect(self.url + "/ws" + query, **kwargs)


def text_prompt(text: str = "x", **inputs) -> dict:
    """A prompt of one valid output node."""
    return {"1": {"class_type": "Text", "inputs": {"text": text, **inputs}}}


@pytest.fixture
def flags(monkeypatch):
    """Set command line flags for a test: `flags(multi_user=True)`."""

    def set_flags(**values):
        for name, value in values.items():
            assert hasattr(args, name), name
            monkeypatch.setattr(args, name, value)

    return set_flags


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A base directory with the usual folders, in force for the test."""
    namespace = build_parser().parse_args(["--base-directory", str(tmp_path)])
    saved = folder_paths.folder_names_and_paths.copy()
    folder_paths.configure(namespace)
    folder_paths.create_folders()
    (tmp_path / "temp").mkdir()
    yield tmp_path
    folder_paths.configure()
    folder_paths.folder_names_and_paths.update(saved)


@pytest.fixture
async def start(base, monkeypatch):
    """`await start()` starts a server; nodes are ready unless `ready=False`."""
    started = []
    before = getattr(PromptServer, "instance", None)
    nodes = stub_nodes()
    monkeypatch.setitem(sys.modules, "nodes", nodes)

    async def start_server(ready: bool = True) -> Running:
        server = PromptServer(asyncio.get_running_loop())
        queue = PromptQueue(server)
        server.jobs = Ledger()
        server.jobs.attach(queue)
        ports: list[int] = []
        await server.start_multi_address([("127.0.0.1", 0)], lambda scheme, address, port: ports.append(port))
        session = aiohttp.ClientSession()
        started.append((server, session))
        if ready:
            server.set_nodes_ready()
        return Running(server, f"http://127.0.0.1:{ports[0]}", session, base)

    yield start_server
    for server, session in started:
        await session.close()
        await server.close()
    PromptServer.instance = before


@pytest.fixture
async def running(start):
    """A server whose nodes are loaded."""
    return await start()
