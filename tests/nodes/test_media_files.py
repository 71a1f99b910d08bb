"""Nodes that read and write sound and video: what they write is what they read."""

from __future__ import annotations

import json
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import folder_paths
import nodes
from comfy_execution.validation import validate_prompt
from tests.nodes.runner import GraphRunner, NodeFailed

WORKFLOW = {"nodes": []}
RATE = 8000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def media(folders):
    """The library, and folders of the test's own."""
    return pytest.importorskip("av")


def tone(seconds: float = 0.5, channels: int = 2) -> dict:
    t = torch.arange(int(seconds * RATE)) / RATE
    return {"waveform": (torch.sin(2 * torch.pi * 440 * t) / 2).expand(1, channels, -1).clone(), "sample_rate": RATE}


def pictures(count: int = 4) -> torch.Tensor:
    """A bright square that moves over a gradient, [count, 32, 48, 3]."""
    images = torch.linspace(0.1, 0.6, 48).expand(count, 32, 48).unsqueeze(-1).repeat(1, 1, 1, 3)
    for number, image in enumerate(images):
        image[8:24, 8 * number : 8 * number + 16] = torch.tensor([0.9, 0.2, 0.2])
    return images


def run(prompt: dict, **sources):
    """Values of the last node's outputs, and its ui data."""
    runner = GraphRunner(prompt, {name: [value] for name, value in sources.items()}, WORKFLOW)
    last = list(prompt)[-1]
    with torch.inference_mode():
        count = len(nodes.NODE_CLASS_MAPPINGS[prompt[last]["class_type"]].RETURN_TYPES)
        return [runner.slot([last, index])[0] for index in range(count)], runner.ui.get(last)


def node(class_type: str, **inputs) -> dict:
    return {"class_type": class_type, "inputs": inputs}


@pytest.mark.parametrize(
    ("saver", "inputs", "ending", "tolerance"),
    [
        ("SaveAudio", {}, "flac", 1e-4),
        ("SaveAudioMP3", {"quality": "320k"}, "mp3", 0.05),
        ("SaveAudioOpus", {"quality": "128k"}, "opus", None),
    ],
)
def test_sound_there_and_back(media, folders, saver, inputs, ending, tolerance):
    values, ui = run({"s": node(saver, audio=["a", 0], filename_prefix="sounds/x", **inputs)}, a=tone())
    assert values[0]["sample_rate"] == RATE
    assert ui["audio"] == [{"filename": f"x_00001.{ending}", "subfolder": "sounds", "type": "output"}]
    (audio,), _ = run({"l": node("LoadAudio", audio=f"sounds/x_00001.{ending} [output]")})
    with media.open(str(folders / "output" / "sounds" / f"x_00001.{ending}")) as file:
        metadata = {**file.metadata, **file.streams.audio[0].metadata}
        assert json.loads(metadata["workflow"]) == WORKFLOW and "SaveAudio" in metadata["prompt"]
    expected, got = tone()["waveform"], audio["waveform"]
    assert got.shape[:2] == (1, 2) and got.dtype == torch.float32
    if tolerance is not None:  # Opus has another rate
        assert audio["sample_rate"] == RATE
        middle = slice(1000, 3000)  # codecs fade in and out
        assert (got[..., middle] - expected[..., middle]).abs().max() < tolerance
    # The next file does not take the first one's place.
    _, ui = run({"s": node(saver, audio=["a", 0], filename_prefix="sounds/x", **inputs)}, a=tone())
    assert ui["audio"][0]["filename"] == f"x_00002.{ending}"


def test_a_preview_is_temporary(media, folders):
    _, ui = run({"p": node("PreviewAudio", audio=["a", 0])}, a=tone(channels=1))
    assert ui["audio"][0]["type"] == "temp" and (folders / "temp" / ui["audio"][0]["filename"]).is_file()


def write_wav(path: Path, width: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(RATE)
        file.writeframes(np.full(100, 64, dtype="u1" if width == 1 else "<i2").tobytes())


@pytest.mark.parametrize("name", ["eight.wav", "text.wav"])
def test_sound_that_cannot_be_read_is_named(media, folders, name):
    write_wav(folders / "input" / "eight.wav", 1)
    (folders / "input" / "text.wav").write_text("this is no sound")
    with pytest.raises(NodeFailed) as failed:
        run({"l": node("LoadAudio", audio=name)})
    assert isinstance(failed.value.error, ValueError) and name in str(failed.value.error)


def test_a_sound_file_as_it_is(media, folders):
    write_wav(folders / "input" / "sixteen.wav", 2)
    (audio,), _ = run({"l": node("LoadAudio", audio="sixteen.wav")})
    assert torch.equal(audio["waveform"], torch.full((1, 1, 100), 64 / 32768)) and audio["sample_rate"] == RATE


def test_a_video_of_frames_is_taken_apart_without_loss(folders):
    prompt = {"v": node("CreateVideo", images=["i", 0], fps=23.976, audio=["a", 0], bit_depth=10)}
    prompt["c"] = node("GetVideoComponents", video=["v", 0])
    (images, audio, fps, depth, colours), _ = run(prompt, i=pictures(), a=tone())
    assert torch.equal(images, pictures()) and torch.equal(audio["waveform"], tone()["waveform"])
    assert (fps, depth, colours) == (23.976, 10, "sRGB")


@pytest.mark.parametrize(
    ("inputs", "ending", "codec", "pixels"),
    [
        ({"format": {"format": "auto", "codec": {"codec": "auto"}}}, "mp4", "h264", "yuv420p"),
        ({"format": "auto", "codec": "auto"}, "mp4", "h264", "yuv420p"),
        (
            {"format": {"format": "mkv", "codec": {"codec": "h264", "encoding": {
                "encoding": "re-encode", "crf": 10.0, "color_space": "HDR"}}}},
            "mkv", "h264", "yuv420p10le",
        ),
        ({"format": {"format": "webm", "codec": {"codec": "av1"}}}, "webm", "av1", "yuv420p"),
    ],
)  # fmt: skip
def test_video_there_and_back(media, folders, inputs, ending, codec, pixels):
    video = run({"v": node("CreateVideo", images=["i", 0], fps=10.0, audio=["a", 0])}, i=pictures(), a=tone(0.4))[0][0]
    saver = nodes.NODE_CLASS_MAPPINGS["SaveVideo"]
    saved = saver.PREPARE_CLASS_CLONE({}).execute(video, "clips/c", **inputs)
    assert saved.result == (video,)
    file = folders / "output" / "clips" / f"c_00001_.{ending}"
    with media.open(str(file)) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (48, 32, 10)
        assert stream.codec_context.pix_fmt == pixels and codec in (stream.codec_context.codec.canonical_name)
        assert [s.type for s in container.streams] == ["video", "audio"]
    prompt = {"l": node("LoadVideo", file=f"clips/c_00001_.{ending} [output]")}
    prompt["c"] = node("GetVideoComponents", video=["l", 0])
    (images, audio, fps, depth, colours), _ = run(prompt)
    assert images.shape == pictures().shape and fps == 10.0
    assert (images - pictures()).abs().mean() < 0.03
    assert audio["waveform"].shape[1] == 2 and (depth == 10) == (pixels != "yuv420p")
    assert colours == ("HDR" if depth == 10 else "sRGB")


def test_a_file_is_copied_and_not_encoded_again(media, folders):
    video = run({"v": node("CreateVideo", images=["i", 0], fps=10.0)}, i=pictures())[0][0]
    video.save_to(str(folders / "input" / "first.mp4"))
    prompt = {"l": node("LoadVideo", file="first.mp4")}
    prompt["s"] = node("SaveVideo", video=["l", 0], filename_prefix="copy", format="auto", codec="auto")
    _, ui = run(prompt)
    assert ui["images"] == [{"filename": "copy_00001_.mp4", "subfolder": "", "type": "output"}]
    assert ui["animated"] == [True]

    def packets(path):
        with media.open(str(path)) as container:
            return [bytes(packet) for packet in container.demux(video=0) if packet.size]

    assert packets(folders / "output" / "copy_00001_.mp4") == packets(folders / "input" / "first.mp4")


def test_odd_sizes_are_refused(media, folders):
    video = run({"v": node("CreateVideo", images=["i", 0], fps=10.0)}, i=pictures()[:, :, :47])[0][0]
    with pytest.raises(ValueError, match="47 x 32"):
        nodes.NODE_CLASS_MAPPINGS["SaveVideo"].PREPARE_CLASS_CLONE({}).execute(video, "odd")


async def test_prompts_of_older_versions_are_accepted(folders):
    """They have the codec beside the format instead of below it."""
    prompt = {
        "i": node("EmptyImage", width=16, height=16, batch_size=2, color=0),
        "v": node("CreateVideo", images=["i", 0], fps=10.0),
        "s": node("SaveVideo", video=["v", 0], filename_prefix="x", format="auto", codec="auto"),
    }
    accepted, error, outputs, problems = await validate_prompt("p", prompt, None)
    assert accepted and outputs == ["s"] and not problems, (error, problems)


@pytest.mark.slow
def test_without_the_library_the_nodes_are_there_and_say_so():
    code = (
        "import sys; sys.modules['av'] = None\nimport nodes\n"
        "assert {'LoadAudio', 'SaveVideo', 'CreateVideo'} <= set(nodes.NODE_CLASS_MAPPINGS)\n"
        "try: nodes.NODE_CLASS_MAPPINGS['LoadAudio'].execute('x.wav')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("NoMediaLibrary") and "pip install" in done.stdout, done.stderr[-2000:]


def test_missing_files_are_refused(folders):
    for name, key in (("LoadAudio", "audio"), ("LoadVideo", "file")):
        assert nodes.NODE_CLASS_MAPPINGS[name].validate_inputs(**{key: "../x.mp4"}) == (
            f"Invalid {'audio' if key == 'audio' else 'video'} file: ../x.mp4"
        )
    assert folder_paths.get_input_directory() == str(folders / "input")


def test_compression_of_a_frame():
    """Stronger is farther from the picture; nothing stays whole, and what is too small for a frame is left alone."""
    pytest.importorskip("av")
    from nodes.video_compression import compressed

    picture = torch.rand(40, 50, 3, generator=torch.Generator().manual_seed(0))
    distances = [(compressed(picture, crf) - picture).abs().mean().item() for crf in (0, 10, 30, 51, 100)]
    assert distances[0] == 0 and distances[1] > 0 and distances[1:4] == sorted(distances[1:4])
    assert distances[4] == pytest.approx(distances[3])  # no encoder goes further
    assert compressed(picture[:1], 30).shape == (1, 50, 3) and compressed(picture[:7, :9], 30).shape == (6, 8, 3)
