"""Long latents in windows: layouts and weights by hand, and predictions against evaluating the whole."""

from __future__ import annotations

import itertools

import pytest
import torch

import comfy.sample
import comfy.samplers
import nodes
from comfy import context_windows as cw
from comfy.conds import CONDCrossAttn, CONDNoiseShape, CONDRegular
from comfy.controlnet import ControlBase
from comfy.sampling import window_schedules as ws
from comfy.sampling.cond_batch import calc_cond_batch
from tests.sampling.toy import patcher

SCHEDULES, FUSES = list(cw.CONTEXT_MAPPING), list(cw.FUSE_MAPPING)


def spans(windows):
    """First and last of each; all of them without gaps."""
    assert all(w == list(range(w[0], w[-1] + 1)) for w in windows)
    return [(w[0], w[-1]) for w in windows]


def layout(name, total, length, overlap=0, **more):
    return cw.CONTEXT_MAPPING[name](total, ws.WindowShape(length, overlap, **more))


def test_layouts_by_hand():
    assert spans(layout("standard_static", 10, 4, 2)) == [(0, 3), (2, 5), (4, 7), (6, 9)]
    assert spans(layout("standard_static", 9, 4, 2)) == [(0, 3), (2, 5), (4, 7), (5, 8)]
    assert spans(layout("standard_static", 8, 4, 2, step=3)) == [(0, 3), (2, 5), (4, 7)]
    assert spans(layout("batched", 10, 4, 2)) == [(0, 3), (4, 7), (8, 9)]
    assert spans(layout("standard_uniform", 10, 4, 2)) == [(0, 3), (2, 5), (4, 7), (6, 9)]
    assert layout("looped_uniform", 10, 4, 2, step=1) == [[5, 6, 7, 8], [7, 8, 9, 0], [9, 0, 1, 2], [1, 2, 3, 4]]
    assert spans(layout("standard_uniform", 10, 4, 2, step=1)) == [(5, 8), (6, 9), (0, 3), (1, 4)]
    assert layout("looped_uniform", 8, 4, 0, closed=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert layout("looped_uniform", 8, 4, 2, closed=True)[-1] == [6, 7, 0, 1]
    strided = layout("looped_uniform", 16, 4, 0, stride=2)
    assert [0, 2, 4, 6] in strided and [0, 1, 2, 3] in strided and max(map(len, strided)) == 4


def test_steps_move_by_reversed_bits():
    assert [ws.bit_reversed(n) for n in range(6)] == [0, 0.5, 0.25, 0.75, 0.125, 0.625]
    firsts = [layout("looped_uniform", 16, 4, 0, step=n)[0][0] for n in range(4)]
    assert firsts == [0, 8, 4, 12]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_cell_is_in_a_window_of_the_right_size(name):
    for total, length, overlap, stride, step in itertools.product((5, 8, 13), (2, 4), (0, 1, 3), (1, 3), range(5)):
        if overlap >= length:
            continue
        windows = layout(name, total, length, overlap, stride=stride, step=step)
        whole = ws.covering(windows, total, length)
        assert whole[: len(windows)] == windows
        assert {cell for w in whole for cell in w} == set(range(total))
        assert all(len(w) == length or (name == "batched" and w is whole[-1]) for w in whole)
        if stride == 1 and name != "looped_uniform":
            spans(whole)


def test_weights_by_hand():
    shape, window = ws.WindowShape(4, 2), [2, 3, 4, 5]
    made = {name: method(window, 10, shape) for name, method in cw.FUSE_MAPPING.items()}
    assert made["flat"] == [1, 1, 1, 1]
    assert made["pyramid"] == [1, 2, 2, 1] and ws.pyramid_weights([0, 1, 2], 10, shape) == [1, 2, 1]
    outer, inner = 1 - 1.5 / 1.505, 1 - 0.5 / 1.505
    assert made["relative"] == pytest.approx([max(outer, 0.01), inner, inner, max(outer, 0.01)])
    assert made["overlap-linear"] == pytest.approx([0, 1, 1, 0], abs=1e-5)
    assert ws.overlap_weights([0, 1, 2, 3], 10, shape) == pytest.approx([1, 1, 1, 0], abs=1e-5)
    assert ws.overlap_weights([6, 7, 8, 9], 10, ws.WindowShape(4, 3)) == pytest.approx([0, 0.5, 1, 1], abs=1e-5)
    # A window that goes on at the start counts its cells as it goes.
    assert ws.relative_weights([8, 9, 0, 1], 10, shape) == pytest.approx(made["relative"])


def test_unknown_names_are_told():
    with pytest.raises(cw.UnknownWindowChoice, match=r"'spiral'.*standard_static"):
        cw.get_matching_context_schedule("spiral")
    with pytest.raises(cw.UnknownWindowChoice, match=r"'glue'.*pyramid"):
        cw.get_matching_fuse_method("glue")
    assert cw.get_matching_fuse_method("flat").name == "flat"


# --- evaluating


def handler(schedule="standard_static", fuse="pyramid", length=4, overlap=2, **more):
    schedule, fuse = cw.get_matching_context_schedule(schedule), cw.get_matching_fuse_method(fuse)
    return cw.IndexListContextHandler(schedule, fuse, length, overlap, **more)


def evaluated(made, x, answer, conds=None, sigma=1.0, **options):
    """What `answer(latent, conds)` comes to, window by window."""

    def calc(model, conds, latent, timestep, model_options):
        return [answer(latent, entries, model_options["transformer_options"]["context_window"]) for entries in conds]

    timestep = torch.full((x.shape[0],), sigma)
    assert made.should_use_context(None, conds, x, timestep, {})
    return made.execute(calc, None, conds or [[{"model_conds": {}}]], x, timestep, {"transformer_options": options})


@pytest.mark.parametrize("schedule, fuse", itertools.product(SCHEDULES, FUSES))
def test_windows_that_agree_give_the_whole(schedule, fuse):
    x = torch.randn(1, 2, 9, 3, 3, generator=torch.Generator().manual_seed(0))
    made = handler(schedule, fuse, dim=2)
    (out,) = evaluated(made, x, lambda latent, *_: latent * 3, sample_sigmas=torch.tensor([1.0, 0.5, 0.0]))
    assert torch.allclose(out, x * 3, atol=1e-5)


def test_mixing_by_hand():
    """Each window answers with the number of its first frame; frames 2 and 3 are in two windows, which count 1 and 2 to
    2 and 1 there."""
    x = torch.zeros(1, 1, 6, 1, 1)
    made = handler(dim=2, causal_window_fix=False)
    (out,) = evaluated(made, x, lambda latent, _, w: torch.full_like(latent, float(w.index_list[0])))
    assert out.flatten().tolist() == pytest.approx([0, 0, 2 * 1 / 3, 2 * 2 / 3, 2, 2])


def test_frame_before_the_window():
    """Seen, but not predicted; the first window has none, and items of a batch have none."""
    x = torch.arange(6.0).reshape(1, 1, 6, 1, 1)
    seen = []

    def answer(latent, _, window):
        seen.append(latent.flatten().tolist())
        return latent

    (out,) = evaluated(handler(dim=2), x, answer)
    assert seen == [[0, 1, 2, 3], [1, 2, 3, 4, 5]] and torch.allclose(out, x)
    seen.clear()
    evaluated(handler(dim=0), x.reshape(6, 1, 1, 1), answer)
    assert seen == [[0, 1, 2, 3], [2, 3, 4, 5]]


def test_retained_cells():
    """Frame 0 stands first in every window: in the latent, in the conditioning, or in both. What is predicted for it
    there does not count for the frame whose place it has."""
    x, picture = torch.arange(6.0).reshape(1, 1, 6, 1, 1), torch.arange(10.0, 16.0).reshape(1, 1, 6, 1, 1)
    seen = []

    def answer(latent, entries, window):
        concat = entries[0]["model_conds"]["c_concat"].cond
        seen.append((latent.flatten().tolist(), concat.flatten().tolist()))
        return latent

    conds = [[{"model_conds": {"c_concat": CONDNoiseShape(picture)}}]]
    more = {"dim": 2, "causal_window_fix": False}
    evaluated(handler(cond_retain_index_list=[0], **more), x, answer, conds)
    assert seen[1] == ([2, 3, 4, 5], [10, 13, 14, 15])
    (out,) = evaluated(handler(latent_retain_index_list=[0], **more), x, answer, conds)
    assert seen[3] == ([0, 3, 4, 5], [12, 13, 14, 15])
    assert torch.allclose(out, x, atol=1e-4)  # frame 2 comes from the first window
    (out,) = evaluated(handler(latent_retain_index_list=[0], cond_retain_index_list=[0], dim=2), x, answer, conds)
    assert seen[5] == ([0, 2, 3, 4, 5], [10, 12, 13, 14, 15]) and torch.allclose(out, x)


def test_what_is_laid_out_like_the_latent_is_cut_with_it():
    x = torch.zeros(6, 4, 3, 3)
    per_item, mask = torch.arange(6.0).reshape(6, 1, 1), torch.arange(6.0).reshape(6, 1, 1).expand(6, 3, 3)
    entry = {
        "model_conds": {
            "c_crossattn": CONDCrossAttn(per_item),
            "y": CONDRegular(torch.zeros(1, 7)),
            "guidance": CONDRegular(torch.zeros(1)),
        },
        "mask": mask,
        "strength": 0.5,
    }
    seen = []
    evaluated(handler(dim=0), x, lambda latent, e, _: seen.append(e[0]) or latent, [[entry], None][:1])
    cut = seen[1]
    assert cut["model_conds"]["c_crossattn"].cond.flatten().tolist() == [2, 3, 4, 5]
    assert cut["mask"][:, 0, 0].tolist() == [2, 3, 4, 5] and cut["strength"] == 0.5
    assert cut["model_conds"]["y"] is entry["model_conds"]["y"]
    # Six words are no six frames.
    video = torch.zeros(1, 4, 6, 3, 3)
    words = {"model_conds": {"c_crossattn": CONDCrossAttn(torch.zeros(1, 9, 6))}}
    evaluated(handler(dim=2), video, lambda latent, e, _: seen.append(e[0]) or latent, [[words]])
    assert seen[-1]["model_conds"]["c_crossattn"] is words["model_conds"]["c_crossattn"]


def test_areas():
    x = torch.zeros(1, 4, 6, 3, 3)
    whole = {"model_conds": {}, "area": (6, 2, 2, 0, 1, 1)}
    seen = []
    evaluated(handler(dim=2), x, lambda latent, e, _: seen.append(e[0]["area"]) or latent, [[whole]])
    assert seen == [(4, 2, 2, 0, 1, 1), (5, 2, 2, 0, 1, 1)]
    with pytest.raises(cw.UnknownWindowChoice, match="dimension 2"):
        evaluated(handler(dim=2), x, lambda latent, *_: latent, [[{"model_conds": {}, "area": (3, 2, 2, 0, 1, 1)}]])


def test_conditionings_share_the_whole():
    x = torch.zeros(1, 1, 8, 1, 1)
    entries = [{"model_conds": {}, "name": name} for name in "abc"]
    seen = []

    def answer(latent, entries, window):
        seen.append("".join(e["name"] for e in entries))
        return latent

    made = handler("batched", length=2, dim=2, split_conds_to_windows=True)
    evaluated(made, x, answer, [entries])
    assert seen == ["a", "a", "b", "c"]  # middles at 1/16, 5/16, 9/16, 13/16
    seen.clear()
    evaluated(handler("batched", length=2, dim=2), x, answer, [entries])
    assert seen == ["abc"] * 4


def test_control_has_the_windows_pictures():
    control, before = ControlBase(), ControlBase()
    control.set_cond_hint(torch.arange(6.0).reshape(6, 1, 1, 1), extra_concat=[torch.zeros(1, 1, 1, 1)])
    before.set_cond_hint(torch.ones(1, 1, 1, 1))
    control.set_previous_controlnet(before)
    control.timestep_range = (5.0, 0.0)
    entry, seen = {"model_conds": {}, "control": control}, []
    made, x = handler(dim=0), torch.zeros(6, 1, 2, 2)
    for _ in range(2):
        evaluated(made, x, lambda latent, e, _: seen.append(e[0]["control"]) or latent, [[entry]])
    assert seen[1].cond_hint_original.flatten().tolist() == [2, 3, 4, 5] and seen[1].timestep_range == (5.0, 0.0)
    assert seen[1].previous_controlnet.cond_hint_original.shape[0] == 1 and seen[1].extra_concat_orig[0].shape[0] == 1
    assert seen[3] is seen[1] and control.cond_hint_original.shape[0] == 6
    made.begin()
    evaluated(made, x, lambda latent, e, _: seen.append(e[0]["control"]) or latent, [[entry]])
    assert seen[5] is not seen[1]


def test_step_is_found_among_the_sigmas():
    made, sigmas = handler(), torch.tensor([10.0, 5.0, 1.0, 0.0])
    steps = []
    for sigma in (10.0, 9.9999, 7.0, 5.0, 0.5, 0.0, 11.0):
        made.set_step(torch.full((2,), sigma), {"transformer_options": {"sample_sigmas": sigmas}})
        steps.append(made.shape().step)
    assert steps == [0, 0, 0, 1, 2, 2, 0]


# --- in a run


def node(model, **more):
    options = {
        "context_length": 2, "context_overlap": 1, "context_schedule": "standard_static", "context_stride": 1,
        "closed_loop": False, "fuse_method": "pyramid", "dim": 0, "freenoise": False, "cond_retain_index_list": "",
        "split_conds_to_windows": False, "latent_retain_index_list": "", "causal_window_fix": True,
    }  # fmt: skip
    return nodes.NODE_CLASS_MAPPINGS["ContextWindowsManual"].execute(model, **{**options, **more}).result[0]


def sampled(model, count=5, seed=3):
    generator = torch.Generator().manual_seed(1)
    latent, noise = torch.zeros(count, 4, 8, 8), torch.randn(count, 4, 8, 8, generator=generator)
    positive = [[torch.randn(1, 7, 8, generator=generator), {}]]
    negative = [[torch.randn(1, 7, 8, generator=generator), {}]]
    mask = torch.ones(count, 1, 8, 8)
    mask[:, :, :3] = 0
    return comfy.sample.sample(
        model, noise, 4, 5.0, "euler", "karras", positive, negative, latent, noise_mask=mask, seed=seed
    )


@pytest.mark.parametrize("schedule, fuse", [("standard_static", "pyramid"), ("looped_uniform", "relative")])
def test_a_batch_in_windows_is_the_batch(schedule, fuse):
    """Items of a batch do not see each other, so windows change nothing but how many are evaluated at once."""
    plain = patcher("eps")
    rows = []
    windowed = node(plain, context_schedule=schedule, fuse_method=fuse, closed_loop=schedule == "looped_uniform")

    def count(apply_model, args):
        rows.append(args["input"].shape[0])
        return apply_model(args["input"], args["timestep"], **args["c"])

    windowed.set_model_unet_function_wrapper(count)
    assert torch.allclose(sampled(windowed), sampled(plain), atol=1e-5)
    assert set(rows) == {4} and len(rows) >= 4 * 4
    assert cw.HANDLER not in plain.model_options


def test_memory_is_asked_for_a_window(monkeypatch):
    model, shapes = patcher("eps"), []
    monkeypatch.setattr(
        model.model, "memory_required", lambda input_shape, **more: shapes.append(list(input_shape)) or 1.0
    )
    sampled(node(model))
    assert shapes[:2] == [[4, 4, 8, 8], [2, 4, 8, 8]]


def test_short_latents_are_left_alone():
    plain = patcher("eps")
    assert torch.equal(sampled(node(plain, context_length=5)), sampled(plain))


def test_freenoise():
    """By the paper: every later stretch is a shuffle of the stretch one window before."""
    noise = torch.arange(10.0).reshape(1, 1, 10, 1, 1)
    out = cw.apply_freenoise(noise, 2, 4, 2, seed=7).flatten().tolist()
    assert out[:4] == [0, 1, 2, 3] and sorted(out[4:6]) == [0, 1] and sorted(out[6:8]) == [2, 3]
    assert sorted(out[8:]) == sorted(out[4:6])
    assert cw.apply_freenoise(noise, 2, 4, 2, seed=7).flatten().tolist() == out
    assert noise.flatten().tolist() == list(range(10))
    odd = cw.apply_freenoise(noise[:, :, :7], 2, 4, 1, seed=7).flatten().tolist()
    assert odd[:4] == [0, 1, 2, 3] and sorted(odd[4:]) == [0, 1, 2]


def test_freenoise_in_a_run(monkeypatch):
    seeds = []
    original = cw.apply_freenoise
    monkeypatch.setattr(cw, "apply_freenoise", lambda noise, *a: seeds.append(a) or original(noise, *a))
    out = sampled(node(patcher("eps"), freenoise=True), seed=11)
    assert seeds == [(0, 2, 1, 11)]
    assert not torch.allclose(out, sampled(node(patcher("eps"))))


def test_indices_are_read():
    made = node(patcher("eps"), cond_retain_index_list="0, 3,5", latent_retain_index_list=" 1 ", context_overlap=9)
    made = made.model_options[cw.HANDLER]
    assert made.cond_retain_index_list == [0, 3, 5] and made.latent_retain_index_list == [1]
    assert made.context_overlap == 1
    with pytest.raises(ValueError, match="cond_retain_index_list: 'first'"):
        node(patcher("eps"), cond_retain_index_list="0, first")
    windowed = node(patcher("eps"), dim=4)
    with pytest.raises(cw.UnknownWindowChoice, match="dimension 4: the latent has 4"):
        sampled(windowed)


def test_windows_inside_windows_do_not_start_again():
    """A window with its extra frame is longer than a window."""
    model = patcher("eps").model
    handler_ = handler(length=2, overlap=1, dim=2)
    options = {cw.HANDLER: handler_, "transformer_options": {}}
    x, sigma = torch.randn(1, 4, 6, 8), torch.ones(1)
    entry = {"model_conds": {"c_crossattn": CONDCrossAttn(torch.randn(1, 7, 8))}}
    (out,) = calc_cond_batch(model, [[entry]], x, sigma, options)
    assert torch.allclose(out, calc_cond_batch(model, [[entry]], x, sigma, {})[0], atol=1e-5)
