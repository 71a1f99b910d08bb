"""Makes tests/data/models/video_unet.safetensors: what diffusers' Stable Video Diffusion puts out, network and decoder.

Not a test. Run with the diffusers library (recorded with 0.36) in the path: `python -m
tests.architectures.record_video_unet`. Weights and inputs are drawn, so that only a part of the outputs is stored.
"""

from __future__ import annotations

import re
import sys
import zlib

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from comfy.denoisers.unet import size_vector
from tests.networks.golden import DATA

FILE = DATA / "video_unet.safetensors"
VIDEOS, FRAMES = 2, 5
TOLD = ([5.0, 127.0, 0.02], [7.0, 40.0, 0.0])  # frames per second - 1, motion, augmentation
WIDTHS = (32, 64)

# Patterns of diffusers' names and what the published file calls it; of blocks, see `published_name`.
_RESIDUAL = [
    (r"spatial_res_block\.", ""),
    (r"temporal_res_block\.", "time_stack."),
    (r"\bnorm1\.", "in_layers.0."),
    (r"\bconv1\.", "in_layers.2."),
    (r"\btime_emb_proj\.", "emb_layers.1."),
    (r"\bnorm2\.", "out_layers.0."),
    (r"\bconv2\.", "out_layers.3."),
    (r"\bconv_shortcut\.", "skip_connection."),
]
_TRANSFORMER = [
    (r"temporal_transformer_blocks\.", "time_stack."),
    (r"time_pos_embed\.linear_1\.", "time_pos_embed.0."),
    (r"time_pos_embed\.linear_2\.", "time_pos_embed.2."),
]
_OUTSIDE = [
    (r"^time_embedding\.linear_1\.", "time_embed.0."),
    (r"^time_embedding\.linear_2\.", "time_embed.2."),
    (r"^add_embedding\.linear_1\.", "label_emb.0.0."),
    (r"^add_embedding\.linear_2\.", "label_emb.0.2."),
    (r"^conv_in\.", "input_blocks.0.0."),
    (r"^conv_norm_out\.", "out.0."),
    (r"^conv_out\.", "out.2."),
]
_DECODER = [
    (r"spatial_res_block\.", ""),
    (r"temporal_res_block\.norm1\.", "time_stack.in_layers.0."),
    (r"temporal_res_block\.conv1\.", "time_stack.in_layers.2."),
    (r"temporal_res_block\.norm2\.", "time_stack.out_layers.0."),
    (r"temporal_res_block\.conv2\.", "time_stack.out_layers.3."),
    (r"time_mixer\.", ""),
    (r"conv_shortcut\.", "nin_shortcut."),
    (r"^mid_block\.resnets\.0\.", "mid.block_1."),
    (r"^mid_block\.resnets\.1\.", "mid.block_2."),
    (r"^mid_block\.attentions\.0\.", "mid.attn_1."),
    (r"group_norm\.", "norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"^conv_norm_out\.", "norm_out."),
    (r"^time_conv_out\.", "conv_out.time_mix_conv."),
]


def _replaced(name: str, patterns: list[tuple[str, str]]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def published_name(name: str) -> str:
    """Of a network with two levels of one residual block each."""
    middle = re.match(r"mid_block\.(resnets|attentions)\.(\d)\.(.+)", name)
    if middle and middle[1] == "resnets":
        return f"middle_block.{2 * int(middle[2])}.{_replaced(middle[3], _RESIDUAL)}"
    if middle:
        return f"middle_block.1.{_replaced(middle[3], _TRANSFORMER)}"
    found = re.match(r"(down|up)_blocks\.(\d)\.(resnets|attentions|downsamplers|upsamplers)\.(\d)\.(.+)", name)
    if found is None:
        return _replaced(name, _OUTSIDE)
    way, level, kind, index, rest = found[1], int(found[2]), found[3], int(found[4]), found[5]
    block = f"input_blocks.{1 + 2 * level + index}" if way == "down" else f"output_blocks.{2 * level + index}"
    if kind == "resnets":
        return f"{block}.0.{_replaced(rest, _RESIDUAL)}"
    if kind == "attentions":
        return f"{block}.1.{_replaced(rest, _TRANSFORMER)}"
    if kind == "downsamplers":
        return f"input_blocks.{2 + 2 * level}.0.op.{rest.removeprefix('conv.')}"
    return f"output_blocks.{2 * level + 1}.1.{rest}"


def published_decoder_name(name: str) -> str:
    """Of a decoder with two levels."""
    found = re.match(r"up_blocks\.(\d)\.(resnets|upsamplers)\.(\d)\.(.+)", name)
    if found is None:
        return f"decoder.{_replaced(name, _DECODER)}"
    level = f"decoder.up.{1 - int(found[1])}"
    rest = _replaced(found[4], _DECODER)
    return f"{level}.block.{found[3]}.{rest}" if found[2] == "resnets" else f"{level}.upsample.{rest}"


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Drawn by the published name; norms near 1."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if name.endswith(".bias"):
        return noise * 0.1
    if noise.ndim > 1:
        return noise / noise[0].numel() ** 0.5
    return noise if name.endswith("mix_factor") else 1 + 0.1 * noise


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy videos with the picture's latent in their last channels [videos, frames, 8, 8, 12], timesteps [videos],
    context [videos, 1, 24], and a latent for the decoder [3, 4, 6, 5]."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(VIDEOS, FRAMES, 8, 8, 12, generator=generator)
    context = torch.randn(VIDEOS, 1, 24, generator=generator)
    return x, torch.tensor([0.7, -0.4]), context, torch.randn(3, 4, 6, 5, generator=generator)


def vector() -> Tensor:
    """What the network is told beside the picture [videos, 768]."""
    return torch.cat([size_vector(torch.zeros(1, 0), numbers) for numbers in TOLD])


def part(out: Tensor) -> Tensor:
    """What is stored of an output."""
    return out[..., ::2, 1::2].contiguous()


def _with_drawn_weights(net: nn.Module, named: dict[str, str]) -> nn.Module:
    values = {}
    for theirs, tensor in net.state_dict().items():
        ours = named[theirs]
        # The published decoder's attention is made of convolutions.
        shape = (*tensor.shape, 1, 1) if ".attn_1." in ours and tensor.ndim == 2 else tensor.shape
        values[theirs] = weight(ours, shape).reshape(tensor.shape)
    net.load_state_dict(values)
    return net.eval()


def main() -> None:
    from diffusers import AutoencoderKLTemporalDecoder, UNetSpatioTemporalConditionModel

    net = UNetSpatioTemporalConditionModel(
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        block_out_channels=WIDTHS,
        layers_per_block=1,
        cross_attention_dim=24,
        num_attention_heads=(2, 4),
        num_frames=FRAMES,
    )
    net = _with_drawn_weights(net, {name: published_name(name) for name in net.state_dict()})
    for name, module in net.named_modules():
        if isinstance(module, nn.GroupNorm):  # in the library some are others than in the published code
            module.eps = 1e-6 if re.search(r"attentions\.\d\.norm$", name) else 1e-5
    x, timesteps, context, latent = inputs()
    network = net(x, timesteps, context, torch.tensor(TOLD)).sample

    blocks = ("DownEncoderBlock2D", "DownEncoderBlock2D")
    vae = AutoencoderKLTemporalDecoder(block_out_channels=WIDTHS, layers_per_block=2, down_block_types=blocks)
    names = {name: published_decoder_name(name) for name in vae.decoder.state_dict()}
    decoder = _with_drawn_weights(vae.decoder, names)
    picture = decoder(latent, image_only_indicator=torch.zeros(1, 3), num_frames=3)

    save_file({"network": part(network), "decoder": part(picture)}, FILE)
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
