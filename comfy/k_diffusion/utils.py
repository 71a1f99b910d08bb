"""Small helpers that packs import beside the solvers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from comfy.sampling.schedules import append_zero

__all__ = ["FolderOfImages", "append_dims", "append_zero"]


def append_dims(x: Tensor, target_dims: int) -> Tensor:
    """`x` with axes of length 1 appended until it has `target_dims`."""
    missing = target_dims - x.ndim
    if missing < 0:
        raise ValueError(f"input has {x.ndim} dims but target_dims is {target_dims}, which is less")
    return x.reshape(x.shape + (1,) * missing)


class FolderOfImages(Dataset):
    """The images below a folder, without classes: item i is a tuple of one RGB image, transformed."""

    IMG_EXTENSIONS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}

    def __init__(self, root: str | Path, transform: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.root = Path(root)
        self.transform = transform
        self.paths = sorted(p for p in self.root.rglob("*") if p.suffix.lower() in self.IMG_EXTENSIONS)

    def __repr__(self) -> str:
        return f'FolderOfImages(root="{self.root}", len: {len(self)})'

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: int) -> tuple[Any]:
        from PIL import Image

        with Image.open(self.paths[key]) as file:
            image = file.convert("RGB")
        return (image if self.transform is None else self.transform(image),)
