"""Reading the recorded networks in tests/data/models (layout: see the README there)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

DATA = Path(__file__).resolve().parent.parent / "data" / "models"
LIMIT = 1e-4
EPS_LIMIT = 2e-5


class Golden:
    """One recorded network: its configuration, weights (float32), inputs and outputs."""

    def __init__(self, name: str):
        with safe_open(DATA / f"{name}.io.safetensors", "pt") as f:
            self.config = json.loads(f.metadata()["config"])
            tensors = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
        self.out = {k.removeprefix("out."): v for k, v in tensors.items() if k.startswith("out.")}
        self.inputs = {k.removeprefix("in."): v for k, v in tensors.items() if k.startswith("in.")}
        if "inputs" in self.config:
            self.inputs = Golden(self.config["inputs"].removesuffix(".io.safetensors")).inputs
        self.weights = load_weights(self.config["weights"].removesuffix(".safetensors"))
        if self.config["kind"] == "eps_probe":
            self.weights = scaled_for_eps(self.weights, self.config)

    @property
    def prefix(self) -> str:
        return self.config.get("prefix", "")

    def module_weights(self, prefix: str | None = None) -> dict[str, torch.Tensor]:
        prefix = self.prefix if prefix is None else prefix
        return {k.removeprefix(prefix): v for k, v in self.weights.items() if k.startswith(prefix)}


def load_weights(name: str) -> dict[str, torch.Tensor]:
    """Stored as float16, partly as a difference to another file (deltas.json); upcast to float32."""
    deltas = json.loads((DATA / "deltas.json").read_text())
    weights: dict[str, torch.Tensor] = {}
    if name in deltas:
        dropped = set(deltas[name]["drop"])
        weights = {k: v for k, v in load_weights(deltas[name]["base"]).items() if k not in dropped}
    weights.update({k: v.float() for k, v in load_file(DATA / f"{name}.safetensors").items()})
    return weights


def scaled_for_eps(weights: dict[str, torch.Tensor], config: dict) -> dict[str, torch.Tensor]:
    """Shrink the layers in front of norms, so that the norms' eps decides the result."""
    scaled = {}
    for key, value in weights.items():
        name = key
        for prefix in ("model.diffusion_model.", "first_stage_model.", "model."):
            name = name.removeprefix(prefix)
        weight = weights.get(key.removesuffix(".bias") + ".weight")
        is_weight = value.ndim >= 2 and value.numel() > value.shape[0]
        is_bias = value.ndim == 1 and key.endswith(".bias") and weight is not None and weight.ndim >= 2
        if (is_weight or is_bias) and not any(part in name for part in config["excluded"]):
            attention = any(part in name for part in config["attention_keys"])
            value = value * config["attention_factor" if attention else "factor"]
        scaled[key] = value
    return scaled


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest deviation relative to the spread of the expected values."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} instead of {tuple(expected.shape)}"
    return ((actual.float() - expected).abs().max() / expected.std()).item()
