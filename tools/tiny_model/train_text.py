"""Teaches the text encoder to read before there are pictures: from a caption to what it says.

Linear heads on the averaged output and on the output at the first end token must name shape, colour, size, number,
place and background, or "unsaid". It takes minutes, costs no pictures, and the U-Net then finds the attributes
ready in its context instead of having to discover grammar through its own noise loss. The heads are thrown away.
Writes `work/clip.safetensors` (with the small token table of `tokens.Captions`).

    python -m tools.tiny_model.train_text --minutes 3
"""

from __future__ import annotations

import argparse
import random

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.tiny_model.data import UNSAID, describe, sample_scene
from tools.tiny_model.init import initialise
from tools.tiny_model.networks import CLIP_FILE, WIDTH, WORK, build_clip
from tools.tiny_model.shapes import COLOURS, COUNTS, POSITIONS, SHAPES, SIZES
from tools.tiny_model.tokens import Captions
from tools.tiny_model.training import Clock, learning_rate

BATCH = 128
PEAK_RATE = 3e-3
ANSWERS: dict[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "count": tuple(str(count) for count in COUNTS),
    "colour": (*COLOURS, UNSAID),
    "size": (*SIZES, UNSAID),
    "position": (*POSITIONS, UNSAID),
    "background": (*COLOURS, UNSAID),
}


class Reader(nn.Module):
    def __init__(self, rows: int):
        super().__init__()
        self.clip = build_clip(rows)
        self.mean_head = nn.Linear(WIDTH, sum(map(len, ANSWERS.values())))
        self.end_head = nn.Linear(WIDTH, sum(map(len, ANSWERS.values())))

    def forward(self, tokens: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of all answers, from the mean over the tokens and from the first end token (at `ends`)."""
        out = self.clip(tokens).last
        return self.mean_head(out.mean(1)), self.end_head(out[torch.arange(len(out)), ends])


def batch(captions: Captions, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, places of the first end token, answers [batch, attributes]."""
    texts, answers = [], []
    for _ in range(BATCH):
        text, said = describe(sample_scene(rng), rng)
        texts.append(text)
        answers.append([choices.index(said[name]) for name, choices in ANSWERS.items()])
    tokens = captions(texts, rng)
    return tokens, (tokens == tokens[:, -1:]).int().argmax(1), torch.tensor(answers)


def loss(scores: Tensor, answers: Tensor) -> tuple[Tensor, float]:
    """Cross entropy summed over the attributes, and the share of right answers."""
    parts = scores.split([len(choices) for choices in ANSWERS.values()], dim=1)
    total = sum(F.cross_entropy(part, answer) for part, answer in zip(parts, answers.T))
    right = torch.stack([part.argmax(1) == answer for part, answer in zip(parts, answers.T)]).float().mean()
    return total, right.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    WORK.mkdir(exist_ok=True)
    captions, rng = Captions(arguments.seed), random.Random(arguments.seed)
    reader = Reader(len(captions.rows))
    initialise(reader, arguments.seed)
    optimiser = torch.optim.AdamW(reader.parameters(), lr=PEAK_RATE, betas=(0.9, 0.99), weight_decay=1e-3, fused=True)
    clock, step = Clock(arguments.minutes * 60), 0
    while not clock.over():
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(PEAK_RATE, step, 50, clock.share())
        tokens, ends, answers = batch(captions, rng)
        by_mean, by_end = reader(tokens, ends)
        mean_loss, mean_right = loss(by_mean, answers)
        end_loss, end_right = loss(by_end, answers)
        optimiser.zero_grad(set_to_none=True)
        (mean_loss + end_loss).backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step} {clock.elapsed():.0f} s loss {mean_loss.item():.3f} {end_loss.item():.3f} ", end="")
            print(f"right {mean_right:.3f} {end_right:.3f}", flush=True)
    save_file({k: v.contiguous() for k, v in reader.clip.state_dict().items()}, CLIP_FILE)


if __name__ == "__main__":
    main()
