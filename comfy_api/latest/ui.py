"""Helpers for what a node shows: `NodeOutput(ui=ui.PreviewText("..."))` (spec node-api.md 3.5)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest._widgets import FolderType
from comfy_api.latest.saving import AudioSaveHelper, ImageSaveHelper, random_prefix, save_background, to_pil
from comfy_api.latest.shown import SavedAudios, SavedImages, SavedResult, UIOutput

__all__ = [
    "AudioSaveHelper",
    "FolderType",
    "ImageSaveHelper",
    "PreviewAudio",
    "PreviewImage",
    "PreviewMask",
    "PreviewText",
    "PreviewUI3D",
    "PreviewUI3DAdvanced",
    "PreviewVideo",
    "SavedAudios",
    "SavedImages",
    "SavedResult",
    "to_pil",
]


class PreviewImage(UIOutput):
    """Images [B,H,W,C] with values from 0 to 1, saved to the temp folder. `cls` adds its prompt as metadata."""

    def __init__(self, image: Any, animated: bool = False, cls: Any = None, **_: Any) -> None:
        self.values = ImageSaveHelper.save_images(
            image, filename_prefix=random_prefix(), folder_type=FolderType.temp, cls=cls, compress_level=1
        )
        self.animated = animated

    def as_dict(self) -> dict[str, Any]:
        return {"images": self.values, "animated": (self.animated,)}


class PreviewMask(PreviewImage):
    """Masks [B,H,W] or [H,W], shown as grey images."""

    def __init__(self, mask: Any, animated: bool = False, cls: Any = None, **kwargs: Any) -> None:
        grey = mask.reshape((-1, 1, mask.shape[-2], mask.shape[-1])).movedim(1, -1).expand(-1, -1, -1, 3)
        super().__init__(grey, animated, cls, **kwargs)


class PreviewAudio(UIOutput):
    """Audio `{"waveform": [B,C,T], "sample_rate": Hz}`, saved as FLAC to the temp folder."""

    def __init__(self, audio: dict[str, Any], cls: Any = None, **_: Any) -> None:
        self.values = AudioSaveHelper.save_audio(
            audio, filename_prefix=random_prefix(), folder_type=FolderType.temp, cls=cls, format="flac"
        )

    def as_dict(self) -> dict[str, Any]:
        return {"audio": self.values}


class PreviewVideo(UIOutput):
    """Videos that have been saved."""

    def __init__(self, values: list[SavedResult | dict], **_: Any) -> None:
        self.values = values

    def as_dict(self) -> dict[str, Any]:
        return {"images": self.values, "animated": (True,)}


class PreviewText(UIOutput):
    """A text."""

    def __init__(self, value: str, **_: Any) -> None:
        self.value = value

    def as_dict(self) -> dict[str, Any]:
        return {"text": (self.value,)}


class PreviewUI3D(UIOutput):
    """A 3D model file, the camera, and an image [1,H,W,C] behind it."""

    def __init__(self, model_file: str, camera_info: dict | None, bg_image: Any = None, **_: Any) -> None:
        self.model_file = model_file
        self.camera_info = camera_info
        self.bg_image_path = save_background(bg_image) if bg_image is not None else None

    def as_dict(self) -> dict[str, Any]:
        return {"result": [self.model_file, self.camera_info, self.bg_image_path]}


class PreviewUI3DAdvanced(UIOutput):
    """A 3D model file, the camera, and facts about the model."""

    def __init__(self, model_file: str, camera_info: dict | None, model_3d_info: Any = None, **_: Any) -> None:
        self.values = [model_file, camera_info, model_3d_info]

    def as_dict(self) -> dict[str, Any]:
        return {"result": self.values}
