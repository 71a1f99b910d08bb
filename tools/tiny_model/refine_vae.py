"""Goes on training the autoencoder where it is weakest: crops with shapes in them, thin tips, specks in plain areas.

With `--decoder-only` the encoder stands still; that can run beside `train_unet`, against the saved latents of its
pictures, and does not touch what the U-Net has learnt. Latents get a little noise, as sampled ones are never exact.
Updates `work/vae.safetensors`.

    python -m tools.tiny_model.refine_vae --minutes 14
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.tiny_model.networks import LATENT_SCALE, POOL_FILE, VAE_FILE, build_vae
from tools.tiny_model.train_vae import pictures, psnr, to_signed, whiten
from tools.tiny_model.training import Average, Clock, Muon, learning_rate

STAGES = ((0.0, 8, 4), (0.55, 16, 1))  # from this share of the time on: side of the crops in latents, batch
NOISE = 0.05  # in units of the latents' deviation
HARDEST, HARDEST_WEIGHT = 0.005, 0.02  # this share of the pixels counts more
SAVE_EVERY = 120.0  # seconds


def crops(pixels: Tensor, latents: Tensor | None, chosen: Tensor, side: int) -> tuple[Tensor, Tensor | None]:
    """Crops of the chosen pictures (-1..1), not plain ones, and of their latents (unscaled); `side` in latents."""
    some_pixels, some_latents = [], []
    for k in chosen.tolist():
        for _ in range(6):
            top, left = torch.randint(pixels.shape[-1] // 8 - side + 1, (2,)).tolist()
            crop = pixels[k, :, 8 * top : 8 * (top + side), 8 * left : 8 * (left + side)]
            if (crop != crop[:, :1, :1]).any():
                break
        some_pixels.append(crop)
        if latents is not None:
            some_latents.append(latents[k, :, top : top + side, left : left + side])
    x = to_signed(torch.stack(some_pixels))
    if latents is None:
        return x, None
    return x, (torch.stack(some_latents) / LATENT_SCALE).contiguous(memory_format=torch.channels_last)


def loss(again: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Training loss, the mean squared error it contains, and per picture the error of its hardest pixels."""
    squares = (again - x).square()
    squared = squares.mean()
    per_pixel = squares.mean(1).flatten(1)
    hardest = per_pixel.topk(max(1, int(HARDEST * per_pixel.shape[1])), dim=1).values.mean(1)
    return F.l1_loss(again, x) + squared + HARDEST_WEIGHT * hardest.mean(), squared.detach(), hardest.detach()


def save(vae: nn.Module, average: Average) -> None:
    """Replace the saved autoencoder by the averaged one."""
    state = vae.state_dict() | average.values
    partial = VAE_FILE.with_suffix(".partial")
    save_file({name: value.contiguous() for name, value in state.items()}, partial)
    os.replace(partial, VAE_FILE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=14)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-4, help="peak learning rate of Adam")
    parser.add_argument("--matrix-rate", type=float, default=3e-3, help="peak learning rate of Muon")
    parser.add_argument("--decoder-only", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    vae = build_vae()
    vae.load_state_dict(load_file(VAE_FILE))
    vae = vae.to(memory_format=torch.channels_last)
    latents = None
    if arguments.decoder_only:
        pool = load_file(POOL_FILE)
        pixels, latents = pool["pixels"], pool["latents"]
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    else:
        pixels = pictures(4000, arguments.seed)
    trained = {name: p for name, p in vae.named_parameters() if p.requires_grad}
    matrices = [p for name, p in trained.items() if p.ndim > 1 and "conv_in" not in name and "conv_out" not in name]
    others = [p for p in trained.values() if all(p is not m for m in matrices)]
    average, difficulty = Average(vae, 0.98), torch.ones(len(pixels))
    optimisers = (
        (Muon(matrices), arguments.matrix_rate),
        (torch.optim.AdamW(others, betas=(0.9, 0.99), weight_decay=0, fused=True), arguments.rate),
    )
    clock, step, saved, recent = Clock(arguments.minutes * 60), 0, 0.0, []
    while not clock.over():
        stage = [values for start, *values in STAGES if clock.share() >= start][-1]
        side, count = stage
        # Pictures that came out badly the last time (small stars, mostly) come up more often.
        chosen = torch.multinomial(difficulty + difficulty.mean(), count)
        x, z = crops(pixels, latents, chosen, side)
        if z is None:
            z = vae.encode(x)
        value, squared, hardest = loss(vae.decode(z + NOISE / LATENT_SCALE * torch.randn_like(z)), x)
        vae.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(trained.values(), 1.0)
        for optimiser, peak in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(peak, step, 50, clock.share())
            optimiser.step()
        average.update(vae)
        difficulty[chosen] = hardest
        recent.append(squared.item())
        step += 1
        if step % 50 == 0:
            db = -10 * torch.tensor(recent).div(4).log10().mean().item()
            print(f"step {step} {clock.elapsed():.0f} s crops {side} psnr {db:.2f}", flush=True)
            recent.clear()
        if arguments.decoder_only and clock.elapsed() - saved > SAVE_EVERY:
            saved = clock.elapsed()
            save(vae, average)
    if not arguments.decoder_only:
        average.copy_to(vae)
        whiten(vae, pictures(200, arguments.seed + 1))
        average = Average(vae, 0.0)
        POOL_FILE.unlink(missing_ok=True)  # its latents are of another encoder
    save(vae, average)
    print(f"held-out psnr {psnr(vae, pictures(40, 12345)):.2f} dB", flush=True)


if __name__ == "__main__":
    main()
