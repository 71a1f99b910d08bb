"""Merging of conditioning within one step against conditioning.* (goldens, section 6)."""

from __future__ import annotations

import pytest
import torch
import toy
from conditioning_cases import CASES, RECORDED, area, cfg_guider, entry, guided_step, masked

TOLERANCE = 2e-5

M128, M16, M2X128 = (RECORDED[f"mask/{n}"] for n in ("m128", "m16_2d", "m2x128"))
NEG = [entry("NEG")]
A, B, C = entry("A"), entry("B"), entry("C")
STEPS: dict[str, tuple[list, list]] = {
    "single": ([A], NEG),
    "single_cfg1": ([A], NEG),
    "combine": ([A, B], NEG),
    "combine3": ([A, B, C], NEG),
    "combine_diff_len": ([A, entry("LONG")], NEG),
    "neg_combine": ([A], [entry("NEG"), B]),
    "long_pos": ([entry("LONG")], NEG),
    "short_pos": ([entry("SHORT")], NEG),
    "area_only": ([area("A", 8, 8, 4, 4)], NEG),
    "area_corner": ([area("A", 8, 8, 0, 0), B], NEG),
    "area_plus_full": ([area("A", 12, 8, 2, 4), B], NEG),
    "areas_overlap": ([area("A", 10, 10, 0, 0), area("B", 10, 10, 6, 6, strength=0.5), C], NEG),
    "area_overhang": ([area("A", 8, 16, 12, 8), B], NEG),
    "area_strength0": ([area("A", 8, 8, 4, 4, strength=0.0), B], NEG),
    "area_strength10": ([area("A", 8, 8, 4, 4, strength=10.0), B], NEG),
    "area_pct": ([area("A", "percentage", 0.4, 0.5, 0.35, 0.3), B], NEG),
    "area_same_neg": ([area("A", 8, 8, 4, 4), B], [area("NEG", 8, 8, 4, 4), C]),
    "area_video": ([area("A", 8, 8, 4, 4), B], NEG),
    "strength_only": ([entry("A", strength=0.3), B], NEG),
    "mask_default": ([masked("A", M128), B], NEG),
    "mask_bounds": ([masked("A", M128, bounds=True), B], NEG),
    "mask_strength0.4": ([masked("A", M128, 0.4), B], NEG),
    "mask_only": ([masked("A", M128)], NEG),
    "mask_latent_size_2d": ([masked("A", M16), B], NEG),
    "mask_empty_bounds": ([masked("A", torch.zeros(1, 128, 128), bounds=True), B], NEG),
    "mask_two_overlap": ([masked("A", M128), masked("B", 1 - M128), masked("C", M16, 0.5, True)], NEG),
    "mask_and_area": ([masked("A", M128, 0.8, area=(12, 12, 2, 2), strength=0.6), B], NEG),
    "mask_b2": ([masked("A", M128), B], NEG),
    "mask_batch2_b2": ([masked("A", M2X128), B], NEG),
    "default_cond_area": ([area("A", 8, 8, 4, 4), entry("B", default=True)], NEG),
    "default_cond_mask": ([masked("A", M128), entry("B", default=True)], NEG),
    "batch2": ([A], NEG),
    "range_none_active": ([entry("A", start_percent=0.0, end_percent=0.1)], NEG),
}
_HALVES = [entry("A", start_percent=0.0, end_percent=0.5), entry("B", start_percent=0.5, end_percent=1.0)]
for _name in CASES:
    if _name.startswith("step/range_") and "/at" in _name:
        STEPS[_name.removeprefix("step/")] = (_HALVES, NEG)


@pytest.mark.parametrize("name", STEPS)
def test_merge(name):
    facts = CASES[f"step/{name}"]
    x = RECORDED[f"input/{facts['x']}"]
    before = x.clone()
    kind = "flow" if "range_flow" in name else "eps"
    guider = cfg_guider(kind, facts["cfg"], *STEPS[name])
    guided, parts, calls = guided_step(guider, x, facts["sigma"])
    for part, got in {"denoised": guided, **parts}.items():
        assert toy.difference(got, RECORDED[f"step/{name}/{part}"]) <= TOLERANCE, part
    assert [order for _, _, order in calls] == facts["cond_or_uncond"]
    assert sum(rows for _, rows, _ in calls) == facts["rows"]
    assert torch.equal(x, before)


def test_every_step_is_checked():
    recorded = {n.removeprefix("step/") for n in CASES if n.startswith("step/") and not n.startswith("step/guid/")}
    assert recorded == set(STEPS)
