"""How long loading a Stable Diffusion 1.5 checkpoint takes, and how much memory.

Writes a checkpoint of the published size (float16, about 2 GB, random values) into a temporary folder, then runs each
measurement in a process of its own:

    read     the file read once, start to end: the lower bound
    load     load_checkpoint_guess_config: model, text encoder, VAE ready to use
    use      load, then one evaluation of every part (small inputs), so that every weight has been touched
    upcast   the same with the diffusion model kept in float32 instead of being cast layer by layer

    python bench/load.py [--dir FOLDER] [--limit 1.3]

Exit status 1 when the peak memory of `use` is above the limit times the file's size.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEYS = ROOT / "tests" / "data" / "models" / "keys" / "sd15.json.gz"
CHUNK = 1 << 22
LATENT_CELLS = 16


def write_checkpoint(path: Path) -> int:
    """A safetensors file with the tensors of the key map, written without holding it in memory. Returns its size."""
    shapes = json.loads(gzip.decompress(KEYS.read_bytes()))
    header, offset = {}, 0
    for key, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[key] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    # float16 numbers of about +-0.01: a random mantissa and sign with a fixed exponent.
    noise = bytearray(os.urandom(CHUNK))
    noise[1::2] = bytes((b & 0x83) | 0x20 for b in noise[1::2])
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(encoded)) + encoded)
        for start in range(0, offset, CHUNK):
            f.write(noise[: min(CHUNK, offset - start)])
    return path.stat().st_size


def measure_read(path: str) -> dict[str, float]:
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as f:
        buffer = bytearray(CHUNK)
        while f.readinto(buffer):
            pass
    return {"seconds": time.perf_counter() - start}


def measure_load(path: str, use: bool = False, upcast: bool = False) -> dict[str, float]:
    sys.path.insert(0, str(ROOT))
    import torch

    import comfy.sd

    before = peak_bytes()
    options = {"dtype": torch.float32} if upcast else {}
    start = time.perf_counter()
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(path, model_options=options)
    result = {"seconds": time.perf_counter() - start, "before": before, "loaded": peak_bytes()}
    if not use:
        return result
    with torch.inference_mode():
        start = time.perf_counter()
        context = clip.encode("a photo of a cat")
        result["text"] = time.perf_counter() - start

        latent = torch.randn(1, 4, LATENT_CELLS, LATENT_CELLS)
        sigma = torch.full((1,), 5.0)
        steps = []
        for _ in range(3):
            start = time.perf_counter()
            model.model.apply_model(latent, sigma, c_crossattn=context)
            steps.append(time.perf_counter() - start)
        result["first_step"], result["step"] = steps[0], min(steps[1:])

        start = time.perf_counter()
        vae.decode(latent)
        vae.encode(torch.rand(1, 8 * LATENT_CELLS, 8 * LATENT_CELLS, 3))
        result["vae"] = time.perf_counter() - start
    return result


def peak_bytes() -> int:
    """Peak resident memory of this process so far, mapped pages of the file included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


MEASUREMENTS = {
    "read": measure_read,
    "load": measure_load,
    "use": lambda path: measure_load(path, use=True),
    "upcast": lambda path: measure_load(path, use=True, upcast=True),
}


def run(name: str, path: Path) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, __file__, "--measure", name, str(path)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=None, help="where to put the checkpoint (default: a temporary folder)")
    parser.add_argument("--limit", type=float, default=1.3, help="allowed peak memory, in file sizes")
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, path = args.measure
        result = MEASUREMENTS[name](path)
        print(json.dumps({**result, "peak": peak_bytes()}))
        return 0

    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        path = Path(folder) / "sd15.safetensors"
        size = write_checkpoint(path)
        run("read", path)  # into the page cache, so that no measurement pays for the disk
        results = {name: run(name, path) for name in MEASUREMENTS}

    print(f"checkpoint: {size / 1e9:.2f} GB, float16; file in the page cache\n")
    print(f"{'':8} {'load s':>8} {'x read':>8} {'peak GB':>9} {'x file':>7} {'without Python and torch':>25}")
    read = results["read"]["seconds"]
    for name, r in results.items():
        peak, own = r["peak"], r["peak"] - r.get("before", 0)
        print(
            f"{name:8} {r['seconds']:8.2f} {r['seconds'] / read:8.2f} {peak / 1e9:9.2f} {peak / size:7.2f}"
            + (f" {own / size:25.2f}" if "before" in r else "")
        )
    print(f"\n{'':8} {'text s':>8} {'1st step':>9} {'step s':>8} {'vae s':>8}")
    for name in ("use", "upcast"):
        r = results[name]
        print(f"{name:8} {r['text']:8.2f} {r['first_step']:9.2f} {r['step']:8.2f} {r['vae']:8.2f}")

    ratio = results["use"]["peak"] / size
    print(f"\npeak of use: {ratio:.2f} x file size (limit {args.limit})")
    return 0 if ratio <= args.limit else 1


if __name__ == "__main__":
    sys.exit(main())
