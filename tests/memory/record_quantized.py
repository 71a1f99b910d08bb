"""Makes tests/data/quantized.safetensors.gz: numbers as comfy-kitchen stores them, and as it reads them again.

Not a test. Run with the library (recorded with 0.2.40) in the path: `python -m tests.memory.record_quantized`. Most of
the numbers are zeros, so that the file packs well.
"""

from __future__ import annotations

import gzip
import sys

import torch
from safetensors.torch import save
from torch import Tensor

from tests.networks.golden import DATA

FILE = DATA.parent / "quantized.safetensors.gz"


def drawn(rows: int, columns: int, share: float, generator: torch.Generator) -> Tensor:
    """Multiples of powers of two, `share` of them not zero."""
    values = torch.randint(-100, 101, (rows, columns), generator=generator).float() / 64
    kept = torch.rand(rows, columns, generator=generator) < share
    return values * kept * 2.0 ** torch.randint(-3, 4, (rows, 1), generator=generator)


def main() -> None:
    import comfy_kitchen
    from comfy_kitchen.tensor import TensorCoreMXFP8Layout, TensorCoreNVFP4Layout, TensorWiseINT8Layout

    generator = torch.Generator().manual_seed(7)
    out: dict[str, Tensor] = {}

    def note(name: str, **tensors: Tensor) -> None:
        out.update({f"{name}.{key}": tensor.clone().contiguous() for key, tensor in tensors.items()})

    stored, params = TensorCoreNVFP4Layout.quantize(drawn(144, 96, 0.03, generator))
    values = comfy_kitchen.dequantize_nvfp4(stored, params.scale, params.block_scale, torch.float32)
    note("nvfp4", weight=stored, weight_scale=params.block_scale, weight_scale_2=params.scale, values=values)

    stored, params = TensorCoreMXFP8Layout.quantize(drawn(160, 160, 0.02, generator))
    values = comfy_kitchen.dequantize_mxfp8(stored, params.scale, torch.float32)
    # As bytes: not every version of the file format knows float8 of exponents alone.
    note("mxfp8", weight=stored, weight_scale=params.scale.view(torch.uint8), values=values)

    whole = drawn(12, 64, 0.5, generator)
    rotation = {"convrot": True, "convrot_groupsize": 16}
    kinds = {"rotated": {"per_channel": True, **rotation}, "rows": {"per_channel": True}, "whole": {}}
    for name, options in kinds.items():
        stored, params = TensorWiseINT8Layout.quantize(whole, **options)
        note(name, weight=stored, weight_scale=params.scale, values=TensorWiseINT8Layout.dequantize(stored, params))

    FILE.write_bytes(gzip.compress(save(out), 9, mtime=0))
    sys.stdout.write(f"{FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
