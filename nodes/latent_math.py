"""Nodes that compute with latents, join them and cut them."""

from __future__ import annotations

from typing import Any

import torch

import comfy.utils
from comfy_api.latest import io

from .constants import MAX_RESOLUTION
from .image_filters import gaussian_kernel
from .latents import with_samples

# Axes of latents counted from the end, so that they fit pictures and videos.
_AXES = {"x": -1, "y": -2, "t": -3}


def fit_to(samples: torch.Tensor, target: torch.Tensor, repeat_batch: bool = True) -> torch.Tensor:
    """Resize samples to the target's height and width, and repeat or cut the batch to the target's; on its device."""
    samples = samples.to(target.device)
    if samples.shape[1:] != target.shape[1:]:
        samples = comfy.utils.common_upscale(samples, target.shape[-1], target.shape[-2], "bilinear", crop="center")
    return comfy.utils.repeat_to_batch_size(samples, target.shape[0]) if repeat_batch else samples


class LatentAdd(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentAdd",
            category="model/latent/advanced",
            description="Adds two latents.",
            inputs=[
                io.Latent.Input("samples1", tooltip="First latents; they set the size."),
                io.Latent.Input("samples2", tooltip="Latents to add."),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples1: dict, samples2: dict) -> io.NodeOutput:
        first = samples1["samples"]
        return io.NodeOutput(with_samples(samples1, first + fit_to(samples2["samples"], first)))


class LatentSubtract(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSubtract",
            category="model/latent/advanced",
            description="Subtracts one latent from another.",
            inputs=[
                io.Latent.Input("samples1", tooltip="First latents; they set the size."),
                io.Latent.Input("samples2", tooltip="Latents to subtract."),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples1: dict, samples2: dict) -> io.NodeOutput:
        first = samples1["samples"]
        return io.NodeOutput(with_samples(samples1, first - fit_to(samples2["samples"], first)))


class LatentMultiply(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentMultiply",
            category="model/latent/advanced",
            description="Multiplies latents by a number.",
            inputs=[
                io.Latent.Input("samples", tooltip="Latents to scale."),
                io.Float.Input("multiplier", tooltip="Factor.", default=1.0, min=-10.0, max=10.0, step=0.01),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples: dict, multiplier: float) -> io.NodeOutput:
        return io.NodeOutput(with_samples(samples, samples["samples"] * multiplier))


class LatentInterpolate(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentInterpolate",
            category="model/latent/advanced",
            description="Mixes two latents, direction and length of their vectors apart.",
            inputs=[
                io.Latent.Input("samples1", tooltip="First latents; they set the size."),
                io.Latent.Input("samples2", tooltip="Second latents."),
                io.Float.Input("ratio", tooltip="Share of the first.", default=1.0, min=0.0, max=1.0, step=0.01),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples1: dict, samples2: dict, ratio: float) -> io.NodeOutput:
        first = samples1["samples"]
        second = fit_to(samples2["samples"], first)
        length1, length2 = (torch.linalg.vector_norm(s, dim=1) for s in (first, second))
        # A vector of length 0 has no direction; it counts as 0.
        direction1, direction2 = (torch.nan_to_num(s / length) for s, length in ((first, length1), (second, length2)))
        direction = direction1 * ratio + direction2 * (1.0 - ratio)
        direction = torch.nan_to_num(direction / torch.linalg.vector_norm(direction, dim=1))
        return io.NodeOutput(with_samples(samples1, direction * (length1 * ratio + length2 * (1.0 - ratio))))


class LatentConcat(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentConcat",
            category="model/latent/advanced",
            description="Puts two latents side by side, above each other, or one after the other.",
            inputs=[
                io.Latent.Input("samples1", tooltip="First latents."),
                io.Latent.Input("samples2", tooltip="Latents to append."),
                io.Combo.Input(
                    "dim",
                    options=["x", "-x", "y", "-y", "t", "-t"],
                    tooltip="Axis; with a minus sign the second comes first.",
                ),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples1: dict, samples2: dict, dim: str) -> io.NodeOutput:
        first = samples1["samples"]
        second = samples2["samples"].to(first.device)
        pair = [first, comfy.utils.repeat_to_batch_size(second, first.shape[0])]
        if dim.startswith("-"):
            pair.reverse()
        return io.NodeOutput(with_samples(samples1, torch.cat(pair, dim=_AXES[dim[-1]])))


class LatentCut(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentCut",
            category="model/latent/advanced",
            description="Cuts a range out of latents along one axis.",
            inputs=[
                io.Latent.Input("samples", tooltip="Latents to cut."),
                io.Combo.Input("dim", options=["x", "y", "t"], tooltip="Axis."),
                io.Int.Input(
                    "index",
                    tooltip="First element; negative counts from the end.",
                    default=0,
                    min=-MAX_RESOLUTION,
                    max=MAX_RESOLUTION,
                    step=1,
                ),
                io.Int.Input("amount", tooltip="How many elements.", default=1, min=1, max=MAX_RESOLUTION, step=1),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples: dict, dim: str, index: int, amount: int) -> io.NodeOutput:
        old, axis = samples["samples"], _AXES[dim]
        size = old.shape[axis]
        if index >= 0:
            index = min(index, size - 1)
            amount = min(size - index, amount)
        else:
            index = max(index, -size)
            amount = min(-index, amount)
        return io.NodeOutput(with_samples(samples, torch.narrow(old, axis, index, amount)))


class LatentCutToBatch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentCutToBatch",
            category="model/latent/advanced",
            description="Cuts latents into equal slices, which become a batch. A remainder is dropped.",
            inputs=[
                io.Latent.Input("samples", tooltip="Latents to cut."),
                io.Combo.Input("dim", options=["t", "x", "y"], tooltip="Axis."),
                io.Int.Input("slice_size", tooltip="Elements per slice.", default=1, min=1, max=MAX_RESOLUTION, step=1),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples: dict, dim: str, slice_size: int) -> io.NodeOutput:
        moved = samples["samples"].movedim(_AXES[dim], 1)
        if slice_size > moved.shape[1]:
            return io.NodeOutput(samples)
        whole = moved.shape[1] // slice_size * slice_size
        slices = moved[:, :whole].reshape(-1, slice_size, *moved.shape[2:])
        return io.NodeOutput(with_samples(samples, slices.movedim(1, _AXES[dim])))


def _joined_index(latents: list[dict]) -> list[int]:
    """Batch numbers of several latents one after the other; latents without numbers count from 0."""
    numbers: list[int] = []
    for latent in latents:
        numbers += latent.get("batch_index", list(range(latent["samples"].shape[0])))
    return numbers


class LatentBatch(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentBatch",
            display_name="Batch Latents (DEPRECATED)",
            category="model/latent/batch",
            description="Puts two batches of latents into one. The second is resized to the first.",
            is_deprecated=True,
            inputs=[
                io.Latent.Input("samples1", tooltip="First latents; they set the size."),
                io.Latent.Input("samples2", tooltip="Latents to append."),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples1: dict, samples2: dict) -> io.NodeOutput:
        first = samples1["samples"]
        second = fit_to(samples2["samples"], first, repeat_batch=False)
        joined = with_samples(samples1, torch.cat((first, second)))
        joined["batch_index"] = _joined_index([samples1, samples2])
        return io.NodeOutput(joined)


class BatchLatentsNode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BatchLatentsNode",
            display_name="Batch Latents",
            category="model/latent/batch",
            description="Puts several latents into one batch. All are resized to the first.",
            inputs=[
                io.Autogrow.Input(
                    "latents",
                    template=io.Autogrow.TemplatePrefix(
                        io.Latent.Input("latent", tooltip="Latents to put in."), prefix="latent", min=1, max=50
                    ),
                )
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, latents: dict[str, dict]) -> io.NodeOutput:
        members = list(latents.values())
        first = members[0]["samples"]
        rest = [fit_to(latent["samples"], first, repeat_batch=False) for latent in members[1:]]
        joined = with_samples(members[0], torch.cat((first, *rest)))
        joined["batch_index"] = _joined_index(members)
        return io.NodeOutput(joined)


class LatentBatchSeedBehavior(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentBatchSeedBehavior",
            category="model/latent/advanced",
            description="Decides whether the latents of a batch get the same noise.",
            inputs=[
                io.Latent.Input("samples", tooltip="Latents of the batch."),
                io.Combo.Input(
                    "seed_behavior",
                    options=["random", "fixed"],
                    tooltip="random gives each its own noise, fixed the same to all.",
                    default="fixed",
                ),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples: dict, seed_behavior: str) -> io.NodeOutput:
        result = dict(samples)
        if seed_behavior == "random":
            result.pop("batch_index", None)
        else:
            number = result.get("batch_index", [0])[0]
            result["batch_index"] = [number] * result["samples"].shape[0]
        return io.NodeOutput(result)


class ReplaceVideoLatentFrames(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="ReplaceVideoLatentFrames",
            display_name="Replace Video Latent Frames",
            category="model/latent/batch",
            description="Overwrites frames of a video latent.",
            inputs=[
                io.Latent.Input("destination", tooltip="Latents to change."),
                io.Int.Input(
                    "index",
                    tooltip="First frame to overwrite; negative counts from the end.",
                    default=0,
                    min=-MAX_RESOLUTION,
                    max=MAX_RESOLUTION,
                    step=1,
                ),
                io.Latent.Input("source", tooltip="Frames to put there.", optional=True),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, destination: dict, index: int, source: dict | None = None) -> io.NodeOutput:
        if source is None:
            return io.NodeOutput(destination)
        old, new = destination["samples"], source["samples"]
        total, count = old.shape[2], new.shape[2]
        begin = index + total if index < 0 else index
        if not 0 <= begin <= total - count:
            # The source would reach beyond the video; nothing is replaced.
            return io.NodeOutput(destination)
        samples = old.clone()
        samples[:, :, begin : begin + count] = new
        return io.NodeOutput(with_samples(destination, samples))


class LatentApplyOperation(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentApplyOperation",
            category="model/latent/advanced/operations",
            description="Applies an operation to latents.",
            is_experimental=True,
            inputs=[
                io.Latent.Input("samples", tooltip="Latents to change."),
                io.LatentOperation.Input("operation", tooltip="Operation to apply."),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, samples: dict, operation: Any) -> io.NodeOutput:
        return io.NodeOutput(with_samples(samples, operation(latent=samples["samples"])))


class LatentApplyOperationCFG(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentApplyOperationCFG",
            category="model/latent/advanced/operations",
            description="Applies an operation to the model's guidance at every step.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model to change."),
                io.LatentOperation.Input("operation", tooltip="Operation to apply."),
            ],
            outputs=[io.Model.Output()],
        )

    @classmethod
    def execute(cls, model: Any, operation: Any) -> io.NodeOutput:
        def before_guidance(args: dict) -> list:
            outputs = args["conds_out"]
            if len(outputs) == 2:
                # Only what the positive side adds to the negative one is operated on.
                outputs[0] = operation(latent=outputs[0] - outputs[1]) + outputs[1]
            else:
                outputs[0] = operation(latent=outputs[0])
            return outputs

        patched = model.clone()
        patched.set_model_sampler_pre_cfg_function(before_guidance)
        return io.NodeOutput(patched)


class LatentOperationTonemapReinhard(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentOperationTonemapReinhard",
            category="model/latent/advanced/operations",
            description=("An operation that compresses large values (tone mapping after Reinhard et al., 2002)."),
            is_experimental=True,
            inputs=[
                io.Float.Input(
                    "multiplier", tooltip="Larger values compress less.", default=1.0, min=0.0, max=100.0, step=0.01
                )
            ],
            outputs=[io.LatentOperation.Output()],
        )

    @classmethod
    def execute(cls, multiplier: float) -> io.NodeOutput:
        def tonemap(latent: torch.Tensor, **_: Any) -> torch.Tensor:
            length = (torch.linalg.vector_norm(latent, dim=1) + 1e-10)[:, None]
            axes = tuple(range(1, length.ndim))
            mean, deviation = length.mean(dim=axes, keepdim=True), length.std(dim=axes, keepdim=True)
            # A value five deviations above the average counts as white.
            white = (deviation * 5 + mean) * multiplier
            scaled = length / white
            return latent / length * (scaled / (scaled + 1.0)) * white

        return io.NodeOutput(tonemap)


class SharpenError(ValueError):
    """Latents that a radius of sharpening does not fit."""


class LatentOperationSharpen(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentOperationSharpen",
            category="model/latent/advanced/operations",
            description="An operation that sharpens latents.",
            is_experimental=True,
            inputs=[
                io.Int.Input(
                    "sharpen_radius", tooltip="Radius in cells.", advanced=True, default=9, min=1, max=31, step=1
                ),
                io.Float.Input(
                    "sigma",
                    tooltip="Width of the blur that is taken away, relative to the radius.",
                    advanced=True,
                    default=1.0,
                    min=0.1,
                    max=10.0,
                    step=0.1,
                ),
                io.Float.Input("alpha", tooltip="Strength.", advanced=True, default=0.1, min=0.0, max=5.0, step=0.01),
            ],
            outputs=[io.LatentOperation.Output()],
        )

    @classmethod
    def execute(cls, sharpen_radius: int, sigma: float, alpha: float) -> io.NodeOutput:
        def sharpen(latent: torch.Tensor, **_: Any) -> torch.Tensor:
            if latent.ndim == 5:  # a video, frame by frame
                frames = latent.movedim(2, 1)
                sharp = sharpen(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
                return sharp.movedim(1, 2)
            if latent.ndim != 4 or min(latent.shape[-2:]) <= sharpen_radius:
                raise SharpenError(
                    f"sharpening with radius {sharpen_radius} needs a picture larger than that, "
                    f"not latents of shape {tuple(latent.shape)}"
                )
            length = (torch.linalg.vector_norm(latent, dim=1) + 1e-6)[:, None]
            channels, size = latent.shape[1], 2 * sharpen_radius + 1
            kernel = gaussian_kernel(size, sigma, device=latent.device) * -(alpha * 10)
            kernel[size // 2, size // 2] -= kernel.sum() - 1.0
            kernel = kernel.to(latent).expand(channels, 1, size, size)
            padded = torch.nn.functional.pad(latent / length, (sharpen_radius,) * 4, "reflect")
            return torch.nn.functional.conv2d(padded, kernel, groups=channels) * length

        return io.NodeOutput(sharpen)


NODES = {
    "comfy_extras.nodes_latent": [
        LatentAdd,
        LatentSubtract,
        LatentMultiply,
        LatentInterpolate,
        LatentConcat,
        LatentCut,
        LatentCutToBatch,
        LatentBatch,
        LatentBatchSeedBehavior,
        ReplaceVideoLatentFrames,
        LatentApplyOperation,
        LatentApplyOperationCFG,
        LatentOperationTonemapReinhard,
        LatentOperationSharpen,
    ],
    "comfy_extras.nodes_post_processing": [BatchLatentsNode],
}
