"""Nodes for models that start from a picture alone: checkpoints without text encoders, and views of a thing."""

from __future__ import annotations

from typing import Any

import folder_paths
from comfy_api.latest import io

from .constants import MAX_RESOLUTION
from .model_saving import HIDDEN, WeightFiles, _prefix_input, _Saver
from .vae import check_vae

CELL = 8


class ImageOnlyCheckpointLoader:
    DESCRIPTION = "Loads a checkpoint that has an image encoder in place of a text encoder."
    DISPLAY_NAME = "Load Checkpoint Image Only (img2vid model)"
    CATEGORY = "model/loaders"
    RETURN_TYPES = ("MODEL", "CLIP_VISION", "VAE")
    FUNCTION = "load_checkpoint"

    @classmethod
    def INPUT_TYPES(cls):
        names = folder_paths.get_filename_list("checkpoints")
        return {"required": {"ckpt_name": (names, {"tooltip": "File to load."})}}

    def load_checkpoint(self, ckpt_name: str) -> tuple[Any, Any, Any]:
        import comfy.sd

        path = folder_paths.get_full_path_or_raise("checkpoints", ckpt_name)
        model, _, vae, vision = comfy.sd.load_checkpoint_guess_config(
            path,
            output_clip=False,
            output_clipvision=True,
            embedding_directory=folder_paths.get_folder_paths("embeddings"),
        )
        return (model, vision, vae)


class ImageOnlyCheckpointSave(_Saver):
    DESCRIPTION = "Writes model, image encoder and VAE as one checkpoint into the output folder."
    DISPLAY_NAME = "ImageOnlyCheckpointSave"
    SEARCH_ALIASES = ["save image only checkpoint"]

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "Model to write."}),
                "clip_vision": ("CLIP_VISION", {"tooltip": "Image encoder to write."}),
                "vae": ("VAE", {"tooltip": "VAE to write."}),
                "filename_prefix": _prefix_input("checkpoints/ComfyUI"),
            },
            "hidden": HIDDEN,
        }

    def save(
        self,
        model: Any,
        clip_vision: Any,
        vae: Any,
        filename_prefix: str,
        prompt: Any = None,
        extra_pnginfo: Any = None,
    ) -> dict:
        files = WeightFiles(filename_prefix, self.output_dir, prompt, extra_pnginfo)
        files.write(model.state_dict_for_saving(None, vae.get_sd(), clip_vision.get_sd()))
        return {}


def filling(image: Any, width: int, height: int) -> Any:
    """A picture [batch, height, width, channels] cut and resized to that size, its colours alone."""
    import comfy.utils

    return comfy.utils.common_upscale(image.movedim(-1, 1), width, height, "bilinear", "center").movedim(1, -1)[..., :3]


class SVD_img2vid_Conditioning:
    DESCRIPTION = "Shows Stable Video Diffusion the picture that a video is to begin with."
    DISPLAY_NAME = "SVD_img2vid_Conditioning"
    CATEGORY = "model/conditioning/stable video"
    RETURN_TYPES = ("CONDITIONING", "CONDITIONING", "LATENT")
    RETURN_NAMES = ("positive", "negative", "latent")
    FUNCTION = "encode"

    @classmethod
    def INPUT_TYPES(cls):
        size = {"min": 16, "max": MAX_RESOLUTION, "step": CELL}
        frames = {"default": 14, "min": 1, "max": 4096, "tooltip": "Length of the video: 14 or 25, as the model."}
        motion = {"default": 127, "min": 1, "max": 1023, "advanced": True, "tooltip": "How much is to move."}
        level = {"default": 0.0, "min": 0.0, "max": 10.0, "step": 0.01, "advanced": True}
        return {
            "required": {
                "clip_vision": ("CLIP_VISION", {"tooltip": "Image encoder of the model."}),
                "init_image": ("IMAGE", {"tooltip": "First picture of the video."}),
                "vae": ("VAE", {"tooltip": "VAE of the model."}),
                "width": ("INT", {"default": 1024, **size, "tooltip": "Width in pixels."}),
                "height": ("INT", {"default": 576, **size, "tooltip": "Height in pixels."}),
                "video_frames": ("INT", frames),
                "motion_bucket_id": ("INT", motion),
                "fps": ("INT", {"default": 6, "min": 1, "max": 1024, "tooltip": "Frames in a second."}),
                "augmentation_level": ("FLOAT", {**level, "tooltip": "Noise put into the picture: less like it."}),
            }
        }

    def encode(
        self,
        clip_vision: Any,
        init_image: Any,
        vae: Any,
        width: int,
        height: int,
        video_frames: int,
        motion_bucket_id: int,
        fps: int,
        augmentation_level: float,
    ) -> tuple[list, list, dict]:
        import torch

        check_vae(vae)
        seen = clip_vision.encode_image(init_image).image_embeds.unsqueeze(0)
        pixels = filling(init_image, width, height)
        if augmentation_level > 0:
            pixels = pixels + torch.randn_like(pixels) * augmentation_level
        told = {"motion_bucket_id": motion_bucket_id, "fps": fps, "augmentation_level": augmentation_level}
        latent = vae.encode(pixels)
        positive = [[seen, {**told, "concat_latent_image": latent}]]
        negative = [[torch.zeros_like(seen), {**told, "concat_latent_image": torch.zeros_like(latent)}]]
        return positive, negative, {"samples": torch.zeros(video_frames, 4, height // CELL, width // CELL)}


def camera_place(elevation: float, azimuth: float) -> Any:
    """What Zero123 is told of the camera [1, 1, 4]: how much higher it goes, sine and cosine of how far round, and the
    height it starts from, as the training counted it from the pole."""
    import torch

    round_it, higher = (torch.deg2rad(torch.tensor(float(v))) for v in (azimuth, -elevation))
    start = torch.deg2rad(torch.tensor(90.0))
    return torch.stack([higher, round_it.sin(), round_it.cos(), start]).reshape(1, 1, 4)


def views(
    clip_vision: Any, image: Any, vae: Any, width: int, height: int, places: list[tuple[float, float]]
) -> tuple[list, list, dict]:
    """Positive, negative and empty latents for views from `places` (elevation and azimuth in degrees)."""
    import torch

    import comfy.utils

    check_vae(vae)
    seen = clip_vision.encode_image(image).image_embeds.unsqueeze(1)
    latent = vae.encode(filling(image, width, height))
    cameras = torch.cat([camera_place(*place) for place in places]).to(seen)
    seen = comfy.utils.repeat_to_batch_size(seen, max(len(cameras), seen.shape[0]))
    cameras = comfy.utils.repeat_to_batch_size(cameras, seen.shape[0])
    positive = [[torch.cat([seen, cameras], dim=-1), {"concat_latent_image": latent}]]
    negative = [[torch.zeros_like(seen), {"concat_latent_image": torch.zeros_like(latent)}]]
    return positive, negative, latent


def _inputs(batch_tooltip: str) -> list:
    angle = {"default": 0.0, "min": -180.0, "max": 180.0, "step": 0.1, "round": False}
    size = {"default": 256, "min": 16, "max": MAX_RESOLUTION, "step": 8}
    return [
        io.ClipVision.Input("clip_vision", tooltip="Image encoder of the model."),
        io.Image.Input("init_image", tooltip="Picture of the thing, on a plain ground."),
        io.Vae.Input("vae", tooltip="VAE of the model."),
        io.Int.Input("width", tooltip="Width in pixels.", **size),
        io.Int.Input("height", tooltip="Height in pixels.", **size),
        io.Int.Input("batch_size", default=1, min=1, max=4096, tooltip=batch_tooltip),
        io.Float.Input("elevation", tooltip="How much higher the camera goes, in degrees.", **angle),
        io.Float.Input("azimuth", tooltip="How far the camera goes round, in degrees.", **angle),
    ]


def _outputs() -> list:
    return [
        io.Conditioning.Output(display_name="positive"),
        io.Conditioning.Output(display_name="negative"),
        io.Latent.Output(display_name="latent"),
    ]


class StableZero123_Conditioning(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StableZero123_Conditioning",
            category="model/conditioning/stable zero123",
            description="Shows Stable Zero123 a thing, and where to look at it from.",
            inputs=_inputs("Pictures of that view."),
            outputs=_outputs(),
        )

    @classmethod
    def execute(
        cls,
        clip_vision: Any,
        init_image: Any,
        vae: Any,
        width: int,
        height: int,
        batch_size: int,
        elevation: float,
        azimuth: float,
    ) -> io.NodeOutput:
        import torch

        positive, negative, _ = views(clip_vision, init_image, vae, width, height, [(elevation, azimuth)])
        return io.NodeOutput(positive, negative, {"samples": torch.zeros(batch_size, 4, height // CELL, width // CELL)})


class StableZero123_Conditioning_Batched(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        angle = {"default": 0.0, "min": -180.0, "max": 180.0, "step": 0.1, "round": False, "advanced": True}
        return io.Schema(
            node_id="StableZero123_Conditioning_Batched",
            category="model/conditioning/stable zero123",
            description="Shows Stable Zero123 a thing, and several places to look at it from.",
            inputs=[
                *_inputs("Number of views."),
                io.Float.Input("elevation_batch_increment", tooltip="Higher by so much with each view.", **angle),
                io.Float.Input("azimuth_batch_increment", tooltip="Further round by so much with each view.", **angle),
            ],
            outputs=_outputs(),
        )

    @classmethod
    def execute(
        cls,
        clip_vision: Any,
        init_image: Any,
        vae: Any,
        width: int,
        height: int,
        batch_size: int,
        elevation: float,
        azimuth: float,
        elevation_batch_increment: float,
        azimuth_batch_increment: float,
    ) -> io.NodeOutput:
        import torch

        places = [
            (elevation + i * elevation_batch_increment, azimuth + i * azimuth_batch_increment)
            for i in range(batch_size)
        ]
        positive, negative, _ = views(clip_vision, init_image, vae, width, height, places)
        samples = torch.zeros(batch_size, 4, height // CELL, width // CELL)
        # One noise for all views, so that they belong together.
        return io.NodeOutput(positive, negative, {"samples": samples, "batch_index": [0] * batch_size})


NODES = {
    "comfy_extras.nodes_video_model": [
        ImageOnlyCheckpointLoader,
        ImageOnlyCheckpointSave,
        SVD_img2vid_Conditioning,
    ],
    "comfy_extras.nodes_stable3d": [StableZero123_Conditioning, StableZero123_Conditioning_Batched],
}
