"""Block-wise controls of Qwen-Image. No recording: the published layout, and what must hold for any weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import folder_paths
import nodes
from comfy.model_patcher import ModelPatcher
from comfy.model_patches import UnknownModelPatch, load_model_patch
from comfy.models.dit import BlockHooks
from nodes.model_patches import NotForThisModel
from tests.addons.recorded_addons import host
from tests.addons.transformer_controls import drawn, random
from tests.families.models import family_model
from tests.networks.golden import Golden, error

NODES = nodes.NODE_CLASS_MAPPINGS


@pytest.fixture(scope="module")
def qwen():
    golden = Golden("qwen_image")
    return ModelPatcher(family_model(golden), torch.device("cpu"), torch.device("cpu")), golden


def file_for(width: int, blocks: int, in_width: int = 64, added: float = 1.0) -> dict[str, torch.Tensor]:
    shapes = {"img_in.weight": (width, in_width), "img_in.bias": (width,)}
    for i in range(blocks):
        block = f"controlnet_blocks.{i}."
        shapes |= {block + "x_rms.weight": (width,), block + "y_rms.weight": (width,)}
        for layer in ("input_proj", "output_proj"):
            shapes |= {f"{block}{layer}.weight": (width, width), f"{block}{layer}.bias": (width,)}
    return {k: v * (added if ".output_proj." in k else 1.0) for k, v in drawn(shapes).items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["model_patches"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "model_patches", ([str(tmp_path)], extensions))
    return tmp_path


class PictureVAE:
    """16 channels of the picture's means, with a frame."""

    def __init__(self):
        self.seen = []

    def spacial_compression_encode(self) -> int:
        return 8

    def encode(self, pixels):
        self.seen.append(pixels)
        means = torch.nn.functional.avg_pool2d(pixels.movedim(-1, 1), 8).mean(1, keepdim=True)
        return means.expand(-1, 16, -1, -1).unsqueeze(2).clone()


def loaded(folder, qwen, **options):
    config = qwen[0].model.diffusion_model.config
    save_file(file_for(config.width, config.num_layers, **options), folder / "control.safetensors")
    return NODES["ModelPatchLoader"]().load_model_patch("control.safetensors")[0]


def denoised(patcher, golden) -> torch.Tensor:
    given = golden.inputs
    options = patcher.model_options.get("transformer_options", {})
    return patcher.model.apply_model(
        given["x"], given["sigma"], c_crossattn=given["context"], transformer_options=options
    )


def apply(qwen, patch, vae, strength=1.0, mask=None):
    image = random("image", 1, 64, 96, 3).sigmoid()
    return NODES["QwenImageDiffsynthControlnet"]().diffsynth_controlnet(qwen[0], patch, vae, image, strength, mask)[0]


def test_control_adds_after_every_block(folder, qwen):
    plain = denoised(*qwen)
    patch, vae = loaded(folder, qwen), PictureVAE()
    patched = apply(qwen, patch, vae)
    assert patched.get_additional_models() == [patch] or patched.get_additional_models()[0].is_clone(patch)
    first = denoised(patched, qwen[1])
    assert error(first, plain) > 1e-3
    assert torch.equal(denoised(patched, qwen[1]), first) and len(vae.seen) == 1
    height, width = qwen[1].inputs["x"].shape[-2:]
    assert vae.seen[0].shape == (1, height * 8, width * 8, 3)
    assert torch.equal(denoised(*qwen), plain)


def test_nothing_is_added_without_an_output(folder, qwen):
    patched = apply(qwen, loaded(folder, qwen, added=0.0), PictureVAE())
    assert error(denoised(patched, qwen[1]), denoised(*qwen)) < 1e-6
    assert apply(qwen, loaded(folder, qwen), PictureVAE(), strength=0.0) is qwen[0]


def test_sum_is_the_networks_own(folder, qwen):
    """One block: what is added is the block's output, times the strength."""
    patch = loaded(folder, qwen)
    width = patch.model.img_in.out_features
    from comfy.model_patches import BlockwisePatch

    made = BlockwisePatch(patch, PictureVAE(), torch.rand(1, 64, 64, 3), 0.5, None, qwen[0].model)
    img, x = random("tokens", 2, 20, width), torch.zeros(2, 16, 1, 8, 8)
    out = made({"img": img, "txt": None, "x": x, "block_index": 1})["img"]
    hint = patch.model.img_in(made.hint)
    expected = img.clone()
    expected[:, :16] += 0.5 * patch.model.controlnet_blocks[1](img[:, :16], hint)
    assert torch.allclose(out, expected, atol=1e-6) and torch.equal(out[:, 16:], img[:, 16:])


def test_mask_blackens_and_goes_beside(folder, qwen):
    patch, vae = loaded(folder, qwen, in_width=68), PictureVAE()
    mask = torch.zeros(1, 64, 96)
    mask[:, :, 48:] = 1.0
    from comfy.model_patches import BlockwisePatch

    made = BlockwisePatch(patch, vae, torch.ones(1, 64, 96, 3), 1.0, mask, qwen[0].model)
    tokens = made._hint_tokens(8, 12)
    assert tokens.shape == (1, 24, 68)
    assert vae.seen[0][..., :48, :].min() == 1 and vae.seen[0][..., 48:, :].max() == 0
    keep = tokens[0, :, 64:].reshape(4, 6, 4)
    assert keep[:, :3].min() == 1 and keep[:, 3:].max() == 0


def test_other_models_and_files_are_refused(folder, qwen):
    patch = loaded(folder, qwen)
    node = NODES["QwenImageDiffsynthControlnet"]()
    with pytest.raises(NotForThisModel, match="UNetModel"):
        node.diffsynth_controlnet(host("sd1")[0], patch, None, torch.zeros(1, 8, 8, 3), 1.0)
    save_file({"a": torch.zeros(1)}, folder / "other.safetensors")
    with pytest.raises(UnknownModelPatch, match=r"other\.safetensors.*such as a"):
        load_model_patch(str(folder / "other.safetensors"))
    save_file(file_for(32, 2), folder / "narrow.safetensors")
    narrow = load_model_patch(str(folder / "narrow.safetensors"))
    with pytest.raises(NotForThisModel, match="32 wide"):
        node.diffsynth_controlnet(qwen[0], narrow, None, torch.zeros(1, 8, 8, 3), 1.0)


def test_patches_see_what_blocks_put_out():
    seen = []

    def patch(values):
        seen.append((values["block_index"], values["x"]))
        return {"img": values["img"] + 1, "unknown": 3}

    hooks = BlockHooks({"patches": {"double_block": [patch, patch]}}, 2, torch.zeros(1))
    out = hooks.run("double_block", 1, lambda args: {"img": args["img"] * 2, "txt": 5}, {"img": torch.ones(1)})
    assert out["img"].item() == 4 and out["txt"] == 5 and "unknown" not in out
    assert [number for number, _ in seen] == [1, 1] and seen[0][1].item() == 0
    assert hooks.run("single_block", 0, lambda args: {"img": args["img"]}, {"img": 7})["img"] == 7
