"""Asks the finished file for pictures and lets the judge (`classify`) say what is in them.

Everything goes the server's way: `comfy.sd` loads the file, `comfy.sample` samples. 200 scenes from a fixed seed,
each described in full, each with its own noise seed.

    python -m tools.tiny_model.evaluate models/checkpoints/darkroom-tiny.safetensors
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import comfy.sample
import comfy.sd
from tools.tiny_model.classify import Reading, classify
from tools.tiny_model.data import Scene, plain_caption, sample_scene
from tools.tiny_model.shapes import PICTURE

PAIRS, SEED = 200, 2024
STEPS, CFG, SAMPLER, SCHEDULER = 20, 4.0, "euler", "normal"
LATENT = PICTURE // 8


def pairs(count: int = PAIRS, seed: int = SEED) -> list[tuple[Scene, int]]:
    """Scenes to ask for, with the seeds of their noise."""
    rng = random.Random(seed)
    return [(sample_scene(rng), rng.randrange(2**32)) for _ in range(count)]


class Painter:
    """A checkpoint, loaded like any other, ready to paint batches."""

    def __init__(self, path: str | Path):
        self.model, self.clip, self.vae, _ = comfy.sd.load_checkpoint_guess_config(str(path))

    def condition(self, text: str) -> Tensor:
        return self.clip.encode_from_tokens(self.clip.tokenize(text))

    @torch.inference_mode()
    def paint(self, asked: list[tuple[str, int]], cfg: float = CFG, steps: int = STEPS) -> np.ndarray:
        """Pictures of (prompt, seed) pairs, uint8 [count, 128, 128, 3]; noise as if each were sampled alone."""
        empty = torch.zeros(1, 4, LATENT, LATENT)
        noise = torch.cat([comfy.sample.prepare_noise(empty, seed) for _, seed in asked])
        positive = [[torch.cat([self.condition(text) for text, _ in asked]), {}]]
        negative = [[self.condition(""), {}]]
        latents = comfy.sample.sample(
            self.model,
            noise,
            steps,
            cfg,
            SAMPLER,
            SCHEDULER,
            positive,
            negative,
            torch.zeros_like(noise),
            disable_pbar=True,
            seed=asked[0][1],
        )
        return (self.vae.decode(latents).clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()


def judge(painter: Painter, asked: list[tuple[Scene, int]], cfg: float) -> tuple[list[Reading], np.ndarray]:
    """What the judge reads in each of the pictures asked for, and the pictures."""
    pictures = []
    for start in range(0, len(asked), 20):
        part = [(plain_caption(scene), seed) for scene, seed in asked[start : start + 20]]
        pictures.append(painter.paint(part, cfg))
    stack = np.concatenate(pictures)
    return [classify(picture) for picture in stack], stack


def rates(asked: list[tuple[Scene, int]], readings: list[Reading]) -> dict[str, float]:
    """Attribute -> share of the pictures that have it right; "all" = every attribute right."""
    asked_for, right = Counter(), Counter()
    for (scene, _), reading in zip(asked, readings):
        agrees = reading.agrees(scene)
        agrees["all"] = all(agrees.values())
        asked_for.update(agrees.keys())
        right.update(name for name, agree in agrees.items() if agree)
    return {name: right[name] / asked_for[name] for name in asked_for}


def sheet(pictures: np.ndarray, columns: int = 10) -> Image.Image:
    """The pictures side by side."""
    rows = -(-len(pictures) // columns)
    out = Image.new("RGB", (columns * (PICTURE + 4), rows * (PICTURE + 4)), (128, 128, 128))
    for k, picture in enumerate(pictures):
        out.paste(Image.fromarray(picture), ((k % columns) * (PICTURE + 4) + 2, (k // columns) * (PICTURE + 4) + 2))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--cfg", type=float, default=CFG)
    parser.add_argument("--sheet", help="write the pictures into this file")
    parser.add_argument("--wrong", action="store_true", help="list the pairs that came out wrong")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    painter = Painter(arguments.checkpoint)
    asked = pairs(arguments.pairs)
    started = time.time()
    readings, pictures = judge(painter, asked, arguments.cfg)
    seconds = (time.time() - started) / len(asked)
    if arguments.sheet:
        sheet(pictures[:100]).save(arguments.sheet)
    if arguments.wrong:
        for k, ((scene, seed), reading) in enumerate(zip(asked, readings)):
            wrong = [name for name, agree in reading.agrees(scene).items() if not agree]
            if wrong:
                seen = ", ".join(f"{name} {getattr(reading, name)}" for name in wrong)
                print(f"{k}: {plain_caption(scene)} (seed {seed}): {seen}")
    figures = {name: round(rate, 4) for name, rate in rates(asked, readings).items()}
    print(json.dumps({"pairs": len(asked), "cfg": arguments.cfg, "seconds each": round(seconds, 3), **figures}))


if __name__ == "__main__":
    main()
