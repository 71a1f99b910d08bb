"""Nodes that take some frames of a video. Which frames is as the reference has been recorded to choose, on a video of
five frames at ten per second with 0.1 seconds of sound; but it encodes frames in memory first, and we do not."""

from __future__ import annotations

import json

import pytest
import torch

import nodes
from tests.nodes.runner import NodeFailed
from tests.nodes.test_media_files import RATE, media, node, pictures, run, tone  # noqa: F401  (media is a fixture)

ALL = [0, 1, 2, 3, 4]


def part_of(class_type, seconds=0.1, frames=None, **inputs):
    """The components of what a node makes of the video."""
    prompt = {
        "v": node("CreateVideo", images=["i", 0], fps=10.0, audio=["a", 0]),
        "p": node(class_type, video=["v", 0], **inputs),
    }
    frames = pictures(5) if frames is None else frames
    return run(prompt, i=frames, a=tone(seconds))[0][0].get_components()


@pytest.mark.parametrize(
    ("class_type", "inputs", "frames", "samples"),
    [
        ("Video Slice", {"start_time": 0.0, "duration": 0.0, "strict_duration": False}, ALL, 800),
        ("Video Slice", {"start_time": 0.1, "duration": 0.2, "strict_duration": False}, [1, 2], None),
        ("Video Slice", {"start_time": -0.2, "duration": 0.1, "strict_duration": False}, [3], None),
        ("Video Slice", {"start_time": 0.25, "duration": 0.0, "strict_duration": False}, [3, 4], None),
        ("Video Slice", {"start_time": -9.0, "duration": 0.2, "strict_duration": True}, [0, 1], 800),
        ("Video Slice", {"start_time": 0.3, "duration": 9.0, "strict_duration": False}, [3, 4], None),
        ("VideoFrameSample", {"num_frames": 2, "strategy": "uniform", "seed": 0}, [0, 4], None),
        ("VideoFrameSample", {"num_frames": 3, "strategy": "head", "seed": 0}, [0, 1, 2], 800),
        ("VideoFrameSample", {"num_frames": 3, "strategy": "tail", "seed": 0}, [2, 3, 4], None),
        ("VideoFrameSample", {"num_frames": 50, "strategy": "uniform", "seed": 0}, ALL, None),
        ("VideoFrameSample", {"num_frames": 1, "strategy": "uniform", "seed": 0}, [0], None),
        ("VideoTemporalCrop", {"start_frame": 1, "length": 2}, [1, 2], None),
        ("VideoTemporalCrop", {"start_frame": 0, "length": 1}, [0], 800),
        ("VideoTemporalCrop", {"start_frame": 4, "length": 9}, [4], None),
        ("VideoTemporalCrop", {"start_frame": 99, "length": 1}, [4], None),
    ],
)
def test_frames_and_sound(class_type, inputs, frames, samples):
    parts = part_of(class_type, **inputs)
    assert torch.equal(parts.images, pictures(5)[frames]) and parts.frame_rate == 10
    assert (parts.audio and parts.audio["waveform"].shape[-1]) == samples


@pytest.mark.parametrize(
    ("class_type", "inputs", "first", "last"),
    [
        ("Video Slice", {"start_time": 0.1, "duration": 0.2, "strict_duration": True}, 800, 2400),
        ("VideoTemporalCrop", {"start_frame": 3, "length": 5}, 2400, 4000),
        ("VideoFrameSample", {"num_frames": 2, "strategy": "tail", "seed": 0}, 2400, 4000),
    ],
)
def test_the_sound_of_that_time(class_type, inputs, first, last):
    audio = part_of(class_type, seconds=0.5, **inputs).audio
    assert torch.equal(audio["waveform"], tone(0.5)["waveform"][..., first:last]) and audio["sample_rate"] == RATE


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"start_time": 5.0, "duration": 0.0, "strict_duration": False}, ["0.5 seconds", "5 s"]),
        ({"start_time": 0.0, "duration": 10.0, "strict_duration": True}, ["0.5 seconds", "10 seconds"]),
        ({"start_time": 0.21, "duration": 0.05, "strict_duration": False}, ["0.05 seconds", "0.21 s"]),
    ],
)
def test_parts_that_are_not_there(inputs, words):
    with pytest.raises(NodeFailed) as failed:
        part_of("Video Slice", **inputs)
    assert isinstance(failed.value.error, ValueError) and all(word in str(failed.value.error) for word in words)


def test_random_frames_belong_to_their_seed():
    def chosen(seed):
        images = part_of("VideoFrameSample", frames=frames, num_frames=4, strategy="random", seed=seed).images
        return images[:, 0, 0, 0].mul(100).round().int().tolist()

    frames = (torch.arange(40) / 100).reshape(-1, 1, 1, 1).expand(40, 8, 8, 3)
    first = chosen(1)
    assert first == sorted(set(first)) and len(first) == 4 and chosen(1) == first and chosen(2) != first


def test_a_part_of_a_file(media, folders):  # noqa: F811
    path = folders / "input" / "v.mp4"
    run({"v": node("CreateVideo", images=["i", 0], fps=10.0, audio=["a", 0])}, i=pictures(5), a=tone())[0][0].save_to(
        str(path)
    )
    prompt = {
        "l": node("LoadVideo", file="v.mp4"),
        "p": node("Video Slice", video=["l", 0], start_time=0.25, duration=0.0, strict_duration=False),
        "q": node("Video Slice", video=["p", 0], start_time=0.1, duration=9.0, strict_duration=False),
    }
    (part,), _ = run({"l": prompt["l"], "p": prompt["p"]})
    assert part.get_frame_count() == 2 and part.get_duration() == pytest.approx(0.2)
    (again,), _ = run(prompt)
    assert again.get_frame_count() == 1
    assert (again.get_components().images - pictures(5)[4]).abs().mean() < 0.03


@pytest.mark.parametrize(("codec", "pixels"), [("vp9", "yuv420p"), ("av1", "yuv420p10le")])
def test_webm(media, folders, codec, pixels):  # noqa: F811
    saver = node("SaveWEBM", images=["i", 0], filename_prefix="w/a", codec=codec, fps=23.976, crf=20.0)
    (images,), ui = run({"s": saver}, i=pictures(5))
    assert torch.equal(images, pictures(5))
    assert ui == {"images": [{"filename": "a_00001_.webm", "subfolder": "w", "type": "output"}], "animated": [True]}
    with media.open(str(folders / "output" / "w" / "a_00001_.webm")) as file:
        stream = file.streams.video[0]
        assert codec in stream.codec_context.codec.canonical_name and stream.codec_context.pix_fmt == pixels
        assert float(stream.average_rate) == pytest.approx(23.976, abs=1e-3)
        metadata = {key.lower(): value for key, value in file.metadata.items()}
        assert json.loads(metadata["workflow"]) == {"nodes": []} and "SaveWEBM" in metadata["prompt"]
    prompt = {"l": node("LoadVideo", file="w/a_00001_.webm [output]"), "c": node("GetVideoComponents", video=["l", 0])}
    frames = run(prompt)[0][0]
    assert (frames - pictures(5)).abs().mean() < 0.03


def test_webm_of_odd_sides_is_refused_by_name(media, folders):  # noqa: F811
    saver = node("SaveWEBM", images=["i", 0], filename_prefix="w", codec="vp9", fps=24.0, crf=32.0)
    with pytest.raises(NodeFailed) as failed:
        run({"s": saver}, i=pictures(1)[:, :, :47])
    assert "47 x 32" in str(failed.value.error)
    assert "SaveWEBM" in nodes.NODE_CLASS_MAPPINGS
