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
