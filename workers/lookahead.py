"""While a prompt runs, the weight files of the next one are read into the page cache (`--prefetch`).

Which files these are is told by the inputs of its nodes: loaders name them `ckpt_name`, `lora_name` and so on, those of
packs too. Nothing is read when memory is short, nor a file whose model is in memory already.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import folder_paths
from comfy import page_cache
from comfy.cli_args import args
from comfy_execution.prompt_queue import PromptQueue, QueueEntry
from workers.repeating import Repeating

log = logging.getLogger(__name__)

# Input names of loaders, without a number at their end, and the folders their values are files of.
FOLDERS = {
    "ckpt_name": ("checkpoints",),
    "unet_name": ("diffusion_models",),
    "clip_name": ("text_encoders", "clip_vision"),
    "vae_name": ("vae",),
    "lora_name": ("loras",),
    "control_net_name": ("controlnet",),
    "style_model_name": ("style_models",),
    "gligen_name": ("gligen",),
    "model_name": ("upscale_models", "diffusion_models"),
    "name": ("model_patches",),
}
_LOOK_SECONDS = 0.5  # between two looks for a prompt that came while another runs


def files_of(prompt: Mapping[str, Any]) -> Iterator[str]:
    """Paths of the weight files that a prompt's loaders name, each once, in the order of the nodes."""
    seen: set[str] = set()
    for node in prompt.values():
        inputs = node.get("inputs") if isinstance(node, Mapping) else None
        for name, value in (inputs or {}).items():
            folders = FOLDERS.get(name.rstrip("0123456789").removesuffix("_"), ())
            for folder in folders if isinstance(value, str) else ():
                path = folder_paths.get_full_path(folder, value)
                if path is not None and path not in seen:
                    seen.add(path)
                    yield path


def wanted_by_default() -> bool:
    """Whether to look ahead: as `--prefetch` says; else where a GPU runs the models and the disk would be idle."""
    if args.prefetch is not None:
        return args.prefetch
    management = sys.modules.get("comfy.model_management")
    return management is not None and management.is_device_cuda(management.get_torch_device())


def _in_memory(path: str) -> bool:
    ledger = sys.modules.get("comfy.ledger")
    return ledger is not None and path in ledger.files_in_memory()


class Lookahead(Repeating):
    """Reads ahead for one queue, on a thread of its own.

    Args:
        wanted: whether to do anything; asked before each file.
        read: brings a file into the page cache; told how to know that it should stop.
    """

    def __init__(
        self,
        queue: PromptQueue,
        wanted: Callable[[], bool] = wanted_by_default,
        read: Callable[[str, Callable[[], bool]], int] = page_cache.read_ahead,
    ) -> None:
        super().__init__("lookahead", _LOOK_SECONDS, self.look)
        self._queue = queue
        self._wanted = wanted
        self._read = read
        self._done_for: QueueEntry | None = None
        self.bytes_read = 0

    def look(self) -> None:
        """Read for the prompt that is next, if another one runs and that has not been done."""
        entry = self._queue.next_entry() if self._queue.running_ids() else None
        if entry is None or entry is self._done_for or not self._wanted():
            return
        self._done_for = entry
        for path in files_of(entry[2]):
            if self._stopped.is_set() or self._queue.next_entry() is not entry:
                return  # it runs now, and reads for itself
            if not _in_memory(path):
                count = self._read(path, lambda: self._stopped.is_set() or self._queue.next_entry() is not entry)
                self.bytes_read += count
                log.debug("%d MB of %s were read for prompt %s", count >> 20, path, entry.prompt_id)
