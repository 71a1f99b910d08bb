"""Network files in the layout of diffusers: which family they are of, and that they make the same network."""

import pytest
import torch

import comfy.sd
from comfy.models.diffusers_layout import DiffusersLayoutError, to_own_layout
from comfy.models.diffusers_names import diffusers_names
from tests.architectures.recorded import key_map
from tests.families.models import family_model
from tests.families.test_detection import DETECTED
from tests.networks.golden import Golden


@pytest.mark.parametrize("name", DETECTED["diffusers_layout"])
def test_published_files(name):
    recorded = DETECTED["diffusers_layout"][name]
    # The recorded maps have the vector's layers under both names that diffusers knows for them.
    sd = {k: v for k, v in key_map(name).items() if not k.startswith("class_embedding.")}
    converted = to_own_layout(sd)
    if "keys_out" in recorded:
        assert len(converted) == recorded["keys_out"]
    assert sum(v.numel() for v in converted.values()) == sum(v.numel() for v in sd.values())
    model = comfy.sd.load_diffusion_model_state_dict(sd).model
    assert type(model.model_config).__name__ == recorded["model_class"]


def as_diffusers(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights as diffusers would keep them."""
    out = {}
    for name, place in diffusers_names({k: v.shape for k, v in own.items()}).items():
        if isinstance(place, str):
            out[name] = own[place]
        elif place[1] is None:
            # Exchanging halves twice is nothing.
            out[name] = place[2](own[place[0]])
        else:
            dim, start, length = place[1]
            out[name] = own[place[0]].narrow(dim, start, length)
    return out


@pytest.mark.parametrize(
    "name",
    ["unet_sd1", "unet_sd2_v", "unet_sdxl", "mmdit_sd3", "mmdit_sd35_medium", "flux_dev", "auraflow", "pixart_sigma"],
)
def test_values_come_to_their_places(name):
    own = family_model(Golden(name)).diffusion_model.state_dict()
    converted = to_own_layout(as_diffusers(own))
    assert converted.keys() == own.keys()
    for key in own:
        assert torch.equal(converted[key], own[key]), key


def test_missing_part_of_a_fused_tensor_is_told():
    sd = key_map("sd3_medium_diffusers")
    del sd["transformer_blocks.0.attn.to_k.weight"]
    with pytest.raises(DiffusersLayoutError, match=r"joint_blocks\.0\.x_block\.attn\.qkv\.weight"):
        to_own_layout(sd)


def test_other_layouts_are_left_alone():
    assert to_own_layout(key_map("flux_dev")) is None
