"""Trains the U-Net, and the text encoder on: noise prediction in the latents of the finished autoencoder.

Ho et al. 2020 with the noise schedule of Stable Diffusion 1 (Rombach et al. 2022); a tenth of the captions is
empty for classifier-free guidance (Ho & Salimans 2022). Every few minutes the state is saved (a second call goes
on from it) and an averaged model exported.

    python -m tools.tiny_model.train_unet --minutes 45
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.tiny_model.data import Scene, caption, draw, sample_scene
from tools.tiny_model.export import export
from tools.tiny_model.init import initialise, structure_unet
from tools.tiny_model.networks import (
    CLIP_FILE,
    LATENT_SCALE,
    POOL_FILE,
    STATE_FILE,
    VAE_FILE,
    WORK,
    build_clip,
    build_unet,
    build_vae,
)
from tools.tiny_model.shapes import PICTURE
from tools.tiny_model.tokens import Captions
from tools.tiny_model.train_vae import to_signed
from tools.tiny_model.training import Average, Clock, Muon, learning_rate

BATCH = 32
PEAK_RATE = 1.5e-3
TEXT_RATE = 3e-4  # the text encoder already knows how to read
MATRIX_RATE = 0.01  # of Muon
EMPTY_SHARE = 0.1
EXPORT_FILE = WORK / "darkroom-tiny.safetensors"
SAVE_EVERY = 180.0  # seconds
REFRESH_EVERY, REFRESH = 100, 50  # so many new pictures every so many steps


def alphas_cumprod() -> Tensor:
    """Share of signal variance left at the 1000 timesteps of Stable Diffusion 1."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64).square()
    return (1 - betas).cumprod(0).float()


class Pool:
    """Scenes and their latents (scaled as the U-Net sees them); old ones make room for new ones."""

    def __init__(self, vae: nn.Module, size: int, seed: int):
        self._vae = vae
        self._rng = random.Random(seed)
        self._next = 0
        self.scenes: list[Scene | None] = [None] * size
        self.latents = torch.empty(size, 4, 16, 16)
        self.pixels = torch.empty(size, 3, PICTURE, PICTURE, dtype=torch.uint8)
        self.refresh(size, self._saved(size))

    @staticmethod
    def _saved(size: int) -> dict[str, Tensor] | None:
        """Pictures and latents of an earlier, interrupted run."""
        saved = load_file(POOL_FILE) if POOL_FILE.exists() else None
        return saved if saved is not None and len(saved["latents"]) == size else None

    @torch.no_grad()
    def refresh(self, count: int, saved: dict[str, Tensor] | None = None) -> None:
        """Draw `count` new scenes; their latents are taken from `saved` where its pictures are the same."""
        while count > 0:
            scenes = [sample_scene(self._rng) for _ in range(min(count, 50))]
            pixels = np.stack([np.array(draw(scene, self._rng)) for scene in scenes])
            pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)
            places = [(self._next + k) % len(self.scenes) for k in range(len(scenes))]
            if saved is not None and torch.equal(saved["pixels"][places], pixels):
                latents = saved["latents"][places]
            else:
                latents = self._vae.encode(to_signed(pixels)) * LATENT_SCALE
            self.latents[places], self.pixels[places] = latents, pixels
            for place, scene in zip(places, scenes):
                self.scenes[place] = scene
            self._next = (places[-1] + 1) % len(self.scenes)
            count -= len(scenes)


class Model(nn.Module):
    """The two networks that are trained together."""

    def __init__(self, rows: int):
        super().__init__()
        self.unet = build_unet()
        self.clip = build_clip(rows)

    def forward(self, x: Tensor, timesteps: Tensor, tokens: Tensor) -> Tensor:
        return self.unet(x, timesteps, self.clip(tokens).last)


class Trainer:
    def __init__(self, seed: int, minutes: float, pool_size: int, used: float = 0.0):
        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        self.captions = Captions(seed)
        vae = build_vae()
        vae.load_state_dict(load_file(VAE_FILE))
        self.pool = Pool(vae.to(memory_format=torch.channels_last), pool_size, seed)
        save_file({"latents": self.pool.latents, "pixels": self.pool.pixels}, POOL_FILE)
        self.model = Model(len(self.captions.rows))
        initialise(self.model, seed)
        structure_unet(self.model.unet)
        self.model.clip.load_state_dict(load_file(CLIP_FILE))
        self.model.unet.to(memory_format=torch.channels_last)
        self.average = Average(self.model, 0.9985)
        matrices, others = [], []
        for name, parameter in self.model.unet.named_parameters():
            inner = parameter.ndim >= 2 and not name.startswith(("input_blocks.0.", "out.", "time_embed"))
            (matrices if inner else others).append(parameter)
        adam = {"lr": PEAK_RATE, "betas": (0.9, 0.99), "weight_decay": 0.0, "fused": True}
        self.optimisers = {
            "matrices": (Muon(matrices), MATRIX_RATE),
            "others": (torch.optim.AdamW(others, **adam), PEAK_RATE),
            "text": (torch.optim.AdamW(self.model.clip.parameters(), **adam), TEXT_RATE),
        }
        self.alphas = alphas_cumprod()
        signal_to_noise = self.alphas / (1 - self.alphas)
        # Between the error of the noise (weight 1) and that of the picture (1 / SNR), bounded for the noisiest steps:
        # composition is decided there, and a plain noise loss hardly looks at it.
        weights = (signal_to_noise + 0.1).rsqrt()
        self.weights = weights / weights.mean()
        self.step = 0
        self.seed = seed
        self.clock = Clock(minutes * 60)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Latents and token ids."""
        chosen = torch.randint(len(self.pool.scenes), (BATCH,))
        texts = []
        for k in chosen.tolist():
            empty = self.rng.random() < EMPTY_SHARE
            texts.append("" if empty else caption(self.pool.scenes[k], self.rng))
        return self.pool.latents[chosen], self.captions(texts, self.rng)

    def loss(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weighted loss; timesteps and unweighted loss per sample for the log."""
        # Stratified: every batch sees the whole range of noise.
        timesteps = ((torch.arange(BATCH) + torch.rand(BATCH)) * (1000 / BATCH)).long().clamp(max=999)
        alpha = self.alphas[timesteps][:, None, None, None]
        noise = torch.randn_like(latents)
        noisy = latents * alpha.sqrt() + noise * (1 - alpha).sqrt()
        noisy = noisy.contiguous(memory_format=torch.channels_last)
        errors = (self.model(noisy, timesteps.float(), tokens) - noise).square().mean(dim=(1, 2, 3))
        return (errors * self.weights[timesteps]).mean(), timesteps, errors.detach()

    def run(self) -> None:
        saved, bands = self.clock.elapsed(), []
        while not self.clock.over():
            value, _, errors = self.loss(*self.batch())
            self.model.zero_grad(set_to_none=True)
            value.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimiser, peak in self.optimisers.values():
                for group in optimiser.param_groups:
                    group["lr"] = learning_rate(peak, self.step, 50, self.clock.share())
                optimiser.step()
            self.average.update(self.model)
            self.step += 1
            bands.append(errors.view(4, -1).mean(1))  # timesteps are in order: four bands of noise
            if self.step % 50 == 0:
                shown = " ".join(f"{v:.4f}" for v in torch.stack(bands).mean(0).tolist())
                print(f"step {self.step} {self.clock.elapsed():.0f} s loss by noise {shown}", flush=True)
                bands.clear()
            if self.step % REFRESH_EVERY == 0:
                self.pool.refresh(REFRESH)
            if self.clock.elapsed() - saved > SAVE_EVERY:
                saved = self.clock.elapsed()
                self.save()
        self.save()

    def save(self) -> None:
        """Write the state to go on from and the averaged model, each in one piece or not at all."""
        facts = {
            "steps": str(self.step),
            "batch": str(BATCH),
            "minutes": f"{self.clock.elapsed() / 60:.0f}",
            "hardware": "two CPU cores",
        }
        state = {
            "model": self.model.state_dict(),
            "average": self.average.values,
            "average_steps": self.average.steps,
            "optimisers": {name: optimiser.state_dict() for name, (optimiser, _) in self.optimisers.items()},
            "step": self.step,
            "elapsed": self.clock.elapsed(),
            "rows": self.captions.rows,
            "seed": self.seed,
            "facts": facts,
        }
        partial = STATE_FILE.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, STATE_FILE)
        # The decoder may have got better in the meantime.
        export(self.average.values, self.captions.rows, load_file(VAE_FILE), EXPORT_FILE, facts, seed=self.seed)

    def restore(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.values, self.average.steps = state["average"], state["average_steps"]
        for name, (optimiser, _) in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"][name])
        self.step = state["step"]
        self.clock = Clock(self.clock.budget, state["elapsed"])
        self.rng = random.Random(self.seed + self.step)
        torch.manual_seed(self.seed + self.step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45, help="of training in all, earlier runs included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", type=int, default=1500, help="pictures encoded before the first step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="start anew although a saved state exists")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    trainer = Trainer(arguments.seed, arguments.minutes, arguments.pool)
    print(f"{len(trainer.captions.rows)} rows of the vocabulary, pool of {arguments.pool}", flush=True)
    trainer.clock = Clock(arguments.minutes * 60)  # encoding the pool does not count
    if STATE_FILE.exists() and not arguments.fresh:
        trainer.restore(STATE_FILE)
        print(f"going on from step {trainer.step}", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
