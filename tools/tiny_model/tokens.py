"""Captions to token ids, and the few rows of CLIP's big vocabulary that a training really needs.

The file carries all 49408 rows; captions use some hundred of them. The trainer works on a table with only the rows
that occur plus some "foreign" ones: words of other topics, put into captions now and then so that the model
learns to look past them.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from comfy.text_encoders.tokenizer import encode_clip
from tools.tiny_model.data import caption, sample_scene
from tools.tiny_model.networks import END_TOKEN, START_TOKEN, TOKENS, VOCABULARY

FOREIGN_ROWS = 1500
FOREIGN_SHARE = 0.06  # of the captions get one to three foreign tokens


class Captions:
    """Token ids of captions, counted within a small table; `rows[k]` is the place of row k in the full one."""

    def __init__(self, seed: int):
        rng = random.Random(seed)
        seen = {START_TOKEN, END_TOKEN}
        for _ in range(20000):
            seen.update(encode_clip(caption(sample_scene(rng), rng)))
        known = sorted(seen)
        foreign = rng.sample([k for k in range(VOCABULARY - 2) if k not in seen], FOREIGN_ROWS)
        self.rows = known + foreign
        self.foreign = range(len(known), len(self.rows))
        self._place = {row: k for k, row in enumerate(self.rows)}

    def __call__(self, texts: list[str], rng: random.Random | None = None) -> Tensor:
        """Ids [len(texts), 77], start token first, filled up with the end token; with an `rng` some of the texts
        get foreign words."""
        out = torch.full((len(texts), TOKENS), self._place[END_TOKEN])
        out[:, 0] = self._place[START_TOKEN]
        for row, text in zip(out, texts):
            ids = [self._place[k] for k in encode_clip(text)]
            if rng is not None and ids and rng.random() < FOREIGN_SHARE:
                for _ in range(rng.randint(1, 3)):
                    ids.insert(rng.randint(0, len(ids)), rng.choice(self.foreign))
            ids = ids[: TOKENS - 2]
            row[1 : len(ids) + 1] = torch.tensor(ids, dtype=torch.long)
        return out
