"""ControlNets, control LoRAs and T2I-Adapters against recorded control tensors and outputs."""

import json

import pytest
import torch
from safetensors.torch import save_file

import comfy.model_management
from comfy.controlnet import StrengthType, load_controlnet, load_controlnet_state_dict
from tests.addons.recorded_addons import ADDONS, host, recorded, weights
from tests.networks.golden import LIMIT, error

NET, CONFIG = recorded("controlnet_sd1")


@pytest.fixture
def model():
    patcher, _ = host("sd1")
    comfy.model_management.load_models_gpu([patcher])
    return patcher.model


@pytest.fixture
def inputs():
    return host("sd1")[1].inputs


def net(*files: str):
    """A control made of the files' tensors, later ones in place of earlier ones."""
    sd = {}
    for file in files or ("controlnet_sd1.safetensors",):
        sd.update(weights(file))
    return load_controlnet_state_dict(sd)


def control_of(control, model, inputs) -> dict:
    control.pre_run(model, model.model_sampling.percent_to_sigma)
    comfy.model_management.load_models_gpu(control.get_models())
    return control.get_control(inputs["x"], inputs["sigma"], {"c_crossattn": inputs["context"]}, 1, {})


def denoised(control, model, inputs) -> torch.Tensor:
    made = control_of(control, model, inputs)
    out = model.apply_model(inputs["x"], inputs["sigma"], c_crossattn=inputs["context"], control=made)
    control.cleanup()
    return out


def expect_control(made: dict, tensors: dict, prefix: str) -> None:
    names = [k for k in tensors if k.startswith(prefix)]
    assert names
    for name in names:
        kind, place = name.removeprefix(prefix).split(".")
        assert error(made[kind][int(place)], tensors[name]) < LIMIT, name


def test_control_tensors(model, inputs):
    control = net().set_cond_hint(NET["in.hint"], 1.0)
    made = control_of(control, model, inputs)
    assert [len(made[kind]) for kind in ("input", "middle", "output")] == [0, 1, 6]
    expect_control(made, NET, "out.s1.control.")


@pytest.mark.parametrize(
    "case, hint, strength", [("s1", "hint", 1.0), ("s06", "hint", 0.6), ("s1_resized_hint", "hint2", 1.0)]
)
def test_output(model, inputs, case, hint, strength):
    control = net().set_cond_hint(NET[f"in.{hint}"], strength)
    assert error(denoised(control, model, inputs), NET[f"out.{case}.denoised"]) < LIMIT


def test_chained(model, inputs):
    # The other net saw the other picture.
    first = net("controlnet_sd1.safetensors", "controlnet_sd1_b_delta.safetensors").set_cond_hint(NET["in.hint2"], 0.5)
    control = net().set_cond_hint(NET["in.hint"], 1.0).set_previous_controlnet(first)
    assert control.get_models() == [first.control_model_wrapped, control.control_model_wrapped]
    assert error(denoised(control, model, inputs), NET["out.chained.denoised"]) < LIMIT


def test_global_average_pooling(model, inputs):
    control = net().set_cond_hint(NET["in.hint"], 1.0)
    control.global_average_pooling = True
    assert error(denoised(control.copy(), model, inputs), NET["out.global_average_pooling.denoised"]) < LIMIT


def test_strength_that_grows_with_depth(model, inputs):
    control = net().set_cond_hint(NET["in.hint"], 0.7)
    control.strength_type = StrengthType.LINEAR_UP
    assert error(denoised(control.copy(), model, inputs), NET["out.strength_linear_up_07.denoised"]) < LIMIT


@pytest.mark.parametrize("case", CONFIG["active"])
def test_when_it_is_active(model, inputs, case):
    percents, sigma = case.split("@")
    start, end = (float(n) for n in percents.split("-"))
    control = net().set_cond_hint(NET["in.hint"], 1.0, (start, end))
    control.pre_run(model, model.model_sampling.percent_to_sigma)
    sigmas = torch.full((2,), float(sigma))
    made = control.get_control(inputs["x"], sigmas, {"c_crossattn": inputs["context"]}, 1, {})
    assert (made is not None) == CONFIG["active"][case]


def test_inactive_control_passes_the_chain_on(model, inputs):
    first = net().set_cond_hint(NET["in.hint"], 1.0)
    control = net().set_cond_hint(NET["in.hint"], 1.0, (0.0, 0.0)).set_previous_controlnet(first)
    expect_control(control_of(control, model, inputs), NET, "out.s1.control.")


def test_diffusers_layout(model, inputs):
    own = weights("controlnet_sd1.safetensors")
    names = json.loads((ADDONS / "controlnet_sd1_diffusers_map.json").read_text())
    assert len(names) == len(own)
    control = load_controlnet_state_dict({other: own[name] for other, name in names.items()})
    made = control_of(control.set_cond_hint(NET["in.hint"], 1.0), model, inputs)
    expect_control(made, NET, "out.s1.control.")


def test_file_in_half_precision(model, inputs, tmp_path):
    path = tmp_path / "net_shuffle.safetensors"
    save_file({k: v.half() for k, v in weights("controlnet_sd1.safetensors").items()}, path)
    control = load_controlnet(str(path))
    assert control.global_average_pooling
    assert control.control_model.dtype == torch.float16
    control.set_cond_hint(NET["in.hint"], 1.0)
    assert error(denoised(control, model, inputs), NET["out.global_average_pooling.denoised"]) < LIMIT


def test_control_lora(model, inputs):
    tensors, config = recorded("control_lora_sd1")
    control = load_controlnet_state_dict(weights("control_lora_sd1.safetensors"))
    control.set_cond_hint(NET["in.hint"], config["strength"])
    expect_control(control_of(control, model, inputs), tensors, "out.control.")
    assert error(denoised(control, model, inputs), tensors["out.denoised"]) < LIMIT
    assert control.control_model is None


@pytest.mark.parametrize("kind", ["full", "light"])
def test_t2i_adapter(model, inputs, kind):
    tensors, config = recorded("t2i")
    control = load_controlnet_state_dict(weights(f"t2i_{kind}.safetensors"))
    control.set_cond_hint(tensors["in.hint"], config["strength"])
    made = control_of(control, model, inputs)
    expect_control(made, tensors, f"out.{kind}.")
    assert [place for place, tensor in enumerate(made["input"]) if tensor is not None] == [0, 3]
