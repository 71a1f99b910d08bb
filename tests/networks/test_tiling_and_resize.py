"""Tiling, resizing and the progress bar."""

import pytest
import torch

import comfy.interrupt
import comfy.utils


@pytest.mark.parametrize(("size", "tile", "overlap"), [((30, 50), 16, 4), ((16, 16), 16, 4), ((17, 9), 8, 2)])
def test_tiles_of_a_pointwise_function_give_the_whole(size, tile, overlap):
    x = torch.rand(2, 3, *size)
    whole = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
    calls = []

    def double(part):
        calls.append(part.shape)
        return torch.nn.functional.interpolate(part, scale_factor=2.0, mode="nearest")

    out = comfy.utils.tiled_scale(x, double, tile, tile, overlap, upscale_amount=2, out_channels=3)
    assert torch.allclose(out, whole, atol=1e-6)
    steps = comfy.utils.get_tiled_scale_steps(size[1], size[0], tile, tile, overlap)
    assert len(calls) == 2 * steps
    assert all(max(shape[2:]) <= tile for shape in calls)


def test_tiles_downwards_and_in_three_dimensions():
    x = torch.rand(1, 2, 8, 24, 40)

    def shrink(part):
        return torch.nn.functional.avg_pool3d(part, (1, 2, 2))

    out = comfy.utils.tiled_scale_multidim(
        x, shrink, (4, 16, 16), overlap=(1, 4, 4), upscale_amount=(1, 2, 2), out_channels=2, downscale=True
    )
    assert torch.allclose(out, shrink(x), atol=1e-6)


def test_overlap_as_large_as_a_tile_is_refused():
    with pytest.raises(ValueError, match="cannot overlap by 8"):
        comfy.utils.tiled_scale(torch.zeros(1, 1, 20, 20), lambda t: t, 8, 8, 8, upscale_amount=1, out_channels=1)


@pytest.mark.parametrize("method", ["nearest-exact", "bilinear", "area", "bicubic", "bislerp", "lanczos"])
@pytest.mark.parametrize("size", [(9, 12), (31, 20)])
def test_every_method_gives_the_size_and_keeps_a_constant(method, size):
    x = torch.full((2, 3, 16, 16), 51 / 255)
    out = comfy.utils.common_upscale(x, *size, method, "disabled")
    assert out.shape == (2, 3, size[1], size[0])
    assert torch.allclose(out, torch.tensor(51 / 255), atol=1e-6)


def test_centre_crop_keeps_the_middle():
    x = torch.zeros(1, 1, 4, 12)
    x[..., 4:8] = 1.0
    assert comfy.utils.common_upscale(x, 4, 4, "nearest-exact", "center").min() == 1.0


def test_frames_are_resized_one_by_one():
    x = torch.rand(2, 3, 5, 8, 8)
    out = comfy.utils.common_upscale(x, 4, 6, "bilinear", "disabled")
    assert out.shape == (2, 3, 5, 6, 4)
    assert torch.equal(out[1, :, 3], comfy.utils.common_upscale(x[1:, :, 3], 4, 6, "bilinear", "disabled")[0])


def test_bislerp_turns_instead_of_shortening():
    """Half way between two orthogonal unit vectors lies a unit vector."""
    x = torch.zeros(1, 2, 1, 2)
    x[0, 0, 0, 0] = x[0, 1, 0, 1] = 1.0
    out = comfy.utils.common_upscale(x, 3, 1, "bislerp", "disabled")
    assert out.norm(dim=1).flatten().tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-5)
    assert comfy.utils.bislerp(torch.zeros(1, 4, 3, 3), 5, 5).abs().max() == 0


def test_lanczos_is_eight_bit():
    out = comfy.utils.lanczos(torch.rand(1, 3, 8, 8) * 1.5, 8, 8) * 255
    assert torch.allclose(out, out.round(), atol=1e-4)
    assert out.max() <= 255


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("comfy.utils.time.monotonic", lambda: self.now)


@pytest.fixture
def sent(monkeypatch):
    calls = []
    monkeypatch.setattr(
        comfy.utils, "PROGRESS_BAR_HOOK", lambda value, total, preview, node_id=None: calls.append((value, total))
    )
    return calls


def test_progress_is_throttled(sent, monkeypatch):
    clock = Clock(monkeypatch)
    bar = comfy.utils.ProgressBar(1000)
    for value in range(1, 1001):
        clock.now += 0.01
        bar.update(1)
        assert bar.current == value
    assert sent[0] == (1, 1000)
    assert sent[-1] == (1000, 1000)
    # One per tenth of a second: every tenth or eleventh of the updates, as rounding falls.
    assert 90 <= len(sent) <= 103


def test_small_steps_wait_for_half_a_per_cent(sent, monkeypatch):
    clock = Clock(monkeypatch)
    bar = comfy.utils.ProgressBar(1000)
    for _ in range(12):
        clock.now += 10
        bar.update(1)
    assert [value for value, _ in sent] == [1, 6, 11]


def test_previews_and_overshoot_are_sent_at_once(sent):
    bar = comfy.utils.ProgressBar(10)
    bar.update_absolute(1)
    bar.update_absolute(2)
    bar.update_absolute(3, preview=("JPEG", object(), None))
    bar.update_absolute(99)
    bar.update_absolute(5, total=20)
    assert sent == [(1, 10), (3, 10), (10, 10)]
    assert bar.total == 20


def test_interruption_is_noticed_when_something_is_sent(sent):
    bar = comfy.utils.ProgressBar(10)
    comfy.interrupt.interrupt_current_processing(True)
    try:
        with pytest.raises(comfy.interrupt.InterruptProcessingException):
            bar.update(1)
    finally:
        comfy.interrupt.interrupt_current_processing(False)


def test_tiles_can_be_written_to():
    """VAE decoding adds up several tilings in place, also where the run is not in inference mode (`--strict-cache`)."""
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, requires_grad=True)
        result = comfy.utils.tiled_scale(torch.ones(1, 3, 8, 8), lambda x: x * weight, 8, 8, 2, upscale_amount=1)
        assert not result.requires_grad
        assert torch.equal(result.add_(1), torch.full((1, 3, 8, 8), 2.0))
