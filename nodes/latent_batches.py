"""Nodes that cut latents into batches and clips."""

from __future__ import annotations

import torch

from comfy_api.latest import io

from .images import on_one_device
from .latents import with_samples


class TrimVideoLatent(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="TrimVideoLatent",
            display_name="Trim Video Latent",
            category="model/latent",
            description="Cuts frames off the begin of a video latent.",
            inputs=[
                io.Latent.Input("samples", tooltip="Latents to cut."),
                io.Int.Input("trim_amount", tooltip="How many latent frames.", default=0, min=0, max=99999),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples: dict, trim_amount: int) -> io.NodeOutput:
        return io.NodeOutput(with_samples(samples, samples["samples"][:, :, trim_amount:]))


class _Single:
    """One latent out of a batch, with its mask and number."""

    def __init__(self, latent: dict, place: int, number: int, mask: torch.Tensor | None):
        self.samples = latent["samples"][place : place + 1]
        self.number = number
        self.mask = mask

    @property
    def full_mask(self) -> torch.Tensor:
        """The mask, or one that allows everything."""
        rows, columns = self.samples.shape[-2:]
        device = self.samples.device
        return torch.ones(1, 1, rows * 8, columns * 8, device=device) if self.mask is None else self.mask.to(device)


class RebatchLatents(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RebatchLatents",
            display_name="Rebatch Latents",
            category="model/latent/batch",
            description=(
                "Cuts batches of latents into batches of another size. A new size of picture begins a new batch."
            ),
            is_input_list=True,
            inputs=[
                io.Latent.Input("latents", tooltip="Batches of latents."),
                io.Int.Input("batch_size", tooltip="Latents per new batch.", default=1, min=1, max=4096),
            ],
            outputs=[io.Latent.Output(is_output_list=True)],
        )

    @classmethod
    def execute(cls, latents: list[dict], batch_size: list[int]) -> io.NodeOutput:
        groups: list[list[_Single]] = []
        for single in _singles(latents):
            last = groups[-1] if groups else None
            fits = last and len(last) < batch_size[0] and last[0].samples.shape == single.samples.shape
            if fits:
                last.append(single)
            else:
                groups.append([single])
        return io.NodeOutput([_joined(group) for group in groups])


def _singles(latents: list[dict]) -> list[_Single]:
    """All latents of several batches; those without numbers go on counting."""
    singles: list[_Single] = []
    for latent in latents:
        count = latent["samples"].shape[0]
        numbers = latent.get("batch_index")
        if numbers is None:
            numbers = range(len(singles), len(singles) + count)
        masks = latent.get("noise_mask")
        for place, number in zip(range(count), numbers):
            mask = None if masks is None else masks[place % masks.shape[0]][None]
            singles.append(_Single(latent, place, number, mask))
    return singles


def _joined(group: list[_Single]) -> dict:
    result = {"samples": torch.cat(on_one_device(single.samples for single in group))}
    masks = on_one_device(single.full_mask for single in group)
    if not all(bool((mask == 1.0).all()) for mask in masks):
        rows, columns = next(single.mask.shape[-2:] for single in group if single.mask is not None)
        fitted = [
            mask.reshape((1, 1, *mask.shape[-2:]))
            if mask.shape[-2:] == (rows, columns)
            else torch.nn.functional.interpolate(mask.reshape((1, 1, *mask.shape[-2:])), size=(rows, columns))
            for mask in masks
        ]
        result["noise_mask"] = torch.cat(fitted)
    result["batch_index"] = [single.number for single in group]
    return result


NODES = {
    "comfy_extras.nodes_wan": [TrimVideoLatent],
    "comfy_extras.nodes_rebatch": [RebatchLatents],
}
