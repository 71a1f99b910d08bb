"""Textual inversion files in all layouts."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from comfy.text_encoders.embedding_files import load_embed

FOLDER = Path(__file__).resolve().parent.parent / "data" / "models" / "embeddings"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())["expected"]
WIDTH = {"clip_l": 32, "clip_g": 40}


@pytest.mark.parametrize("case", [name for name, value in EXPECTED.items() if value])
def test_layouts(case):
    name, key = case.split("/")
    vectors = load_embed(name, str(FOLDER), WIDTH[key], key)
    assert list(vectors.shape) == EXPECTED[case]["shape"]
    assert vectors.flatten()[:4].tolist() == pytest.approx(EXPECTED[case]["first"], abs=1e-6)
    assert vectors.sum().item() == pytest.approx(EXPECTED[case]["sum"], abs=1e-4)


def test_missing_file_is_none():
    assert load_embed("missing", str(FOLDER), 32) is None
    assert load_embed("plain", None, 32) is None
    assert load_embed("plain", [str(FOLDER / "nowhere"), str(FOLDER)], 32) is not None


class Evil:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_pickle_with_code_is_left_out(tmp_path, caplog, capsys):
    torch.save({"emb_params": torch.zeros(1, 32), "x": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Evil()))
    assert load_embed("evil", str(tmp_path), 32) is None
    assert load_embed("raw", str(tmp_path), 32) is None
    assert "refused" in caplog.text
    assert "never" not in capsys.readouterr().out


UNUSABLE = {
    "a hypernetwork": {768: [{"linear.0.weight": torch.zeros(2, 2)}], "name": "x"},
    "integers": {"emb_params": torch.zeros(2, 32, dtype=torch.int64)},
    "a number": {"emb_params": torch.tensor(1.0)},
    "nothing": {},
    "a list of other widths": [{"a": torch.zeros(2, 24)}],
    "a text": "a cat",
}


@pytest.mark.parametrize("contents", UNUSABLE)
def test_what_holds_no_vectors_is_told(tmp_path, caplog, contents):
    """A prompt does not fail over it."""
    torch.save(UNUSABLE[contents], tmp_path / "odd.pt")
    assert load_embed("odd", str(tmp_path), 32, "clip_l") is None
    assert "odd: its file holds no vectors" in caplog.text


def test_a_bundle_for_two_encoders(tmp_path):
    """Of each encoder, the vectors of its width."""
    names = {f"bundle_emb.x.string_to_param.{i}": torch.full((i, w), float(w)) for i, w in ((1, 32), (2, 40), (3, 32))}
    torch.save({**names, "bundle_emb.x.string_to_param.step": torch.tensor(5)}, tmp_path / "both.pt")
    for key, width, count in (("clip_l", 32, 4), ("clip_g", 40, 2)):
        vectors = load_embed("both", str(tmp_path), width, key)
        assert vectors.shape == (count, width) and (vectors == width).all()


def test_vectors_of_more_dimensions_are_a_list_of_them(tmp_path):
    torch.save({"emb_params": torch.arange(128.0).reshape(1, 4, 32)}, tmp_path / "deep.pt")
    assert load_embed("deep", str(tmp_path), 32, "clip_l").shape == (4, 32)
