"""Text generation on a CUDA device: what it takes, when the host waits, and layers that visit."""

import contextlib
import gc

import pytest
import torch

import comfy.loaded_models
import comfy.sd
from comfy.text_encoders import llm_generation
from comfy.text_encoders.token_choice import Sampling
from tests.cuda.simulation import DEVICE
from tests.families.test_llm_sides import small_pairs
from tests.families.test_text_generation import PICTURE, qwen_file


@pytest.fixture
def files(tmp_path):
    """Makes a text side of drawn weights in `dtype`."""
    for name, content in zip(("vocab.json", "merges.txt"), small_pairs()):
        (tmp_path / name).write_text(content, encoding="utf-8")

    def made(width: int = 2560, dtype: torch.dtype = torch.bfloat16, **more) -> comfy.sd.CLIP:
        sd = {key: value.to(dtype) for key, value in qwen_file(width, **more).items()}
        options = {"dtype": dtype}
        return comfy.sd.load_text_encoder_state_dicts([sd], model_options=options, folders=[str(tmp_path)])

    return made


def written(clip: comfy.sd.CLIP, length: int, sampling: Sampling | None = None, images=()) -> list[int]:
    writer = clip.language_model()
    return writer.write(writer.tokenize("a cat", images), length, sampling, clip.patcher, lambda count: None)


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=1.5, seed=3)])
def test_the_host_waits_once_for_each_token(cuda, files, sampling):
    clip = files()
    assert clip.language_model().dtype(DEVICE) == torch.bfloat16
    reads = []
    for length in (2, 2, 10):
        cuda.reads.clear()
        assert len(written(clip, length, sampling)) == length
        reads.append(list(cuda.reads))
    assert len(reads[2]) - len(reads[1]) == 8, reads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_as_on_the_host_and_streamed(cuda, files, monkeypatch, dtype):
    """Computed in bfloat16 or, of float32 weights, in float32; the same tokens when half of the layers visit."""
    clip = files(4096, dtype, head=True)
    assert clip.language_model().dtype(DEVICE) == (torch.float32 if dtype == torch.float32 else torch.bfloat16)
    sampling = Sampling(temperature=1.0, top_k=0, min_p=0.0, seed=5)
    whole = written(clip, 12, sampling)
    if dtype == torch.float32:
        monkeypatch.setattr(clip.patcher, "load_device", torch.device("cpu"))
        monkeypatch.setattr(clip.head_patcher, "load_device", torch.device("cpu"))
        comfy.loaded_models.unload_all_models()
        assert written(clip, 12, sampling) == whole, "a seed means the same on every device"
        monkeypatch.undo()
    for share in (0.9, 0.5, 0.01):
        comfy.loaded_models.unload_all_models()
        monkeypatch.setattr(comfy.loaded_models, "_budget", lambda entry, _, s=share: int(entry.model_memory() * s))
        for _ in range(2):  # in the first run the order of the layers is learnt
            assert written(clip, 12, sampling) == whole
        clip.patcher.cleanup()


def test_encoding_does_not_load_the_head(cuda, files):
    clip = files(head=True)
    clip.encode_from_tokens(clip.tokenize("a cat"))
    assert clip.head_patcher.loaded_size() == 0
    written(clip, 2)
    assert clip.head_patcher.loaded_size() == clip.head_patcher.model_size()


def test_pictures_are_seen_on_the_device(cuda, files, monkeypatch):
    monkeypatch.setattr(llm_generation, "QWEN_PICTURE", PICTURE)
    clip = files(3584, eyes=True)
    picture = torch.rand(1, 60, 70, 3, generator=torch.Generator().manual_seed(0))
    assert written(clip, 4, images=[picture]) == written(clip, 4, images=[picture.to(DEVICE)])


class Enough(Exception):
    """Three tokens tell as much as 3000."""


def stop_at_three(count: int) -> None:
    if count == 3:
        raise Enough


def test_what_it_takes_is_foreseen_and_given_back(cuda, files):
    clip = files()
    written(clip, 1)
    gc.collect()
    before = cuda.used
    writer = clip.language_model()
    for text, length in (("a cat", 3000), ("a cat " * 700, 3)):
        tokens = writer.tokenize(text)
        cuda.reset_peak()
        with contextlib.suppress(Enough):
            writer.write(tokens, length, Sampling(temperature=2.0, top_k=0), clip.patcher, stop_at_three)
        gc.collect()
        assert cuda.used == before
        assert cuda.peak - before <= writer.working_bytes(writer.row_of(tokens), length, torch.bfloat16)
