"""Small recorded text encoders, and the vocabularies of real ones."""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from comfy.text_encoders import t5
from comfy.text_encoders.clip import config_from_state_dict
from comfy.text_encoders.open_clip import to_text_model

DATA = Path(__file__).resolve().parent.parent / "data" / "text"
EMBEDDINGS = str(DATA / "embeddings")
CASES = json.loads((DATA / "family_cases.json").read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=4)
def token_table(name: str) -> torch.Tensor:
    """Too large to store; made from a seed, and checked."""
    facts = CASES["embedding_table"][name]
    rows = np.random.RandomState(facts["seed"]).standard_normal((facts["rows"], facts["dim"])) * 0.5
    table = rows.astype("<f4")
    assert hashlib.sha256(table.tobytes()).hexdigest() == facts["sha256_f32le"]
    return torch.from_numpy(table)


@functools.lru_cache(maxsize=4)
def encoder_file(name: str) -> dict[str, torch.Tensor]:
    """L, G (in open_clip's layout), T (T5) or U (UMT5), as files with the encoder alone hold them."""
    file = {"L": "tiny_clip_l", "G": "tiny_clip_g_openclip", "T": "tiny_t5", "U": "tiny_umt5"}[name]
    key = {"L": "text_model.embeddings.token_embedding.weight", "G": "token_embedding.weight"}
    key |= dict.fromkeys("TU", "shared.weight")
    return {**load_file(DATA / f"{file}.safetensors"), key[name]: token_table(name)}


def clip_config(name: str):
    """Heads and activation of the small encoders follow no rule."""
    sd, facts = encoder_file(name), CASES["configs"][name]
    sd = to_text_model(sd) if name == "G" else sd
    return config_from_state_dict(sd, num_attention_heads=facts["num_attention_heads"], hidden_act=facts["hidden_act"])


def t5_config(name: str = "T") -> t5.T5Config:
    return t5.config_from_state_dict(encoder_file(name))


def model_tensors(**encoders: str) -> dict[str, torch.Tensor]:
    """Tensors named as encoder models name them; clip_l="L" puts the small L there."""
    out = {}
    for place, name in encoders.items():
        sd = encoder_file(name)
        sd = to_text_model(sd) if name == "G" else sd
        out.update({f"{place}.transformer.{k}": v for k, v in sd.items()})
    return out


def unpack_vocabularies(folder: Path) -> None:
    """The real vocabularies of T5 and Pile-T5 where `models/tokenizers` would have them."""
    for name, file, packed in (
        ("t5", "tokenizer.json", "t5_tokenizer.json"),
        ("pile_t5", "spiece.model", "pile_t5.model"),
    ):
        target = folder / "tokenizers" / name / file
        target.parent.mkdir(parents=True)
        target.write_bytes(lzma.decompress((DATA / f"{packed}.xz").read_bytes()))
