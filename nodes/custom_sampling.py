"""Nodes that put a sampler together from parts: noise, guider, solver, schedule."""

from __future__ import annotations

from typing import Any

import torch

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import latent_preview
from comfy.nested_tensor import NestedTensor, like, parts_of
from comfy.sampling.noise import no_noise
from comfy_api.latest import io

from .constants import MAX_SEED


class SeededNoise:
    """NOISE drawn on the CPU from a seed."""

    def __init__(self, seed: int):
        self.seed = seed

    def generate_noise(self, input_latent: dict) -> torch.Tensor:
        """Noise of the latent's shape. Members of a batch get the numbers that `batch_index` names."""
        return comfy.sample.prepare_noise(input_latent["samples"], self.seed, input_latent.get("batch_index"))


class NoNoise:
    """NOISE of zeros, for latents that still hold noise."""

    def __init__(self) -> None:
        self.seed = 0

    def generate_noise(self, input_latent: dict) -> torch.Tensor:
        """Zeros of the latent's shape, on the CPU."""
        return no_noise(input_latent["samples"])


class OneConditionGuider(comfy.samplers.CFGGuider):
    """Follows one conditioning; nothing is avoided, and the model runs once per step."""

    def set_conds(self, positive: list) -> None:
        self.inner_set_conds({"positive": positive})


class TwoConditionGuider(comfy.samplers.CFGGuider):
    """Follows two conditionings with weights of their own (Brooks et al., 2023, "InstructPix2Pix", equation 3)."""

    def set_conds(self, first: list, second: list, negative: list) -> None:
        # The second one decides about the middle prediction, which carries no text of the user's.
        self.inner_set_conds({"positive": first, "middle": second, "negative": negative})

    def set_cfg(self, cfg1: float, cfg2: float, nested: bool = False) -> None:
        self.cfg1, self.cfg2, self.nested = cfg1, cfg2, nested

    def predict_noise(self, x: torch.Tensor, timestep: torch.Tensor, model_options: dict | None = None, seed=None):
        options = model_options or {}
        negative, middle = self.conds.get("negative"), self.conds.get("middle")
        positive = self.conds.get("positive")
        if self.nested:
            predictions = comfy.samplers.calc_cond_batch(
                self.inner_model, [negative, middle, positive], x, timestep, options
            )
            inner = comfy.samplers.cfg_function(
                self.inner_model, predictions[2], predictions[1], self.cfg1, x, timestep,
                model_options=options, cond=positive, uncond=middle,
            )  # fmt: skip
            return predictions[0] + self.cfg2 * (inner - predictions[0])
        if abs(self.cfg2 - 1.0) < 1e-9 and not options.get("disable_cfg1_optimization", False):
            # The negative prediction would be multiplied by zero.
            negative = None
            if abs(self.cfg1 - 1.0) < 1e-9:
                middle = None
        predictions = comfy.samplers.calc_cond_batch(
            self.inner_model, [negative, middle, positive], x, timestep, options
        )
        outer = comfy.samplers.cfg_function(
            self.inner_model, predictions[1], predictions[0], self.cfg2, x, timestep,
            model_options=options, cond=middle, uncond=negative,
        )  # fmt: skip
        return outer + (predictions[2] - predictions[1]) * self.cfg1


class RandomNoise(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="RandomNoise",
            category="model/sampling/noise",
            description="Noise from a seed.",
            inputs=[
                io.Int.Input(
                    "noise_seed",
                    tooltip="Seed; the same seed gives the same noise.",
                    default=0,
                    min=0,
                    max=MAX_SEED,
                    control_after_generate=True,
                )
            ],
            outputs=[io.Noise.Output()],
        )

    @classmethod
    def execute(cls, noise_seed: int) -> io.NodeOutput:
        return io.NodeOutput(SeededNoise(noise_seed))


class DisableNoise(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="DisableNoise",
            category="model/sampling/noise",
            description="No noise, for latents that still hold some.",
            inputs=[],
            outputs=[io.Noise.Output()],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        return io.NodeOutput(NoNoise())


class BasicGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BasicGuider",
            display_name="Basic Guider",
            category="model/sampling/guiders",
            description="Guides a model by one conditioning.",
            inputs=[
                io.Model.Input("model", tooltip="Model to guide."),
                io.Conditioning.Input("conditioning", tooltip="Conditioning to follow."),
            ],
            outputs=[io.Guider.Output()],
        )

    @classmethod
    def execute(cls, model: Any, conditioning: list) -> io.NodeOutput:
        guider = OneConditionGuider(model)
        guider.set_conds(conditioning)
        return io.NodeOutput(guider)


class CFGGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="CFGGuider",
            display_name="CFG Guider",
            category="model/sampling/guiders",
            description="Guides a model towards one conditioning and away from another.",
            inputs=[
                io.Model.Input("model", tooltip="Model to guide."),
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Float.Input("cfg", tooltip="How strongly.", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01),
            ],
            outputs=[io.Guider.Output()],
        )

    @classmethod
    def execute(cls, model: Any, positive: list, negative: list, cfg: float) -> io.NodeOutput:
        guider = comfy.samplers.CFGGuider(model)
        guider.set_conds(positive, negative)
        guider.set_cfg(cfg)
        return io.NodeOutput(guider)


class DualCFGGuider(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="DualCFGGuider",
            display_name="Dual CFG Guider",
            category="model/sampling/guiders",
            description="Guides a model towards two conditionings and away from a third.",
            inputs=[
                io.Model.Input("model", tooltip="Model to guide."),
                io.Conditioning.Input("cond1", tooltip="First conditioning to follow."),
                io.Conditioning.Input("cond2", tooltip="Second conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Float.Input(
                    "cfg_conds",
                    tooltip="How strongly the first is preferred to the second.",
                    default=8.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    round=0.01,
                ),
                io.Float.Input(
                    "cfg_cond2_negative",
                    tooltip="How strongly the second is preferred to the negative one.",
                    default=8.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    round=0.01,
                ),
                io.Combo.Input(
                    "style",
                    options=["regular", "nested"],
                    tooltip="Whether the two weights act side by side, or one within the other.",
                ),
            ],
            outputs=[io.Guider.Output()],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        cond1: list,
        cond2: list,
        negative: list,
        cfg_conds: float,
        cfg_cond2_negative: float,
        style: str,
    ) -> io.NodeOutput:
        guider = TwoConditionGuider(model)
        guider.set_conds(cond1, cond2, negative)
        guider.set_cfg(cfg_conds, cfg_cond2_negative, nested=style == "nested")
        return io.NodeOutput(guider)


def _finished(latent: dict, samples: torch.Tensor, denoised: dict, model: Any) -> io.NodeOutput:
    """Both outputs of a sampling node: the samples, and the model's last guess of the clean latent."""
    result = {key: value for key, value in latent.items() if not key.startswith("downscale_ratio_")}
    result["samples"] = samples
    guess = result
    if "x0" in denoised:
        clean = model.model.process_latent_out(denoised["x0"].cpu())
        if getattr(samples, "is_nested", False):
            clean = NestedTensor(comfy.utils.unpack_latents(clean, [part.shape for part in samples.unbind()]))
        guess = {**result, "samples": clean}
    return io.NodeOutput(result, guess)


def _fitting_latent(model: Any, latent: dict) -> dict:
    """The latent with as many channels, and of such size, as the model needs if it is still empty."""
    samples = comfy.sample.fix_empty_latent_channels(
        model,
        latent["samples"],
        latent.get("downscale_ratio_spacial"),
        latent.get("downscale_ratio_temporal"),
    )
    return {**latent, "samples": samples}


class SamplerCustom(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerCustom",
            category="model/sampling/custom",
            description="Samples with a solver and a schedule of one's own choice.",
            inputs=[
                io.Model.Input("model", tooltip="Model that predicts the picture."),
                io.Boolean.Input("add_noise", tooltip="Whether to add noise first.", advanced=True, default=True),
                io.Int.Input(
                    "noise_seed",
                    tooltip="Seed of the noise.",
                    default=0,
                    min=0,
                    max=MAX_SEED,
                    control_after_generate=True,
                ),
                io.Float.Input(
                    "cfg",
                    tooltip="How strongly the positive conditioning is preferred to the negative one.",
                    default=8.0,
                    min=0.0,
                    max=100.0,
                    step=0.1,
                    round=0.01,
                ),
                io.Conditioning.Input("positive", tooltip="Conditioning to follow."),
                io.Conditioning.Input("negative", tooltip="Conditioning to avoid."),
                io.Sampler.Input("sampler", tooltip="Solver."),
                io.Sigmas.Input("sigmas", tooltip="Schedule."),
                io.Latent.Input("latent_image", tooltip="Latents to start from."),
            ],
            outputs=[
                io.Latent.Output(display_name="output", tooltip="The finished latents."),
                io.Latent.Output(display_name="denoised_output", tooltip="The model's last guess of them."),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        add_noise: bool,
        noise_seed: int,
        cfg: float,
        positive: list,
        negative: list,
        sampler: Any,
        sigmas: torch.Tensor,
        latent_image: dict,
    ) -> io.NodeOutput:
        latent = _fitting_latent(model, latent_image)
        noise = (SeededNoise(noise_seed) if add_noise else NoNoise()).generate_noise(latent)
        denoised: dict = {}
        samples = comfy.sample.sample_custom(
            model, noise, cfg, sampler, sigmas, positive, negative, latent["samples"],
            noise_mask=latent.get("noise_mask"),
            callback=latent_preview.prepare_callback(model, sigmas.shape[-1] - 1, denoised, latent["samples"]),
            disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
            seed=noise_seed,
        )  # fmt: skip
        return _finished(latent, samples, denoised, model)


class SamplerCustomAdvanced(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SamplerCustomAdvanced",
            category="model/sampling/custom",
            description="Samples with noise, guider, solver and schedule of one's own choice.",
            inputs=[
                io.Noise.Input("noise", tooltip="Noise to add first."),
                io.Guider.Input("guider", tooltip="Model and how it is guided."),
                io.Sampler.Input("sampler", tooltip="Solver."),
                io.Sigmas.Input("sigmas", tooltip="Schedule."),
                io.Latent.Input("latent_image", tooltip="Latents to start from."),
            ],
            outputs=[
                io.Latent.Output(display_name="output", tooltip="The finished latents."),
                io.Latent.Output(display_name="denoised_output", tooltip="The model's last guess of them."),
            ],
        )

    @classmethod
    def execute(cls, noise: Any, guider: Any, sampler: Any, sigmas: torch.Tensor, latent_image: dict) -> io.NodeOutput:
        model = guider.model_patcher
        latent = _fitting_latent(model, latent_image)
        denoised: dict = {}
        samples = guider.sample(
            noise.generate_noise(latent),
            latent["samples"],
            sampler,
            sigmas,
            denoise_mask=latent.get("noise_mask"),
            callback=latent_preview.prepare_callback(model, sigmas.shape[-1] - 1, denoised, latent["samples"]),
            disable_pbar=not comfy.utils.PROGRESS_BAR_ENABLED,
            seed=noise.seed,
        )
        samples = comfy.model_management.to_intermediate(samples)
        return _finished(latent, samples, denoised, model)


class AddNoise(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="AddNoise",
            category="model/sampling/noise",
            description="Adds noise to latents as a sampler would.",
            is_experimental=True,
            inputs=[
                io.Model.Input("model", tooltip="Model that decides how noise is mixed in."),
                io.Noise.Input("noise", tooltip="Noise to add."),
                io.Sigmas.Input("sigmas", tooltip="Schedule; noise for its whole range is added."),
                io.Latent.Input("latent_image", tooltip="Latents to change."),
            ],
            outputs=[io.Latent.Output()],
        )

    @classmethod
    def execute(cls, model: Any, noise: Any, sigmas: torch.Tensor, latent_image: dict) -> io.NodeOutput:
        if len(sigmas) == 0:
            return io.NodeOutput(latent_image)
        sampling = model.get_model_object("model_sampling")
        process_in, process_out = (model.get_model_object(f"process_latent_{way}") for way in ("in", "out"))
        amount = torch.abs(sigmas[0] - sigmas[-1]) if len(sigmas) > 1 else sigmas[0]
        samples = latent_image["samples"]
        noisy = []
        for part, noise_of_part in zip(parts_of(samples), parts_of(noise.generate_noise(latent_image))):
            # An empty latent stands for nothing; shifting it would make it something.
            clean = process_in(part) if torch.count_nonzero(part) > 0 else part
            mixed = process_out(sampling.noise_scaling(amount, noise_of_part, clean))
            noisy.append(torch.nan_to_num(mixed, nan=0.0, posinf=0.0, neginf=0.0))
        result = {k: v for k, v in latent_image.items() if not k.startswith("downscale_ratio_")}
        return io.NodeOutput({**result, "samples": like(samples, noisy)})


NODES = {
    "comfy_extras.nodes_custom_sampler": [
        RandomNoise,
        DisableNoise,
        BasicGuider,
        CFGGuider,
        DualCFGGuider,
        SamplerCustom,
        SamplerCustomAdvanced,
        AddNoise,
    ],
}
