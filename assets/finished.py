"""Making assets of the files that prompts save, as each prompt ends (with `--enable-assets`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import folder_paths
from assets.store import AssetStore

log = logging.getLogger(__name__)


class FinishedFiles:
    """Registers saved files with a store, on a thread of its own: reading them for their hash takes a while."""

    def __init__(self, store: AssetStore):
        self._store = store
        self._thread = ThreadPoolExecutor(1, "finished-files")

    def prompt_ended(self, prompt_id: str, outputs: Mapping[str, Any]) -> Future[None]:
        """Make assets of the new files in the output folder that a prompt's `outputs` name. Returns at once."""
        return self._thread.submit(self._add, prompt_id, list(dict.fromkeys(saved_files(outputs))))

    def _add(self, prompt_id: str, paths: list[str]) -> None:
        for path in paths:
            try:
                if not self._store.knows_path(path):
                    self._store.add_file(path, tags=["output"], job_id=prompt_id)
            except FileNotFoundError:
                log.debug("%s is gone before it became an asset", path)
            except Exception:
                log.warning("%s does not become an asset", path, exc_info=True)

    def close(self) -> None:
        """End once what is in progress is done; what waits is left to the next scan."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def saved_files(outputs: Mapping[str, Any]) -> Iterator[str]:
    """Full paths of the files of the output folder that outputs name. What leads elsewhere is left out."""
    folder = folder_paths.get_output_directory()
    for ui in outputs.values():
        for items in ui.values() if isinstance(ui, Mapping) else ():
            for item in items if isinstance(items, list | tuple) else ():
                if not isinstance(item, Mapping) or item.get("type") != "output":
                    continue
                try:
                    path = folder_paths.safe_join(folder, item.get("subfolder") or "", item["filename"])
                except (KeyError, TypeError, ValueError):
                    continue
                if os.path.isfile(path) and folder_paths.stays_inside(path, folder):
                    yield path
