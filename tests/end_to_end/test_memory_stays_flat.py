"""A server that runs for days: what a prompt used is given back."""

from __future__ import annotations

import numpy as np
import psutil
from PIL import Image

SIZE = 256  # one such picture in memory, let alone one for each prompt, is seen
WARM_UP, MEASURED = 40, 80  # prompts


def test_prompts_with_pictures_that_differ_leave_nothing_behind(server):
    process = psutil.Process(server.process.pid)
    folder = server.folder / "input"
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0)

    def run(number: int) -> None:
        name = f"flat{number}.png"
        picture = Image.fromarray(pixels.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8))
        picture.save(folder / name, compress_level=0)
        scale = {"image": ["1", 0], "width": SIZE, "height": SIZE + 8, "upscale_method": "bicubic", "crop": "disabled"}
        graph = {
            "1": {"class_type": "LoadImage", "inputs": {"image": name}},
            "2": {"class_type": "ImageScale", "inputs": scale},
            "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": f"flat{number}"}},
        }
        assert server.run(graph)["status"]["status_str"] == "success"

    for number in range(WARM_UP):
        run(number)
    before = process.memory_info().rss
    for number in range(WARM_UP, WARM_UP + MEASURED):
        run(number)
    grown = process.memory_info().rss - before
    assert grown < 0.05 * before, f"{grown / 1e6:.0f} MB more after {MEASURED} prompts; {before / 1e6:.0f} MB before"
