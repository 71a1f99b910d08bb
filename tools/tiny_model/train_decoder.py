"""Goes on training the decoder alone, against the frozen latents of the pictures the U-Net learns from.

Can run beside `train_unet`, which only needs the encoder to stand still. Latents get a little noise, as sampled ones
are never exact. Updates `work/vae.safetensors`.

    python -m tools.tiny_model.train_decoder --minutes 15
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.tiny_model.networks import LATENT_SCALE, POOL_FILE, VAE_FILE, build_vae
from tools.tiny_model.train_vae import to_signed
from tools.tiny_model.training import Average, Clock, learning_rate

STAGES = ((0.0, 6, 6), (0.5, 16, 1))  # from this share of the time on: side of the latent crops, batch
PEAK_RATE = 1e-3
NOISE = 0.05  # in units of the latents' deviation
SAVE_EVERY = 120.0  # seconds


def batch(latents: Tensor, pixels: Tensor, side: int, count: int) -> tuple[Tensor, Tensor]:
    """Crops of latents (unscaled) with the part of the picture (-1..1) they stand for."""
    some_latents, some_pixels = [], []
    for k in torch.randint(len(latents), (count,)).tolist():
        top, left = torch.randint(latents.shape[-1] - side + 1, (2,)).tolist()
        some_latents.append(latents[k, :, top : top + side, left : left + side])
        some_pixels.append(pixels[k, :, 8 * top : 8 * (top + side), 8 * left : 8 * (left + side)])
    z = torch.stack(some_latents)
    z = z + NOISE * torch.randn_like(z)
    return (z / LATENT_SCALE).contiguous(memory_format=torch.channels_last), to_signed(torch.stack(some_pixels))


def save(vae: nn.Module, average: Average) -> None:
    """Replace the saved autoencoder by the averaged one."""
    state = {name: value.contiguous() for name, value in vae.state_dict().items()} | average.values
    partial = VAE_FILE.with_suffix(".partial")
    save_file({name: value.contiguous() for name, value in state.items()}, partial)
    os.replace(partial, VAE_FILE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    pool = load_file(POOL_FILE)
    latents, pixels = pool["latents"].float(), pool["pixels"]
    vae = build_vae()
    vae.load_state_dict(load_file(VAE_FILE))
    vae = vae.to(memory_format=torch.channels_last)
    vae.encoder.requires_grad_(False)
    vae.quant_conv.requires_grad_(False)
    trained = [p for p in vae.parameters() if p.requires_grad]
    average = Average(vae, 0.98)
    optimiser = torch.optim.AdamW(trained, lr=PEAK_RATE, betas=(0.9, 0.99), weight_decay=0, fused=True)
    clock, step, saved, recent = Clock(arguments.minutes * 60), 0, 0.0, []
    while not clock.over():
        stage = [values for start, *values in STAGES if clock.share() >= start][-1]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(PEAK_RATE, step, 30, clock.share())
        z, x = batch(latents, pixels, *stage)
        again = vae.decode(z)
        squared = F.mse_loss(again, x)
        optimiser.zero_grad(set_to_none=True)
        (squared + F.l1_loss(again, x)).backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        average.update(vae)
        recent.append(squared.item())
        step += 1
        if step % 50 == 0:
            psnr = -10 * torch.tensor(recent).div(4).log10().mean().item()
            print(f"step {step} {clock.elapsed():.0f} s crops {stage[0]} psnr {psnr:.2f}", flush=True)
            recent.clear()
        if clock.elapsed() - saved > SAVE_EVERY:
            saved = clock.elapsed()
            save(vae, average)
    save(vae, average)


if __name__ == "__main__":
    main()
