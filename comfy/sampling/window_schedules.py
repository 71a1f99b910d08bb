"""Which windows of a long latent are evaluated in a step, and how their predictions are mixed.

Sources: AnimateDiff's command line (windows that move from step to step by bit-reversed fractions), AnimateDiff-Evolved
(Apache-2.0; standard and static windows, pyramid weights), both for videos longer than a model was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

# Weight that keeps a quotient finite and counts for nothing beside any other.
TINY_WEIGHT = 1e-6


@dataclass(frozen=True)
class WindowShape:
    """length: cells of a window; overlap: shared by neighbours; stride: the largest distance of cells, 2^(stride - 1);
    closed: the end leads on to the start; step: number of the present step."""

    length: int
    overlap: int = 0
    stride: int = 1
    closed: bool = False
    step: int = 0


def bit_reversed(number: int) -> float:
    """The 64 bits of `number` behind the point, in reverse: 0, 1/2, 1/4, 3/4, 1/8, ..."""
    return int(f"{number:064b}"[::-1], 2) / 2**64


def static_windows(total: int, shape: WindowShape) -> list[list[int]]:
    """The same in every step; the last is moved back to fit."""
    delta = max(shape.length - shape.overlap, 1)
    starts = list(range(0, max(total - shape.length, 0), delta))
    return [list(range(s, s + shape.length)) for s in (*starts, total - shape.length)]


def batched_windows(total: int, shape: WindowShape) -> list[list[int]]:
    """Side by side without overlap; the last may be shorter."""
    return [list(range(s, min(s + shape.length, total))) for s in range(0, total, shape.length)]


def looped_windows(total: int, shape: WindowShape) -> list[list[int]]:
    """Shifted from step to step, going on at the start where they run over the end. With a stride there are also wider
    windows of every second cell, every fourth, and so on."""
    windows = []
    for width in _step_widths(total, shape):
        moved = bit_reversed(shape.step)
        shift = round(total * moved)
        first = int(moved * width) + shift
        last = total + shift - (0 if shape.closed else shape.overlap)
        for start in range(first, last, max(shape.length * width - shape.overlap, 1)):
            windows.append([cell % total for cell in range(start, start + shape.length * width, width)])
    return windows


def uniform_windows(total: int, shape: WindowShape) -> list[list[int]]:
    """As `looped_windows`, but none runs over the end: one that would is moved back, and if the next one lacks the cell
    it had gone on with, a window is put there."""
    pending = looped_windows(total, replace(shape, closed=False))
    windows: list[list[int]] = []
    while pending:
        window = pending.pop(0)
        after_end = next((b for a, b in pairwise(window) if b < a), None)
        if after_end is not None:
            distance = (window[1] - window[0]) % total
            if distance * (len(window) - 1) >= total:
                continue  # too wide to be moved anywhere
            distances = [distance * i for i in range(len(window))]
            window = [total - 1 - distances[-1] + d for d in distances]
            following = pending[0] if pending else (windows or [window])[0]
            if after_end not in following:
                pending.insert(0, list(range(after_end, after_end + shape.length)))
        if window not in windows:
            windows.append(window)
    return windows


def covering(windows: list[list[int]], total: int, length: int) -> list[list[int]]:
    """`windows` and, for cells that are in none (strides may leave some out), more of them."""
    windows = list(windows)
    present = {cell for window in windows for cell in window}
    while len(present) < total:
        missing = next(cell for cell in range(total) if cell not in present)
        start = min(missing, total - length)
        windows.append(list(range(start, start + length)))
        present.update(windows[-1])
    return windows


def _step_widths(total: int, shape: WindowShape) -> list[int]:
    most = math.ceil(math.log2(total / shape.length)) + 1 if total > shape.length else 1
    return [2**i for i in range(min(shape.stride, most))]


# --- weights of a window's cells


def flat_weights(window: list[int], total: int, shape: WindowShape) -> list[float]:
    """All alike."""
    return [1.0] * len(window)


def pyramid_weights(window: list[int], total: int, shape: WindowShape) -> list[float]:
    """1, 2, 3, ... up to the middle and down again."""
    return [float(min(i + 1, len(window) - i)) for i in range(len(window))]


def relative_weights(window: list[int], total: int, shape: WindowShape) -> list[float]:
    """Falling from 1 in the middle of the window to almost 0 at its ends, by the distance in the whole."""
    distances = [(cell - window[0]) % total for cell in window]
    middle, reach = distances[-1] / 2, (distances[-1] + 1e-2) / 2
    return [max(1e-2, 1.0 - abs(distance - middle) / reach) for distance in distances]


def overlap_weights(window: list[int], total: int, shape: WindowShape) -> list[float]:
    """1, but rising over the overlap at the start and falling over that at the end, unless the whole begins or ends
    there."""
    weights = [1.0] * len(window)
    overlap = min(shape.overlap, len(window))
    ramp = [i / (overlap - 1) if overlap > 1 else 1.0 for i in range(overlap)]
    for i, share in enumerate(ramp):
        share = max(share, TINY_WEIGHT)
        if min(window) > 0:
            weights[i] = share
        if max(window) < total - 1:
            weights[-1 - i] = min(weights[-1 - i], share)
    return weights


Windows = Callable[[int, WindowShape], list[list[int]]]
Weights = Callable[[list[int], int, WindowShape], list[float]]
