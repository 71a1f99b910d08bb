"""Trains the autoencoder: 128 x 128 x 3 pictures to 16 x 16 x 4 latents and back (Kingma & Welling 2014).

The first steps see small crops (sixteen times as many pictures for the same work), the last ones whole pictures, so
that attention and group statistics meet the sizes they are used at. Writes `work/vae.safetensors` (float32), with
the latents already whitened: times 0.18215 they have mean 0 and standard deviation 1 in every channel.

    python -m tools.tiny_model.train_vae --minutes 12
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.tiny_model.data import draw, sample_scene
from tools.tiny_model.init import initialise, structure_vae
from tools.tiny_model.networks import LATENT_SCALE, POOL_FILE, VAE_FILE, WORK, build_vae
from tools.tiny_model.shapes import PICTURE
from tools.tiny_model.training import Average, Clock, learning_rate

STAGES = ((0.0, 32, 16), (0.45, 64, 5), (0.75, 128, 2))  # from this share of the time on: side of the crops, batch
PEAK_RATE = 1.5e-3
KL_WEIGHT = 5e-4  # per latent value, against an error per pixel value: leaves a noise of a few percent in the latents


def pictures(count: int, seed: int) -> Tensor:
    """`count` drawn pictures, uint8 [count, 3, 128, 128]."""
    rng = random.Random(seed)
    out = torch.empty(count, 3, PICTURE, PICTURE, dtype=torch.uint8)
    for k in range(count):
        out[k] = torch.from_numpy(np.array(draw(sample_scene(rng), rng))).permute(2, 0, 1)
    return out


def to_signed(pixels: Tensor) -> Tensor:
    """uint8 pixels to the float range -1..1 the network works in."""
    return (pixels.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def loss(vae: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Training loss, and the mean squared error it contains."""
    mean, logvar = vae.moments(x)
    logvar = logvar.clamp(-20, 4)
    again = vae.decode(mean + torch.randn_like(mean) * (0.5 * logvar).exp())
    squared = F.mse_loss(again, x)
    divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    return F.l1_loss(again, x) + squared + KL_WEIGHT * divergence, squared.detach()


def _regress(features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [out, in] and bias [out] of the linear map (ridge regression) between feature maps of equal size."""
    x, y = (t.permute(0, 2, 3, 1).reshape(-1, t.shape[1]).double() for t in (features, targets))
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    ridge = 1e-6 * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(x.T @ x + ridge, x.T @ y).T
    return weight.float(), (y_mean - weight @ x_mean).float()


@torch.no_grad()
def fit_colours(vae: nn.Module, pixels: Tensor) -> None:
    """Set the last convolutions of encoder and decoder by regression on `pixels` (uint8): three latents start as the
    colour of their 8 x 8 block, and the decoder starts as its inverse."""
    x = to_signed(pixels)
    for conv in (vae.quant_conv, vae.post_quant_conv):
        conv.weight.copy_(torch.eye(conv.weight.shape[0])[:, :, None, None])
    h = vae.encoder.conv_in(x)
    for level in vae.encoder.down:
        h = level(h)
    h = F.silu(vae.encoder.norm_out(vae.encoder.mid(h)))
    last = vae.encoder.conv_out
    last.weight[:3] = 0
    last.weight[:3, :, 1, 1], last.bias[:3] = _regress(h, F.avg_pool2d(x, 8))

    h = vae.decoder.mid(vae.decoder.conv_in(vae.encode(x)))
    for level in reversed(vae.decoder.up):
        h = level(h)
    h = F.silu(vae.decoder.norm_out(h))
    last = vae.decoder.conv_out
    last.weight.zero_()
    last.weight[:, :, 1, 1], last.bias[:] = _regress(h[..., 1::4, 1::4], x[..., 1::4, 1::4])


@torch.no_grad()
def whiten(vae: nn.Module, pixels: Tensor) -> None:
    """Fold shift and scale of the latents of `pixels` (uint8) into quant_conv and post_quant_conv.

    Afterwards latents times LATENT_SCALE have mean 0 and deviation 1 per channel, and pictures are unchanged.
    """
    latents = torch.cat([vae.moments(to_signed(part))[0] for part in pixels.split(50)])
    shift = latents.mean(dim=(0, 2, 3))
    scale = latents.std(dim=(0, 2, 3)) * LATENT_SCALE
    channels = len(shift)
    into, back = vae.quant_conv, vae.post_quant_conv
    into.weight[:channels] /= scale[:, None, None, None]
    into.bias[:channels] = (into.bias[:channels] - shift) / scale
    into.bias[channels:] -= 2 * scale.log()
    back.bias += back.weight[:, :, 0, 0] @ shift
    back.weight *= scale[None, :, None, None]


@torch.no_grad()
def psnr(vae: nn.Module, pixels: Tensor) -> float:
    """Peak signal to noise ratio in dB of whole pictures through the means of their latents."""
    errors = []
    for part in pixels.split(25):
        x = to_signed(part)
        again = vae(x).clamp(-1, 1)
        errors.append(((again - x) / 2).square().mean(dim=(1, 2, 3)))
    return float((-10 * torch.cat(errors).log10()).mean())


def batch(pool: Tensor, side: int, count: int) -> Tensor:
    """Random square crops of the pictures; plain ones, which have little to teach, are mostly drawn again."""
    crops = []
    for _ in range(count):
        for _ in range(3):
            k = int(torch.randint(len(pool), ()))
            top, left = torch.randint(PICTURE - side + 1, (2,)).tolist()
            crop = pool[k, :, top : top + side, left : left + side]
            if (crop != crop[:, :1, :1]).any():
                break
        crops.append(crop)
    return to_signed(torch.stack(crops))


def train(minutes: float, seed: int) -> nn.Module:
    """The averaged, whitened autoencoder after `minutes` of training."""
    torch.manual_seed(seed)
    vae = build_vae()
    initialise(vae, seed)
    structure_vae(vae, seed)
    fit_colours(vae, pictures(64, seed + 3))
    vae = vae.to(memory_format=torch.channels_last)
    pool, held_out = pictures(4000, seed), pictures(100, seed + 1)
    average = Average(vae, 0.99)
    optimiser = torch.optim.AdamW(vae.parameters(), lr=PEAK_RATE, betas=(0.9, 0.99), weight_decay=0, fused=True)
    clock, step, recent = Clock(minutes * 60), 0, []
    while not clock.over():
        stage = [values for start, *values in STAGES if clock.share() >= start][-1]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(PEAK_RATE, step, 50, clock.share())
        value, squared = loss(vae, batch(pool, *stage))
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimiser.step()
        average.update(vae)
        recent.append(squared.item())
        step += 1
        if step % 50 == 0:
            db = -10 * np.log10(np.mean(recent) / 4)
            print(
                f"step {step} {clock.elapsed():.0f} s crops {stage[0]} loss {value.item():.4f} train psnr {db:.2f}",
                flush=True,
            )
            recent.clear()
    average.copy_to(vae)
    print(f"{step} steps, held-out psnr {psnr(vae, held_out):.2f} dB", flush=True)
    whiten(vae, pictures(1000, seed + 2))
    print(f"after whitening {psnr(vae, held_out):.2f} dB", flush=True)
    return vae


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    WORK.mkdir(exist_ok=True)
    started = time.time()
    vae = train(arguments.minutes, arguments.seed)
    save_file({k: v.contiguous() for k, v in vae.state_dict().items()}, VAE_FILE)
    POOL_FILE.unlink(missing_ok=True)  # its latents are of another encoder
    print(f"{time.time() - started:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
