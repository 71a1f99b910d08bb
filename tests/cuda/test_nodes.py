"""Nodes get pictures and latents that are on the device (`--gpu-only`), all of them or some: the recorded results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import folder_paths
from comfy import devices
from comfy.cli_args import args
from tests.cuda.simulation import DEVICE
from tests.nodes.golden_format import compare
from tests.nodes.runner import GraphRunner, NodeFailed
from tests.nodes.stand_ins import StandInVAE
from tests.nodes.test_recorded import CASES, DATA, GOLDENS, NEEDS_AV, TOLERANCES, WORKFLOW, error_name, plain

HOST = torch.device("cpu")
BY_NODE: dict[str, list[dict]] = {}
for _case in CASES:
    if _case["node"] not in NEEDS_AV:
        BY_NODE.setdefault(_case["node"], []).append(_case)


def moved(value: Any, device: torch.device) -> Any:
    """Everything nested in a value on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    return value


@pytest.fixture
def gpu_only(cuda, monkeypatch, tmp_path):
    """Tensors pass between nodes on the device."""
    monkeypatch.setattr(devices, "vram_state", devices.VRAMState.HIGH_VRAM)
    monkeypatch.setattr(args, "gpu_only", True)
    for name in ("input", "output", "temp"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(folder_paths, f"{name}_directory", str(tmp_path / name))
    # The stand-in for a VAE computes on the host, as a real one would do on the device of its own.
    for name in ("encode", "decode", "encode_tiled", "decode_tiled"):
        if (method := getattr(StandInVAE, name, None)) is not None:
            monkeypatch.setattr(
                StandInVAE,
                name,
                lambda self, tensor, *rest, method=method, **options: moved(
                    method(self, moved(tensor, HOST), *rest, **options), DEVICE
                ),
            )
    return cuda


def problems_of(case: dict, there: set[str]) -> list:
    """What is different from the recording when the values of these sources are on the device."""
    for kind in ("output", "temp"):  # or files would get other numbers
        folder = Path(getattr(folder_paths, f"{kind}_directory"))
        shutil.rmtree(folder)
        folder.mkdir()
    prompt, links = GOLDENS.prompt(case)
    sources = {k: moved(v, DEVICE) if k in there else v for k, v in GOLDENS.source_values(case).items()}
    runner = GraphRunner(prompt, sources, WORKFLOW)
    error, slots = None, None
    try:
        slots = [moved(runner.slot(link), HOST) for link in links] if links else runner.run_for_ui("t")
    except NodeFailed as failure:
        error = failure.error
        if case.get("error") and "device" not in str(error):
            return []  # which error it is, is tested where it was recorded
    case = {**case, "tol": TOLERANCES.get(case["id"], case["tol"])}
    return compare(case, GOLDENS, slots, ui=runner.ui.get("t"), error=error_name(error), plain=plain) and [
        case["id"],
        sorted(there),
        repr(error)[:200],
    ]


@pytest.mark.parametrize("name", sorted(BY_NODE))
def test_recorded_cases(gpu_only, tmp_path, name):
    if name.startswith("Load"):
        shutil.copytree(DATA / "files", tmp_path / "input", dirs_exist_ok=True)
    for case in BY_NODE[name]:
        if case.get("pre_files"):
            continue
        values = GOLDENS.source_values(case).items()
        holding = {name for name, v in values if any(isinstance(item, torch.Tensor | dict) for item in v)}
        places = [holding] + [{one} for one in sorted(holding) if len(holding) > 1]
        assert [found for there in places if (found := problems_of(case, there))] == []
