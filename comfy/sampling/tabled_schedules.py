"""Schedules that were searched for, not derived: tables of noise levels for some step counts, interpolated for others.

Sources: Sabour et al. 2024, arXiv:2404.14507 (Align Your Steps); Pei et al. 2025, arXiv:2503.21774 (OptimalSteps);
Chen et al. 2024, arXiv:2405.11326 (GITS, its table in `gits_levels.json`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# For SD1 and SDXL the published time steps' levels in the models' own table.
ALIGNED = {
    "SD1": (
        "14.6146412 6.4745760 3.8636746 2.6946151 1.8841921 1.3943805 0.9642584 0.6523686 0.3977456 0.1515233 0.0291672"
    ),
    "SDXL": (
        "14.6146412 6.3184485 3.7681789 2.1811481 1.3405244 0.8620721 0.5550693 0.3798541 0.2332364 0.1114188 0.0291672"
    ),
    "SVD": "700 54.5 15.886 7.977 4.248 1.789 0.981 0.403 0.173 0.034 0.002",
}
OPTIMAL = {
    "FLUX": "0.9968 0.9886 0.9819 0.975 0.966 0.9471 0.9158 0.8287 0.5512 0.2808 0.001",
    "Wan": (
        "1 0.997 0.995 0.993 0.991 0.989 0.987 0.985 0.98 0.975 0.973 0.968 0.96 0.946 0.927 0.902 0.864 0.776 0.539"
        " 0.208 0.001"
    ),
    "Chroma": (
        "0.992 0.99 0.988 0.985 0.982 0.978 0.973 0.968 0.961 0.953 0.943 0.931 0.917 0.9 0.881 0.858 0.832 0.802 0.769"
        " 0.731 0.69 0.646 0.599 0.55 0.501 0.451 0.402 0.355 0.311 0.27 0.232 0.199 0.169 0.143 0.12 0.101 0.084 0.07"
        " 0.058 0.048 0.001"
    ),
}
# Step counts of GITS that have a row of their own.
GITS_STEPS = range(2, 21)


def aligned_schedule(model_type: str, steps: int, denoise: float = 1.0) -> Tensor:
    """Align Your Steps for "SD1", "SDXL" or "SVD"."""
    return _fitted(_levels(ALIGNED[model_type]), steps, denoise)


def optimal_schedule(model_type: str, steps: int, denoise: float = 1.0) -> Tensor:
    """OptimalSteps for "FLUX", "Wan" or "Chroma"."""
    return _fitted(_levels(OPTIMAL[model_type]), steps, denoise)


def gits_schedule(coefficient: float, steps: int, denoise: float = 1.0) -> Tensor:
    """GITS for Stable Diffusion 1; `coefficient` 0.8 ... 1.5 in steps of 0.05, the nearest is taken."""
    table = _gits_table()
    rows = table["rows"][f"{min(max(round(coefficient * 20) / 20, 0.8), 1.5):.2f}"]
    row = rows[min(steps, GITS_STEPS[-1]) - GITS_STEPS[0]]
    return _fitted([*(table["levels"][place] for place in row), table["last"]], steps, denoise)


@cache
def _gits_table() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "gits_levels.json").read_text(encoding="utf-8"))


def _levels(text: str) -> list[float]:
    return [float(number) for number in text.split()]


def _fitted(levels: Sequence[float], steps: int, denoise: float) -> Tensor:
    """The last round(steps * denoise) steps of a table brought to `steps` steps, ending in 0; empty for denoise 0."""
    if denoise <= 0.0:
        return torch.empty(0)
    kept = round(steps * denoise) if denoise < 1.0 else steps
    if steps + 1 != len(levels):
        levels = log_interpolated(levels, steps + 1)
    sigmas = torch.tensor(levels[-(kept + 1) :], dtype=torch.float32)
    sigmas[-1] = 0
    return sigmas


def log_interpolated(levels: Sequence[float], count: int) -> list[float]:
    """`count` noise levels on straight lines through the logarithms of the given ones."""
    logarithms = np.log(levels[::-1])
    places = np.linspace(0, 1, count)
    return np.exp(np.interp(places, np.linspace(0, 1, len(levels)), logarithms))[::-1].tolist()
