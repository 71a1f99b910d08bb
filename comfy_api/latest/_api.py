"""What nodes and extensions can ask of the running server (spec node-api.md 3.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from comfy.interrupt import throw_exception_if_processing_interrupted
from comfy_api.latest._node import ComfyNode
from comfy_api.latest._schema import NodeReplace
from comfy_execution import external_cache
from comfy_execution.progress import get_progress_state
from comfy_execution.utils import get_executing_context


class ComfyExtension(ABC):
    """What a pack's `comfy_entrypoint` returns."""

    async def on_load(self) -> None:
        """Called once, before the list of nodes is asked for."""
        return

    @abstractmethod
    async def get_node_list(self) -> list[type[ComfyNode]]:
        """The pack's node classes."""


class ComfyAPI:
    """The server, as nodes see it; all calls are coroutines. `ComfyAPISync` is the same without `await`."""

    class Execution:
        """The run in progress."""

        async def set_progress(
            self,
            value: float,
            max_value: float,
            node_id: str | None = None,
            preview_image: Any = None,
            ignore_size_limit: bool = False,
        ) -> None:
            """Report how far a node is.

            Args:
                node_id: the node; by default the one that is running.
                preview_image: a PIL image, or an image tensor [1,H,W,C] or [H,W,C] with values from 0 to 1.
                ignore_size_limit: send the preview as large as it is.

            Raises:
                ValueError: no node is running, and none was named.
            """
            context = get_executing_context()
            if node_id is None:
                if context is None:
                    raise ValueError("set_progress needs a node_id when no node is running")
                node_id = context.node_id
            throw_exception_if_processing_interrupted()
            preview = None
            if preview_image is not None:
                from comfy.cli_args import args

                size = None if ignore_size_limit else args.preview_size
                preview = ("JPEG", _pil_image(preview_image), size)
            registry = get_progress_state()
            if context is None or context.prompt_id == registry.prompt_id:
                registry.update_progress(node_id, value, max_value, preview)

    class NodeReplacement:
        """Classes that take the place of others."""

        async def register(self, node_replace: NodeReplace) -> None:
            """Let a class replace one that is no longer there."""
            from server import PromptServer

            PromptServer.instance.node_replace_manager.register(node_replace)

    class Caching:
        """Stores of results outside of the process."""

        async def register_provider(self, provider: external_cache.CacheProvider) -> None:
            """Let a store be asked for results, and told about new ones."""
            external_cache.register_cache_provider(provider)

        async def unregister_provider(self, provider: external_cache.CacheProvider) -> None:
            """Leave a store out from now on."""
            external_cache.unregister_cache_provider(provider)

    def __init__(self) -> None:
        # The classes are looked up on the object, so that the synchronous twin gets synchronous parts.
        self.execution = self.Execution()
        self.node_replacement = self.NodeReplacement()
        self.caching = self.Caching()


class Caching:
    """The types that stores of results are written with."""

    CacheProvider = external_cache.CacheProvider
    CacheContext = external_cache.CacheContext
    CacheValue = external_cache.CacheValue


def _pil_image(image: Any) -> Any:
    if not hasattr(image, "detach"):
        return image
    from comfy_api.latest.ui import to_pil

    pixels = image[0] if image.ndim == 4 else image
    return to_pil(pixels)
