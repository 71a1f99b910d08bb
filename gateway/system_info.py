"""What machine and which packages this server runs on (spec: http-api.md section 10). Needs torch for devices."""

from __future__ import annotations

import sys
from typing import Any

from comfy.system_memory import system_memory
from gateway.frontend import installed_version

# The release of ComfyUI whose interface this server speaks; clients and packs compare it.
COMFYUI_VERSION = "0.33.0"
REQUIRED_FRONT_END = "1.49.6"
REQUIRED_TEMPLATES = "0.11.44"
REQUIRED_DOCS = "0.5.10"
PACKAGES = {
    "comfyui-frontend-package": REQUIRED_FRONT_END,
    "comfyui-workflow-templates": REQUIRED_TEMPLATES,
    "comfyui-embedded-docs": REQUIRED_DOCS,
}


def package_versions() -> list[dict[str, Any]]:
    """Installed and expected versions of the packages that are served as files."""
    return [
        {"name": name, "installed": installed_version(name), "required": required}
        for name, required in PACKAGES.items()
    ]


def devices() -> list[dict[str, Any]]:
    """The compute devices, the one in use first. All sizes in bytes."""
    import torch

    from comfy import model_management

    current = model_management.get_torch_device()
    found = [current]
    if current.type == "cuda":
        others = (torch.device("cuda", i) for i in range(torch.cuda.device_count()))
        found += [d for d in others if d.index != (current.index or 0)]
    described = []
    for device in found:
        total, torch_total = model_management.get_total_memory(device, torch_total_too=True)
        free, torch_free = model_management.get_free_memory(device, torch_free_too=True)
        described.append(
            {
                "name": model_management.get_torch_device_name(device),
                "type": device.type,
                "index": device.index,
                "vram_total": int(total),
                "vram_free": int(free),
                "torch_vram_total": int(torch_total),
                "torch_vram_free": int(torch_free),
            }
        )
    return described


def memory_report() -> dict[str, Any]:
    """The answer of GET /memory: the ledger of models."""
    from comfy import ledger

    return ledger.report()


def system_stats(result_cache: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of GET /system_stats. result_cache: what `PromptExecutor.cache_report` tells."""
    memory = system_memory()
    return {
        "system": {
            "os": sys.platform,
            "ram_total": memory.total,
            "ram_free": memory.available,
            "comfyui_version": COMFYUI_VERSION,
            "required_frontend_version": REQUIRED_FRONT_END,
            "installed_templates_version": installed_version("comfyui-workflow-templates"),
            "required_templates_version": REQUIRED_TEMPLATES,
            "comfy_package_versions": package_versions(),
            "python_version": sys.version,
            "pytorch_version": installed_version("torch"),
            "embedded_python": False,
            "deploy_environment": "local-git",
            "argv": sys.argv,
        },
        "devices": devices(),
        "result_cache": result_cache,
    }
