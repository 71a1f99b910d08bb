"""Names that one pack uses, where that pack is widely used: that they are there and do what the pack needs."""

from __future__ import annotations

import uuid

import pytest
import torch


def test_modules_taken_from_the_server():
    """Video Helper Suite queues its own prompt again under an id from `server.uuid`."""
    import server

    assert uuid.UUID(str(server.uuid.uuid4())).version == 4
    assert server.web.json_response({}).status == 200


@pytest.mark.parametrize("dtype, largest", [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, 57344.0)])
def test_stochastic_rounding_is_right_on_average(dtype, largest):
    from comfy.float import stochastic_rounding

    for value in (0.3, -1.7, 100.1, 0.0011):
        exact = torch.full((20_000,), value)
        rounded = stochastic_rounding(exact, dtype, seed=3)
        assert rounded.dtype == dtype
        found = rounded.float().unique()
        assert len(found) == 2 and found.min() < value < found.max()
        assert rounded.float().mean().item() == pytest.approx(value, rel=0.01)
        assert torch.equal(rounded.float(), stochastic_rounding(exact, dtype, seed=3).float())
    kept = torch.tensor([0.0, 0.5, -448.0, 1.75, largest])
    assert torch.equal(stochastic_rounding(kept, dtype).float(), kept)
    beyond = stochastic_rounding(torch.tensor([1e9, -float("inf"), float("nan")]), dtype).float()
    assert beyond[:2].tolist() == [largest, -largest] and beyond[2].isnan()
    assert stochastic_rounding(kept, torch.bfloat16).dtype == torch.bfloat16


def test_names_that_stand_beside_others():
    import comfy.model_base
    import comfy.model_management
    import comfy.model_patcher
    import comfy.sd1_clip
    import latent_preview
    import nodes

    assert comfy.sd1_clip.parse_parentheses("a (b) c") == ["a ", "(b)", " c"]
    assert comfy.model_patcher.PatcherInjection and latent_preview.TAESD
    options = comfy.model_patcher.set_model_options_post_cfg_function({}, len, disable_cfg1_optimization=True)
    assert options == {"sampler_post_cfg_function": [len], "disable_cfg1_optimization": True}
    assert comfy.model_management.XFORMERS_IS_AVAILABLE is False
    half = comfy.model_base.convert_tensor(torch.ones(2), torch.float16, torch.device("cpu"))
    whole = comfy.model_base.convert_tensor(torch.ones(2, dtype=torch.long), torch.float16, torch.device("cpu"))
    assert (half.dtype, whole.dtype) == (torch.float16, torch.long)
    for name in ("ImageScale", "ImageScaleBy", "LatentUpscale", "LatentUpscaleBy"):
        cls = nodes.NODE_CLASS_MAPPINGS[name]
        assert cls.upscale_methods == cls.INPUT_TYPES()["required"]["upscale_method"][0]


def test_log_and_extra_paths(tmp_path, monkeypatch):
    from app.logger import get_logs
    from utils.extra_config import load_extra_path_config

    import folder_paths
    import logs

    logs.buffer.write("a line of output")
    assert get_logs()[-1]["m"] == "a line of output"
    monkeypatch.setattr(folder_paths, "folder_names_and_paths", dict(folder_paths.folder_names_and_paths))
    config = tmp_path / "extra.yaml"
    config.write_text("mine:\n  things: models/things\n", encoding="utf-8")
    load_extra_path_config(str(config))
    assert folder_paths.get_folder_paths("things") == [str(tmp_path / "models" / "things")]


# --- an attention function of a pack's own, as KJNodes' patches for SageAttention set it


def sampled(model, clip, steps=2):
    import nodes

    cond = nodes.CLIPTextEncode().encode(clip, "a")[0]
    latent = nodes.EmptyLatentImage().generate(32, 32, 1)[0]
    return nodes.common_ksampler(model, 1, steps, 1.0, "euler", "normal", cond, cond, latent)[0]["samples"]


def test_an_override_of_attention_reaches_every_attention_of_the_network(tiny_checkpoint):
    from comfy.ldm.modules.attention import attention_pytorch, optimized_attention, wrap_attn

    @wrap_attn
    def own_attention(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, **kwargs):
        return attention_pytorch(q, k, v, heads, mask=mask, skip_reshape=skip_reshape)

    def override(function, *args, **kwargs):
        seen.append(kwargs["transformer_options"]["sigmas"])
        return own_attention.__wrapped__(*args, **kwargs)

    seen = []
    plain, clip = tiny_checkpoint[:2]
    expected = sampled(plain, clip)
    model = plain.clone()
    model.model_options["transformer_options"]["optimized_attention_override"] = override
    assert torch.equal(sampled(model, clip), expected)
    blocks = [m for m in model.model.diffusion_model.modules() if type(m).__name__ == "CrossAttention"]
    assert blocks and len(seen) == 2 * len(blocks)
    model.model_options["transformer_options"]["optimized_attention_override"] = lambda f, *a, **k: 0 * f(*a, **k)
    assert not torch.equal(sampled(model, clip), expected)
    assert torch.equal(sampled(plain, clip), expected)  # it goes with the model it was set on
    q = torch.ones(1, 2, 4)
    assert torch.equal(optimized_attention(q, q, q, 1, transformer_options={}), q)
    zero = {"optimized_attention_override": lambda f, *a, **k: 0 * f(*a, **k)}
    assert torch.equal(optimized_attention(q, q, q, 1, transformer_options=zero), 0 * q)


def test_a_patcher_and_layers_of_a_pack(tiny_checkpoint, tmp_path):
    """ComfyUI-GGUF's: layers that hold what they are given, a patcher that changes one argument of `load` and writes
    weights itself, and takes the place of another patcher's class."""
    import comfy.float
    import comfy.lora
    import comfy.model_patcher
    import comfy.ops
    import comfy.sd
    import comfy.utils
    import folder_paths

    class Ops(comfy.ops.manual_cast):
        class Linear(comfy.ops.manual_cast.Linear):
            comfy_cast_weights = True

            def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
                torch.nn.Module.__init__(self)
                self.weight = self.bias = None

            def _load_from_state_dict(self, state_dict, prefix, *rest):
                self.weight = torch.nn.Parameter(state_dict[f"{prefix}weight"], requires_grad=False)
                if f"{prefix}bias" in state_dict:
                    self.bias = torch.nn.Parameter(state_dict[f"{prefix}bias"], requires_grad=False)

            def forward(self, *args, **kwargs):
                return super().forward_comfy_cast_weights(*args, **kwargs)

    class Patcher(comfy.model_patcher.ModelPatcher):
        def patch_weight_to_device(self, key, device_to=None, inplace_update=False):
            patched.append(key)
            weight = comfy.utils.get_attr(self.model, key)
            if key not in self.backup:
                self.backup[key] = weight
            new = comfy.lora.calculate_weight(self.patches[key], weight.float(), key)
            comfy.utils.set_attr_param(self.model, key, comfy.float.stochastic_rounding(new, weight.dtype))

        def load(self, *args, force_patch_weights=False, **kwargs):
            super().load(*args, force_patch_weights=True, **kwargs)
            loads.append(kwargs)

        def clone(self, *args, **kwargs):
            own, self.__class__ = self.__class__, Patcher
            copy = super().clone(*args, **kwargs)
            copy.__class__, self.__class__ = Patcher, own
            return copy

    patched, loads = [], []
    path = folder_paths.get_full_path_or_raise("checkpoints", "darkroom-tiny.safetensors")
    prefix = "model.diffusion_model."
    weights = {k[len(prefix) :]: v for k, v in comfy.utils.load_torch_file(path).items() if k.startswith(prefix)}
    model = comfy.sd.load_diffusion_model_state_dict(weights, model_options={"custom_operations": Ops()})
    model = Patcher.clone(model)
    clip = tiny_checkpoint[1]
    expected = sampled(tiny_checkpoint[0], clip)
    assert any(type(layer) is Ops.Linear for layer in model.model.modules())
    assert torch.allclose(sampled(model, clip), expected, atol=1e-4) and loads
    key = next(key for key in model.model_state_dict() if key.endswith("attn1.to_q.weight"))
    other = model.clone()
    other.add_patches({key: (torch.ones_like(model.model_state_dict()[key]),)}, 0.5)
    assert not torch.allclose(sampled(other, clip), expected, atol=1e-4) and patched == [key]
    assert torch.allclose(sampled(model, clip), expected, atol=1e-4)


def test_figures_of_the_machine():
    import comfy.model_management as management

    assert 100 < management.total_ram < 10**8 and 100 < management.total_vram < 10**8  # MB
    with pytest.raises(AttributeError, match="no_such_name"):
        management.no_such_name  # noqa: B018
