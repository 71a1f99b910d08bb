"""Empty latents for the families of models that need other shapes than Stable Diffusion 1."""

from __future__ import annotations

import torch

import comfy.model_management
from comfy_api.latest import io

from .constants import MAX_RESOLUTION


def empty(*shape: int, **keys: object) -> dict:
    """A LATENT of zeros where tensors between nodes live."""
    return {"samples": torch.zeros(shape, device=comfy.model_management.intermediate_device()), **keys}


def video_frames(length: int, per_latent: int = 4) -> int:
    """Latent frames of a video: one for the first frame, then one for each `per_latent` frames."""
    return (length - 1) // per_latent + 1


class EmptySD3LatentImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptySD3LatentImage",
            category="model/latent/stable diffusion",
            description=("Empty latents for models with 16 channels, such as Stable Diffusion 3 and FLUX."),
            inputs=[
                io.Int.Input(
                    "width",
                    tooltip="Width of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 16, height // 8, width // 8, downscale_ratio_spacial=8))


class EmptyFlux2LatentImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyFlux2LatentImage",
            display_name="Empty Flux 2 Latent",
            category="model/latent/flux",
            description="Empty latents for FLUX.2.",
            inputs=[
                io.Int.Input(
                    "width",
                    tooltip="Width of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 128, height // 16, width // 16))


class EmptyHunyuanImageLatent(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyHunyuanImageLatent",
            category="model/latent/hunyuan image",
            description="Empty latents for HunyuanImage.",
            inputs=[
                io.Int.Input(
                    "width",
                    tooltip="Width of the picture in pixels.",
                    default=2048,
                    min=64,
                    max=MAX_RESOLUTION,
                    step=32,
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=2048,
                    min=64,
                    max=MAX_RESOLUTION,
                    step=32,
                ),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 64, height // 32, width // 32))


class EmptyChromaRadianceLatentImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyChromaRadianceLatentImage",
            category="model/latent/chroma radiance",
            description="Empty latents for Chroma Radiance, which works on pixels.",
            inputs=[
                io.Int.Input(
                    "width",
                    tooltip="Width of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=1024,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 3, height, width))


class EmptyHunyuanLatentVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyHunyuanLatentVideo",
            display_name="Empty HunyuanVideo 1.0 Latent",
            category="model/latent/hunyuan video",
            description="Empty latents for videos of HunyuanVideo and Wan.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the video in pixels.", default=848, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input(
                    "height", tooltip="Height of the video in pixels.", default=480, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input("length", tooltip="Number of frames.", default=25, min=1, max=MAX_RESOLUTION, step=4),
                io.Int.Input("batch_size", tooltip="How many videos to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, length: int, batch_size: int = 1) -> io.NodeOutput:
        shape = (batch_size, 16, video_frames(length), height // 8, width // 8)
        return io.NodeOutput(empty(*shape, downscale_ratio_spacial=8))


class EmptyHunyuanVideo15Latent(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyHunyuanVideo15Latent",
            display_name="Empty HunyuanVideo 1.5 Latent",
            category="model/latent/hunyuan video",
            description="Empty latents for HunyuanVideo 1.5.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the video in pixels.", default=848, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input(
                    "height", tooltip="Height of the video in pixels.", default=480, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input("length", tooltip="Number of frames.", default=25, min=1, max=MAX_RESOLUTION, step=4),
                io.Int.Input("batch_size", tooltip="How many videos to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, length: int, batch_size: int = 1) -> io.NodeOutput:
        shape = (batch_size, 32, video_frames(length), height // 16, width // 16)
        return io.NodeOutput(empty(*shape, downscale_ratio_spacial=16))


class EmptyLTXVLatentVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyLTXVLatentVideo",
            category="model/latent/ltxv",
            description="Empty latents for LTX-Video.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the video in pixels.", default=768, min=64, max=MAX_RESOLUTION, step=32
                ),
                io.Int.Input(
                    "height", tooltip="Height of the video in pixels.", default=512, min=64, max=MAX_RESOLUTION, step=32
                ),
                io.Int.Input("length", tooltip="Number of frames.", default=97, min=1, max=MAX_RESOLUTION, step=8),
                io.Int.Input("batch_size", tooltip="How many videos to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, length: int, batch_size: int = 1) -> io.NodeOutput:
        shape = (batch_size, 128, video_frames(length, 8), height // 32, width // 32)
        return io.NodeOutput(empty(*shape, downscale_ratio_spacial=32))


class EmptyCosmosLatentVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyCosmosLatentVideo",
            category="model/latent/cosmos",
            description="Empty latents for Cosmos.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the video in pixels.", default=1280, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input(
                    "height", tooltip="Height of the video in pixels.", default=704, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input("length", tooltip="Number of frames.", default=121, min=1, max=MAX_RESOLUTION, step=8),
                io.Int.Input("batch_size", tooltip="How many videos to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, length: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 16, video_frames(length, 8), height // 8, width // 8))


class EmptyMochiLatentVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyMochiLatentVideo",
            category="model/latent/mochi",
            description="Empty latents for Mochi.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the video in pixels.", default=848, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input(
                    "height", tooltip="Height of the video in pixels.", default=480, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input("length", tooltip="Number of frames.", default=25, min=7, max=MAX_RESOLUTION, step=6),
                io.Int.Input("batch_size", tooltip="How many videos to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, length: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 12, video_frames(length, 6), height // 8, width // 8))


class EmptyQwenImageLayeredLatentImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyQwenImageLayeredLatentImage",
            display_name="Empty Qwen Image Layered Latent",
            category="model/latent/qwen",
            description="Empty latents for pictures in layers, of Qwen-Image Layered.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the picture in pixels.", default=640, min=16, max=MAX_RESOLUTION, step=16
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=640,
                    min=16,
                    max=MAX_RESOLUTION,
                    step=16,
                ),
                io.Int.Input("layers", tooltip="Number of layers.", default=3, min=0, max=MAX_RESOLUTION, step=1),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, layers: int, batch_size: int = 1) -> io.NodeOutput:
        # One more for the whole picture.
        return io.NodeOutput(empty(batch_size, 16, layers + 1, height // 8, width // 8))


class EmptyHiDreamO1LatentImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyHiDreamO1LatentImage",
            display_name="Empty HiDream-O1 Latent Image",
            category="model/latent/hidream",
            description="Empty latents for HiDream-O1, which works on pixels.",
            inputs=[
                io.Int.Input(
                    "width", tooltip="Width of the picture in pixels.", default=2048, min=64, max=4096, step=32
                ),
                io.Int.Input(
                    "height", tooltip="Height of the picture in pixels.", default=2048, min=64, max=4096, step=32
                ),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=64),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 3, height, width))


class EmptyLatentAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyLatentAudio",
            display_name="Empty Latent Audio",
            category="model/latent",
            description="Empty latents for Stable Audio.",
            essentials_category="Audio",
            inputs=[
                io.Float.Input("seconds", tooltip="Length.", default=47.6, min=1.0, max=1000.0, step=0.1),
                io.Int.Input("batch_size", tooltip="How many to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, seconds: float, batch_size: int) -> io.NodeOutput:
        # The model needs an even number of frames, of 2048 samples at 44.1 kHz each.
        length = round(seconds * 44100 / 2048 / 2) * 2
        return io.NodeOutput(empty(batch_size, 64, length, type="audio", downscale_ratio_temporal=2048))


class EmptyAceStepLatentAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyAceStepLatentAudio",
            display_name="Empty Ace Step 1.0 Latent Audio",
            category="model/latent/ace",
            description="Empty latents for ACE-Step 1.0.",
            inputs=[
                io.Float.Input("seconds", tooltip="Length.", default=120.0, min=1.0, max=1000.0, step=0.1),
                io.Int.Input("batch_size", tooltip="How many to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, seconds: float, batch_size: int) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 8, 16, int(seconds * 44100 / 512 / 8), type="audio"))


class EmptyAceStep1_5LatentAudio(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyAceStep1.5LatentAudio",
            display_name="Empty Ace Step 1.5 Latent Audio",
            category="model/latent/ace",
            description="Empty latents for ACE-Step 1.5.",
            inputs=[
                io.Float.Input("seconds", tooltip="Length.", default=120.0, min=1.0, max=1000.0, step=0.01),
                io.Int.Input("batch_size", tooltip="How many to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, seconds: float, batch_size: int) -> io.NodeOutput:
        length = round(seconds * 48000 / 1920)
        return io.NodeOutput(empty(batch_size, 64, length, type="audio", downscale_ratio_temporal=1764))


class EmptyARVideoLatent(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyARVideoLatent",
            category="model/latent/autoregressive",
            description="Empty latents for videos made frame after frame.",
            inputs=[
                io.Int.Input("width", tooltip="Width of the video in pixels.", default=832, min=16, max=8192, step=16),
                io.Int.Input(
                    "height", tooltip="Height of the video in pixels.", default=480, min=16, max=8192, step=16
                ),
                io.Int.Input("length", tooltip="Number of frames.", default=81, min=1, max=1024, step=4),
                io.Int.Input("batch_size", tooltip="How many videos to make at once.", default=1, min=1, max=64),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, width: int, height: int, length: int, batch_size: int) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 16, video_frames(length), height // 8, width // 8))


class StableCascade_EmptyLatentImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StableCascade_EmptyLatentImage",
            category="model/latent/stable cascade",
            description="Empty latents for both stages of Stable Cascade.",
            inputs=[
                io.Int.Input(
                    "width",
                    tooltip="Width of the picture in pixels.",
                    default=1024,
                    min=256,
                    max=MAX_RESOLUTION,
                    step=8,
                ),
                io.Int.Input(
                    "height",
                    tooltip="Height of the picture in pixels.",
                    default=1024,
                    min=256,
                    max=MAX_RESOLUTION,
                    step=8,
                ),
                io.Int.Input(
                    "compression",
                    tooltip="How many pixels a cell of stage C stands for.",
                    advanced=True,
                    default=42,
                    min=4,
                    max=128,
                    step=1,
                ),
                io.Int.Input("batch_size", tooltip="How many pictures to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output(display_name="stage_c"), io.Latent.Output(display_name="stage_b")],
        )

    @classmethod
    def execute(cls, width: int, height: int, compression: int, batch_size: int = 1) -> io.NodeOutput:
        return io.NodeOutput(
            empty(batch_size, 16, height // compression, width // compression),
            empty(batch_size, 4, height // 4, width // 4),
        )


class EmptyLatentHunyuan3Dv2(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyLatentHunyuan3Dv2",
            category="model/latent/hunyuan 3d",
            description="Empty latents for shapes of Hunyuan3D 2.",
            inputs=[
                io.Int.Input("resolution", tooltip="Number of tokens.", default=3072, min=1, max=8192),
                io.Int.Input("batch_size", tooltip="How many shapes to make at once.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, resolution: int, batch_size: int) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 64, resolution, type="hunyuan3dv2"))


class EmptyTrellis2LatentStructure(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="EmptyTrellis2LatentStructure",
            category="model/latent/trellis",
            description="Empty latents for shapes of Trellis 2.",
            inputs=[io.Int.Input("batch_size", tooltip="How many shapes to make at once.", default=1, min=1, max=4096)],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, batch_size: int) -> io.NodeOutput:
        return io.NodeOutput(empty(batch_size, 32, 16, 16, 16, type="trellis2"))


NODES = {
    "comfy_extras.nodes_sd3": [EmptySD3LatentImage],
    "comfy_extras.nodes_flux": [EmptyFlux2LatentImage],
    "comfy_extras.nodes_hunyuan": [EmptyHunyuanImageLatent, EmptyHunyuanLatentVideo, EmptyHunyuanVideo15Latent],
    "comfy_extras.nodes_chroma_radiance": [EmptyChromaRadianceLatentImage],
    "comfy_extras.nodes_lt": [EmptyLTXVLatentVideo],
    "comfy_extras.nodes_cosmos": [EmptyCosmosLatentVideo],
    "comfy_extras.nodes_mochi": [EmptyMochiLatentVideo],
    "comfy_extras.nodes_qwen": [EmptyQwenImageLayeredLatentImage],
    "comfy_extras.nodes_hidream_o1": [EmptyHiDreamO1LatentImage],
    "comfy_extras.nodes_audio": [EmptyLatentAudio],
    "comfy_extras.nodes_ace": [EmptyAceStepLatentAudio, EmptyAceStep1_5LatentAudio],
    "comfy_extras.nodes_ar_video": [EmptyARVideoLatent],
    "comfy_extras.nodes_stable_cascade": [StableCascade_EmptyLatentImage],
    "comfy_extras.nodes_hunyuan3d": [EmptyLatentHunyuan3Dv2],
    "comfy_extras.nodes_trellis2": [EmptyTrellis2LatentStructure],
}
