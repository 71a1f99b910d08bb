"""Nodes that give images the colours of others, and curves."""

from __future__ import annotations

import pytest
import torch

import nodes
from nodes.color_transfer import from_lab, to_lab

METHODS = ("reinhard_lab", "mkl_lab", "histogram")
NODES = nodes.NODE_CLASS_MAPPINGS


def pictures(count: int, low: float, high: float, seed: int = 0, size: int = 24) -> torch.Tensor:
    noise = torch.rand(count, size, size, 3, generator=torch.Generator().manual_seed(seed))
    tint = torch.tensor([1.0, 0.8, 0.6])
    return (low + (high - low) * noise) * tint


def transfer(target, reference, method, stats="per_frame", strength=1.0, **more) -> torch.Tensor:
    options = {"source_stats": stats, **more}
    return NODES["ColorTransfer"].execute(target, reference, method, options, strength).result[0]


def test_lab_of_known_colours():
    """Values of CIE 1976 for the corners of sRGB, as tables have them."""
    rgb = torch.tensor([[1.0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    expected = [[100, 0, 0], [0, 0, 0], [53.24, 80.09, 67.20], [87.73, -86.18, 83.18], [32.30, 79.19, -107.86]]
    assert torch.allclose(to_lab(rgb), torch.tensor(expected, dtype=torch.float32), atol=0.02)
    colours = torch.rand(500, 3, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(from_lab(to_lab(colours)), colours, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_an_image_keeps_its_own_colours(method):
    image = pictures(1, 0.2, 0.7)
    assert torch.allclose(transfer(image, image, method), image, atol=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_the_colours_are_those_of_the_reference(method):
    out = to_lab(transfer(pictures(1, 0.1, 0.5), pictures(1, 0.4, 0.7, seed=1), method)).reshape(-1, 3)
    wanted = to_lab(pictures(1, 0.4, 0.7, seed=1)).reshape(-1, 3)
    assert torch.allclose(out.mean(dim=0), wanted.mean(dim=0), atol=1.0)
    assert torch.allclose(out.std(dim=0), wanted.std(dim=0), atol=1.0)
    if method == "mkl_lab":
        assert torch.allclose(torch.cov(out.mT), torch.cov(wanted.mT), atol=2.0)


def test_histograms_match():
    target, reference = pictures(1, 0.0, 1.0), pictures(1, 0.4, 0.6, seed=1)
    out = transfer(target, reference, "histogram")
    for channel in range(3):
        got, wanted = (part[..., channel].flatten().sort().values for part in (out, reference))
        assert torch.allclose(got, wanted, atol=5e-3)


@pytest.mark.parametrize("method", METHODS)
def test_strength(method):
    target, reference = pictures(1, 0.3, 0.5), pictures(1, 0.35, 0.55, seed=1)
    whole = transfer(target, reference, method)
    assert torch.equal(transfer(target, reference, method, strength=0.0), target)
    half = transfer(target, reference, method, strength=0.5)
    assert torch.allclose(half, (target + whole) / 2, atol=1e-5)
    assert transfer(target, reference, method, strength=10.0).aminmax() <= (torch.tensor(1.0),) * 2


@pytest.mark.parametrize("method", METHODS)
def test_what_is_measured(method):
    target = torch.cat([pictures(1, 0.1, 0.3), pictures(1, 0.5, 0.8, seed=2)])
    reference = pictures(1, 0.3, 0.6, seed=1)
    frames = transfer(target, reference, method)
    assert torch.allclose(frames[:1], transfer(target[:1], reference, method), atol=1e-5)
    assert torch.allclose(frames[1:], transfer(target[1:], reference, method), atol=1e-5)
    # Measured together, the brighter one stays brighter.
    together = transfer(target, reference, method, "uniform")
    assert together[1].mean() > together[0].mean() + 0.05
    assert abs(frames[1].mean() - frames[0].mean()) < 0.02
    by_second = transfer(target, reference, method, "target_frame", target_index=1)
    assert torch.allclose(by_second[1], frames[1], atol=1e-5)
    with pytest.raises(ValueError, match="target_index is 2, and there are 2 images"):
        transfer(target, reference, method, "target_frame", target_index=2)


def test_each_image_has_its_reference_and_the_last_serves_the_rest():
    target, references = pictures(3, 0.2, 0.4), torch.cat([pictures(1, 0.1, 0.2), pictures(1, 0.6, 0.9)])
    out = transfer(target, references, "reinhard_lab")
    assert torch.allclose(out[0], transfer(target[:1], references[:1], "reinhard_lab")[0], atol=1e-5)
    for i in (1, 2):
        assert torch.allclose(out[i], transfer(target[i : i + 1], references[1:], "reinhard_lab")[0], atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_plain_and_grey_images(method):
    """Where a channel does not vary there is nothing to stretch: no noise, no NaN."""
    reference = pictures(1, 0.3, 0.6, seed=1)
    plain = transfer(torch.full((1, 8, 8, 3), 0.5), reference, method)
    assert plain.isfinite().all() and plain.std(dim=(1, 2)).max() < 1e-3
    grey = torch.linspace(0.2, 0.8, 64).reshape(1, 8, 8, 1)
    out = transfer(grey.expand(-1, -1, -1, 3), reference, method)
    assert out.isfinite().all() and transfer(reference, torch.full((1, 8, 8, 3), 0.5), method).isfinite().all()
    assert (out.diff(dim=2) > -1e-3).all()  # brighter stays brighter
    assert torch.equal(transfer(grey, reference, method), out)


def test_alpha_is_no_colour():
    target = torch.cat([pictures(1, 0.2, 0.4), torch.full((1, 24, 24, 1), 0.25)], dim=-1)
    out = transfer(target, pictures(1, 0.5, 0.7, seed=1), "reinhard_lab")
    assert out.shape == target.shape and torch.equal(out[..., 3:], target[..., 3:])


def test_a_curve_goes_through():
    curve = {"points": [[0.0, 0.0], [0.4, 0.7], [1.0, 1.0]], "interpolation": "linear"}
    out = NODES["CurveEditor"].execute(curve)
    assert out.result == (curve,) and not out.ui
    out = NODES["CurveEditor"].execute(curve, [3, 2, 1])
    assert out.result == (curve,) and out.ui == {"histogram": [3, 2, 1]}
