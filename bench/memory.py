"""What moves between host and device in a recorded session, on simulated graphics cards of three sizes.

SDXL with two LoRAs, a ControlNet and an upscaler, taking turns with Flux: networks of real size on the meta device, so
the decisions are real and the bytes exact, while no weight is held. Each prompt does three sampling steps.

    python bench/memory.py [--gb 4 8 24] [--json]

Exit status 1 when a peak is above the card's memory, or a repeated prompt moves anything although all of it fits.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PROMPTS = (
    "SDXL, first",
    "SDXL, the same again",
    "SDXL, one LoRA stronger",
    "Flux, first",
    "Flux, again",
    "SDXL, back",
    "Flux, back",
    "SDXL, back",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, nargs="+", default=[4, 8, 24], help="sizes of the cards")
    parser.add_argument("--json", action="store_true", help="print the counters as JSON")
    given = parser.parse_args()

    from comfy.device_memory import GB
    from tests.memory.workload import run_session

    good = True
    report = {}
    for size in given.gb:
        session = run_session(int(size * GB))
        report[f"{size:g} GB"] = [{"name": m.name, "peak": m.peak, **asdict(m.counters)} for m in session]
        good &= all(m.peak <= size * GB for m in session)
        again = session[1].counters
        if session[0].counters.evictions == session[0].counters.streamed == 0:  # all of it fits
            good &= again.moved() == again.patches == 0
        if given.json:
            continue
        print(f"\ncard of {size:g} GB")
        columns = ("peak GB", "copied", "streamed", "patches", "evictions")
        print(f"{'':26}" + "".join(f"{column:>10}" for column in columns))
        for name, m in zip(PROMPTS, session):
            c = m.counters
            gigabytes = (m.peak / GB, c.copied_bytes / GB, c.streamed_bytes / GB)
            print(f"{name:26}" + "".join(f"{v:10.2f}" for v in gigabytes) + f"{c.patches:10}{c.evictions:10}")
    if given.json:
        print(json.dumps(report))
    else:
        print(f"\npeaks within the card, nothing moves twice where it fits: {'yes' if good else 'NO'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
