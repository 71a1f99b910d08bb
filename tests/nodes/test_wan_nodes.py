"""Wan's nodes against results recorded from the reference with a stand-in for the autoencoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import nodes
from comfy.latent_formats import Wan21
from tests.nodes.golden_format import Goldens, compare
from tests.nodes.runner import GraphRunner, NodeFailed
from tests.nodes.stand_ins import Plain, StandInVAE
from tests.nodes.test_recorded import built_in_parent, error_name, plain

STAND_INS = {"$vae": lambda values: StandInVAE(**values), "$clip_vision_output": Plain}
GOLDENS = Goldens(str(Path(__file__).parents[1] / "data" / "nodes_wan"), STAND_INS)


@pytest.mark.parametrize("case", GOLDENS.cases, ids=lambda case: case["id"])
def test_recorded_case(case):
    prompt, links = GOLDENS.prompt(case)
    runner = GraphRunner(prompt, GOLDENS.source_values(case))
    error, slots = None, None
    with torch.inference_mode():
        try:
            slots = [runner.slot(link) for link in links]
        except NodeFailed as failure:
            error = failure.error
    problems = compare(case, GOLDENS, slots, error=built_in_parent(error) or error_name(error), plain=plain)
    assert not problems, (problems, error)


def test_the_recordings_are_about_registered_nodes():
    assert {case["node"] for case in GOLDENS.cases} <= set(nodes.NODE_CLASS_MAPPINGS)


# --- what the recordings do not tell

VAE = StandInVAE(spatial=8, temporal=4, channels=16, dims=3)
CONDITIONING = [[torch.zeros(1, 2, 4), {}]]


def values_of(name: str, **inputs) -> list:
    """What a node gives for a video of nine frames, 32 x 48 pixels."""
    common = {"positive": CONDITIONING, "negative": CONDITIONING, "vae": VAE, "batch_size": 2}
    with torch.inference_mode():
        out = nodes.NODE_CLASS_MAPPINGS[name].execute(width=32, height=48, length=9, **{**common, **inputs})
    return list(out.args)


def test_picture_to_look_at_is_one_frame():
    picture = torch.rand(2, 48, 32, 3, generator=torch.Generator().manual_seed(0))
    positive, negative, latent = values_of("Wan22FunControlToVideo", ref_image=picture)
    for conditioning in (positive, negative):
        assert torch.equal(conditioning[0][1]["reference_latents"][0], VAE.encode(picture[:1]))
    assert latent["samples"].shape == (2, 16, 3, 6, 4)
    # A picture that is there already stays.
    again, *_ = values_of("Wan22FunControlToVideo", ref_image=picture, positive=positive)
    assert len(again[0][1]["reference_latents"]) == 2


@pytest.mark.parametrize("name", ["WanFunControlToVideo", "Wan22FunControlToVideo"])
def test_control_comes_before_the_first_frames(name):
    video = torch.rand(5, 48, 32, 3, generator=torch.Generator().manual_seed(0))
    positive, *_ = values_of(name, control_video=video)
    image = positive[0][1]["concat_latent_image"]
    assert image.shape[1:] == (32, 3, 6, 4)
    assert torch.equal(image[:1, :16, :2], VAE.encode(video))
    # Nothing is said about the rest: 0 to the model.
    assert Wan21().process_in(image[:, :16, 2:]).abs().max() < 1e-6
    assert Wan21().process_in(image[:, 16:]).abs().max() < 1e-6


def test_vace_makes_frames_anew_that_it_is_shown_nothing_of():
    video = torch.rand(5, 48, 32, 3, generator=torch.Generator().manual_seed(0))
    positive, *_ = values_of("WanVaceToVideo", strength=1.0, control_video=video, control_masks=torch.zeros(5, 48, 32))
    (frames,), (mask,) = positive[0][1]["vace_frames"], positive[0][1]["vace_mask"]
    kept, changed = frames.split(16, dim=1)
    assert torch.allclose(kept[:, :, :2], VAE.encode(video), atol=1e-6)
    assert not mask[:, :, :2].any() and (mask[:, :, 2:] == 1).all()
    assert not changed.any() and not kept[:, :, 2:].any()  # grey


def test_several_controls_of_vace_add_up():
    once, *_ = values_of("WanVaceToVideo", strength=0.5)
    twice, *_ = values_of("WanVaceToVideo", strength=0.25, positive=once)
    assert twice[0][1]["vace_strength"] == [0.5, 0.25] and len(twice[0][1]["vace_frames"]) == 2


def test_subjects_of_phantom():
    subjects = torch.rand(3, 48, 32, 3, generator=torch.Generator().manual_seed(0))
    positive, without_text, without_both, latent = values_of("WanPhantomSubjectToVideo", images=subjects)
    shown = positive[0][1]["time_dim_concat"]
    assert torch.equal(shown, torch.cat([VAE.encode(subjects[i : i + 1]) for i in range(3)], dim=2))
    assert torch.equal(without_text[0][1]["time_dim_concat"], shown)
    # To the model that is 0.
    blank = Wan21().process_in(without_both[0][1]["time_dim_concat"])
    assert blank.shape == shown.shape and blank.abs().max() < 1e-6
    assert latent["samples"].shape == (2, 16, 3, 6, 4)


def test_camera_without_focal_length_is_told():
    with pytest.raises(ValueError, match=r"fx is 0\.5, fy is 0"):
        nodes.NODE_CLASS_MAPPINGS["WanCameraEmbedding"].execute("Static", 32, 32, 9, fy=0.0)
