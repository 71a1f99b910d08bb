"""GLIGEN: against diffusers' parts of it, in a UNet, and through the nodes."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import folder_paths
import nodes
from comfy.gligen import MAX_OBJECTS, GligenModel, UnknownGligenError, load_gligen, load_gligen_state_dict
from comfy.models.gligen import fuser_prefixes
from tests.addons.record_gligen import BOXES, FILE
from tests.addons.recorded_addons import host
from tests.addons.transformer_controls import drawn, random
from tests.networks.golden import LIMIT, error

with safe_open(FILE, "pt") as f:
    RECORDED = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
    SHAPES = json.loads(f.metadata()["shapes"])


def weights(*fusers: str) -> dict[str, torch.Tensor]:
    sd = drawn(SHAPES)
    out = {k: v for k, v in sd.items() if k.startswith("position_net.")}
    for i, name in enumerate(fusers):
        for key, value in sd.items():
            if key.startswith("fuser."):
                out[f"{name}.transformer_blocks.0.{key}"] = value + i * 0.01
    return out


def for_host() -> dict[str, torch.Tensor]:
    """Fusers for every transformer of the small UNet, of its widths."""
    model, _ = host("sd1")
    sd = model.model.diffusion_model.state_dict()
    # Large enough for boxes to differ.
    out = {k: v * 8 for k, v in drawn(SHAPES).items() if k.startswith("position_net.")}
    for key, value in sd.items():
        if not key.endswith(".transformer_blocks.0.attn1.to_q.weight"):
            continue
        block, width = key.removesuffix("attn1.to_q.weight"), value.shape[0]
        shapes = {
            "linear.weight": (width, 768),
            "linear.bias": (width,),
            **{f"attn.to_{x}.weight": (width, width) for x in "qkv"},
            "attn.to_out.0.weight": (width, width),
            "attn.to_out.0.bias": (width,),
            "ff.net.0.proj.weight": (8 * width, width),
            "ff.net.0.proj.bias": (8 * width,),
            "ff.net.2.weight": (width, 4 * width),
            "ff.net.2.bias": (width,),
            **{f"norm{i}.{kind}": (width,) for i in (1, 2) for kind in ("weight", "bias")},
            "alpha_attn": (),
            "alpha_dense": (),
        }
        out.update({f"{block}fuser.{k}": v for k, v in drawn(shapes).items()})
        out[f"{block}fuser.alpha_attn"] = torch.tensor(1.0)
    return out


def test_parts_are_those_of_diffusers():
    model = load_gligen_state_dict(weights("input_blocks.1.1"))
    objects = model.position_net(BOXES, torch.tensor([[1.0, 1.0, 0.0]]), random("texts", 1, 3, 24))
    assert error(objects, RECORDED["objects"]) < LIMIT
    assert error(model.module_list[0](random("x", 1, 6, 32), objects), RECORDED["out"]) < LIMIT


def test_boxes_become_edges_and_the_rest_is_filled_up():
    model = load_gligen_state_dict(weights("input_blocks.1.1"))
    texts = random("texts", 1, 3, 24)
    # Sizes of latent 20 x 10; the recorded boxes in cells.
    boxes = [(texts[:, 0], 7, 10, 2, 2), (texts[:, 1], 5, 10, 0, 10)]
    edges = torch.tensor([[[0.1, 0.2, 0.6, 0.9], [0.5, 0.0, 1.0, 0.5], *[[0.0] * 4] * (MAX_OBJECTS - 2)]])
    given = torch.zeros(1, MAX_OBJECTS)
    given[:, :2] = 1.0
    filled = torch.cat([texts[:, :2], torch.zeros(1, MAX_OBJECTS - 2, 24)], dim=1)
    objects = model.position_net(edges, given, filled).expand(2, -1, -1)
    expected = model.module_list[0](random("x", 1, 6, 32).expand(2, -1, -1), objects)
    patch = model.set_position((2, 4, 10, 20), boxes, "cpu")
    assert torch.allclose(patch(random("x", 1, 6, 32).expand(2, -1, -1), {"transformer_index": 0}), expected)
    assert model.set_position((1, 4, 10, 20), boxes * 40, "cpu") is not None


def test_fusers_are_in_the_order_of_the_unet():
    names = ["output_blocks.10.1", "output_blocks.3.1", "middle_block.1", "input_blocks.2.1", "input_blocks.11.1"]
    found = fuser_prefixes(weights(*names))
    assert [p.split(".transformer")[0] for p in found] == [names[3], names[4], names[2], names[1], names[0]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["gligen"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "gligen", ([str(tmp_path)], extensions))
    return tmp_path


class Text:
    """Stands in for a text encoder."""

    def tokenize(self, text):
        return text

    def encode_from_tokens(self, tokens, return_pooled):
        assert return_pooled == "unprojected"
        return None, random(tokens, 1, 24)


def sampled(model, positive):
    negative = [[random("negative", 1, 13, 24), {}]]
    latent = {"samples": torch.zeros(1, 4, 16, 16)}
    return nodes.common_ksampler(model, 1, 2, 3.0, "euler", "normal", positive, negative, latent)[0]["samples"]


def test_boxes_steer_sampling(folder):
    save_file(for_host(), folder / "boxes.safetensors")
    (gligen,) = nodes.GLIGENLoader().load_gligen("boxes.safetensors")
    assert isinstance(gligen.model, GligenModel)
    model, _ = host("sd1")
    positive = [[random("positive", 1, 13, 24), {}]]
    apply = nodes.GLIGENTextBoxApply().append
    (one,) = apply(positive, Text(), gligen, "a cat", 64, 64, 0, 0)
    (two,) = apply(one, Text(), gligen, "a dog", 64, 64, 64, 64)
    assert "gligen" not in positive[0][1] and len(one[0][1]["gligen"][2]) == 1 and len(two[0][1]["gligen"][2]) == 2
    assert two[0][1]["gligen"][2][1][1:] == (8, 8, 8, 8)
    plain, first, second = (sampled(model, conditioning) for conditioning in (positive, one, two))
    assert error(first, plain) > 1e-3
    # One place of thirty: little, in these random weights.
    assert error(second, first) > 1e-5
    (moved,) = apply(positive, Text(), gligen, "a cat", 64, 64, 64, 0)
    assert error(sampled(model, moved), first) > 1e-5
    assert torch.equal(sampled(model, positive), plain)


def test_closed_gates_change_nothing(folder):
    closed = {k: v * 0 if ".alpha_" in k else v for k, v in for_host().items()}
    save_file(closed, folder / "closed.safetensors")
    (gligen,) = nodes.GLIGENLoader().load_gligen("closed.safetensors")
    model, _ = host("sd1")
    positive = [[random("positive", 1, 13, 24), {}]]
    (boxed,) = nodes.GLIGENTextBoxApply().append(positive, Text(), gligen, "a cat", 64, 64, 0, 0)
    assert error(sampled(model, boxed), sampled(model, positive)) < 1e-5


def test_other_files_are_named(folder):
    save_file({"decoder.conv_in.weight": torch.zeros(2)}, folder / "vae.safetensors")
    with pytest.raises(UnknownGligenError, match=r"vae\.safetensors.*fuser"):
        load_gligen(str(folder / "vae.safetensors"))
    incomplete = weights("input_blocks.1.1")
    del incomplete["input_blocks.1.1.transformer_blocks.0.fuser.norm1.weight"]
    save_file(incomplete, folder / "part.safetensors")
    with pytest.raises(UnknownGligenError, match=r"part\.safetensors.*norm1\.weight"):
        load_gligen(str(folder / "part.safetensors"))
