"""Starting values: the networks of `comfy` are built empty, for weights that come from a file.

Group normalisation with 32 groups removes much from networks as narrow as these. In 64 channels a group has two,
and of a plain area only the sign of their difference is left: a plain picture has lost its colour. Two things
preserve it, and `structure_vae` starts the autoencoder with both: the two channels of a group carry a signal and its
negative (the mean of the group does not depend on it), and both carry the same strong pattern (the deviation of the
group does not depend on it either). The pattern is the frame that zero padding draws around the feature map. The
U-Net needs no such help: the noise in its input is the pattern.
"""

from __future__ import annotations

import math

import torch
from torch import nn

# Last layers of residual branches (and of the noise predictor): they start at zero, so every block starts as the
# identity, which is what makes a deep network train from the first step (Goyal et al. 2017, section 5.1).
ZERO_SUFFIXES = (
    "out_layers.3.weight",  # U-Net residual blocks
    "proj_out.weight",  # U-Net transformers, VAE attention
    "out.2.weight",  # U-Net output
    "conv2.weight",  # VAE residual blocks
)


@torch.no_grad()
def initialise(module: nn.Module, seed: int, embedding_std: float = 0.02) -> None:
    """Fill every parameter of `module` in place, reproducibly.

    Matrices and filters: uniform within 1/sqrt(fan in), PyTorch's own default; norms: identity; biases: zero;
    embeddings: normal.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if name.endswith(ZERO_SUFFIXES) or name.endswith(".bias"):
            parameter.zero_()
        elif "embedding" in name:
            parameter.normal_(0.0, embedding_std, generator=generator)
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            bound = 1 / math.sqrt(parameter[0].numel())
            parameter.uniform_(-bound, bound, generator=generator)


PATTERN = 3.0  # amplitude of the frame, against signals of about 1


@torch.no_grad()
def structure_vae(vae: nn.Module, seed: int) -> None:
    """Starting values for an autoencoder of 64 channels throughout, after `initialise`: it begins as an average over
    8 x 8 blocks and its inverse, with colours kept by the pattern described above."""
    generator = torch.Generator().manual_seed(seed)
    for level in vae.encoder.down:
        if hasattr(level, "downsample"):
            _set_taps(level.downsample.conv, {(0, 0): 0.25, (0, 1): 0.25, (1, 0): 0.25, (1, 1): 0.25})
    for level in vae.decoder.up:
        if hasattr(level, "upsample"):
            _set_taps(level.upsample.conv, {(1, 1): 1.0})
    for conv in (vae.encoder.conv_in, vae.decoder.conv_in):
        half = conv.weight.shape[0] // 2
        conv.weight[:half] *= 0.5
        conv.weight[:half, :, 1, 1] = torch.randn(half, conv.weight.shape[1], generator=generator)
        conv.weight[1::2] = -conv.weight[::2]
    for middle in (vae.encoder.mid, vae.decoder.mid):
        _draw_frame(middle.block_1)
    for norm in (vae.encoder.norm_out, vae.decoder.norm_out):
        norm.bias.fill_(1.5)  # where SiLU is nearly linear
    vae.quant_conv.bias[4:] = -5.0  # log-variance: little noise at first


def _set_taps(conv: nn.Module, taps: dict[tuple[int, int], float]) -> None:
    """Every channel to itself, through the given taps."""
    conv.weight.zero_()
    channels = torch.arange(conv.weight.shape[0])
    for (row, column), value in taps.items():
        conv.weight[channels, channels, row, column] = value


def _draw_frame(block: nn.Module) -> None:
    """Make a residual block add the frame to all channels: its first channel is a constant in front of the first
    convolution, whose padding cuts it at the border; the second convolution spreads the result."""
    block.norm1.weight[0], block.norm1.bias[0] = 0.0, 2.0
    block.conv1.weight[0] = 0.0
    block.conv1.weight[0, 0] = 1 / 9
    block.conv2.weight[:, 0, 1, 1] = PATTERN


@torch.no_grad()
def structure_unet(unet: nn.Module) -> None:
    """Starting values for the U-Net, after `initialise`: its output begins as its input, for in the noisiest steps,
    where pictures are composed, the input is the noise, nearly. The way is that of the first skip: each latent
    channel and its negative make a group of the last norm, in whose nearly linear range SiLU is kept by the bias."""
    first, last = unet.input_blocks[0][0], unet.output_blocks[-1][0].skip_connection
    norm, out = unet.out[0], unet.out[2]
    channels = first.weight.shape[1]
    deep = last.weight.shape[1] - first.weight.shape[0]
    slope = 1.05
    for k in range(2 * channels):
        sign = 1.0 if k % 2 == 0 else -1.0
        first.weight[k] = 0.0
        first.weight[k, k // 2, 1, 1] = sign
        last.weight[k] = 0.0
        last.weight[k, deep + k] = 1.0
        norm.bias[k] = 3.0
        out.weight[k // 2, k, 1, 1] = sign / (2 * slope)
