"""What reading ahead is worth with two checkpoints that alternate.

Two checkpoints are written, and dropped from the page cache before each round, as if the models of other prompts had
pushed them out. Each round is one prompt: it loads its checkpoint and touches every weight, then "samples" (waits).
With look-ahead the other checkpoint is read meanwhile.

    python bench/lookahead.py [--dir FOLDER] [--mb 700] [--sampling 3]

The goal: with look-ahead loading takes less than half the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

ROUNDS = 6
GOAL = 0.5


def write(path: Path, megabytes: int) -> None:
    """A safetensors file of that size."""
    import torch
    from safetensors.torch import save_file

    count = max(1, megabytes // 50)
    save_file({f"layer.{i}": torch.randn(25 * 1024, 1024).half() for i in range(count)}, path)


def load(path: str) -> float:
    """Seconds to open a file and to touch all of it."""
    import comfy.utils

    start = time.perf_counter()
    sd = comfy.utils.load_torch_file(path)
    for tensor in sd.values():
        tensor.view(-1)[:: 4096 // tensor.element_size()].sum()  # one value of each page
    return time.perf_counter() - start


def measure(paths: list[str], sampling: float, ahead: bool) -> list[float]:
    """Load times of prompts that take turns."""
    from comfy import page_cache

    seconds = []
    for number in range(ROUNDS):
        current, following = paths[number % 2], paths[(number + 1) % 2]
        seconds.append(load(current))
        page_cache.forget(following)
        reader = threading.Thread(target=page_cache.read_ahead, args=(following,))
        if ahead:
            reader.start()
        time.sleep(sampling)
        if ahead:
            reader.join()
        page_cache.forget(current)
    return seconds[1:]  # nobody could read ahead for the first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=None, help="where to put the checkpoints (default: a temporary folder)")
    parser.add_argument("--mb", type=int, default=700, help="size of each checkpoint")
    parser.add_argument("--sampling", type=float, default=3.0, help="seconds between two loads")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        paths = [os.path.join(folder, f"{name}.safetensors") for name in "ab"]
        for path in paths:
            write(Path(path), given.mb)
        without = measure(paths, given.sampling, ahead=False)
        with_it = measure(paths, given.sampling, ahead=True)
    size = given.mb / 1024
    medians = [statistics.median(times) for times in (without, with_it)]
    for name, median in zip(("without look-ahead", "with look-ahead"), medians):
        print(f"{name:20} {median:6.2f} s for {size:.2f} GB ({size / median:5.2f} GB/s)")
    ratio = medians[1] / medians[0]
    print(f"ratio {ratio:.2f} (goal: below {GOAL})")
    return 0 if ratio < GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
