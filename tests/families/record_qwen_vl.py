"""Makes tests/data/models/qwen_vl.safetensors: what a small Qwen 2.5 VL of the transformers library puts out.

Not a test. Run with that library (recorded with 5.24.0) in the path: `python -m tests.families.record_qwen_vl`. Weights
and inputs are drawn, so that only outputs are stored.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file

from tests.addons.transformer_controls import drawn, random
from tests.networks.golden import DATA

FILE = DATA / "qwen_vl.safetensors"
HEAD, SECTIONS, VISION_HEAD, FULL = 16, (2, 3, 3), 16, (1,)
VOCABULARY, PICTURE, START, END = 64, 60, 61, 62
WORDS_BEFORE, WORDS_BETWEEN, WORDS_AFTER = [1, 2, 3, 61], [62, 7, 61], [62, 9, 10]


def pictures() -> list[torch.Tensor]:
    return [random("first picture", 1, 200, 300, 3).sigmoid(), random("second picture", 1, 90, 60, 3).sigmoid()]


def weights(shapes: dict) -> dict[str, torch.Tensor]:
    """Under this program's names; norms near 1."""
    return {k: v + 1.0 if "norm" in k or "ln_q" in k else v * 2.0 for k, v in drawn(shapes).items()}


def main() -> None:
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    from comfy.text_encoders.qwen_vision import patches_of

    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(SECTIONS)},
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_heads": 2,
            "out_hidden_size": 48,
            "fullatt_block_indexes": list(FULL),
        },
        image_token_id=PICTURE,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    net = Qwen2_5_VLModel._from_config(config).eval().float()

    def own(key: str) -> str:
        return key if key.startswith("visual.") else key.replace("language_model.", "model.")

    shapes = {own(k): list(v.shape) for k, v in net.state_dict().items()}
    made = weights(shapes)
    net.load_state_dict({k: made[own(k)] for k in net.state_dict()})
    shown = [patches_of(picture[0]) for picture in pictures()]
    counts = [rows * columns // 4 for _, (rows, columns) in shown]
    ids = [*WORDS_BEFORE, *[PICTURE] * counts[0], *WORDS_BETWEEN, *[PICTURE] * counts[1], *WORDS_AFTER]
    tokens = torch.tensor([ids])
    out = net(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        pixel_values=torch.cat([patches for patches, _ in shown]),
        image_grid_thw=torch.tensor([[1, *size] for _, size in shown]),
        mm_token_type_ids=(tokens == PICTURE).long(),
    ).last_hidden_state
    save_file({"out": out.contiguous()}, FILE, metadata={"shapes": json.dumps(shapes), "made by": "transformers"})
    sys.stdout.write(f"{out.shape} {FILE.stat().st_size} bytes\n")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
