"""Language models as text encoders against recorded hidden states and the key maps of the published files."""

import pytest
import torch

import comfy.ops
from comfy.text_encoders.llama import LlamaConfig, LlamaEncoder, config_from_state_dict, family_of
from tests.architectures.recorded import build, key_map
from tests.networks.golden import EPS_LIMIT, LIMIT, Golden, error

FAMILIES = {
    "llama3": "llama3",
    "mistral3": "mistral3",
    "qwen25_7b": "qwen2.5",
    "qwen3_4b": "qwen3",
    "gemma2_2b": "gemma2",
    "gemma3_4b": "gemma3",
}


def config_of(golden: Golden) -> LlamaConfig:
    """Recorded with narrow heads and a short window."""
    name = golden.config["name"].removeprefix("eps_").removeprefix("llm_")
    overrides = {"head_dim": 16}
    if name == "gemma3_4b":
        overrides["sliding_window"] = 8
    return config_from_state_dict(golden.weights, family=FAMILIES[name], **overrides)


def network(golden: Golden, **kwargs) -> LlamaEncoder:
    return build(golden, config_of(golden), LlamaEncoder, **kwargs)


def outputs(net: LlamaEncoder, golden: Golden, masking: str) -> dict[str, torch.Tensor]:
    mask = None if masking == "nomask" else golden.inputs[f"mask_{masking}"]
    out = net(golden.inputs["ids"], attention_mask=mask, layer=-2, keep_all=True)
    return {"last": out.last, "hidden_m2": out.hidden, "all": out.all}


@pytest.mark.parametrize("masking", ["nomask", "right", "left"])
@pytest.mark.parametrize("name", FAMILIES)
def test_output_matches_recording(name, masking):
    golden = Golden(f"llm_{name}")
    for key, actual in outputs(network(golden), golden, masking).items():
        assert error(actual, golden.out[f"{masking}.{key}"]) < LIMIT, key


@pytest.mark.parametrize("name", ["llama3", "qwen25_7b", "qwen3_4b", "gemma2_2b", "gemma3_4b"])
def test_norm_epsilons(name):
    golden = Golden(f"eps_llm_{name}")
    net = network(golden)
    for key, expected in golden.out.items():
        masking, output = key.split(".")
        assert error(outputs(net, golden, masking)[output], expected) < EPS_LIMIT, key


@pytest.mark.parametrize("name", FAMILIES)
def test_config_is_read_from_shapes(name):
    golden = Golden(f"llm_{name}")
    config, recorded = config_of(golden), golden.config["config"]
    for field in (
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"),
        *("vocab_size", "rms_norm_eps", "qkv_bias", "head_dim"),
    ):
        assert getattr(config, field) == recorded[field], field
    theta = recorded["rope_theta"]
    assert ([config.rope_theta, config.local_rope_theta] if isinstance(theta, list) else config.rope_theta) == theta
    assert config.gemma == recorded["rms_norm_add"]
    assert config.qk_norm == (recorded["q_norm"] is not None)
    for layer, window in enumerate(recorded.get("sliding_attention") or []):
        assert config.is_local(layer) == bool(window)


@pytest.mark.parametrize(
    "name, family, layers, heads, kv_heads",
    [
        ("te_llama3_8b", "llama3", 32, 32, 8),
        ("te_mistral3_24b", "mistral3", 40, 32, 8),
        ("te_qwen25_3b", "qwen2.5", 36, 16, 2),
        ("te_qwen25_vl_7b", "qwen2.5", 28, 28, 4),
        ("te_qwen3_06b", "qwen3", 28, 16, 8),
        ("te_qwen3_4b", "qwen3", 36, 32, 8),
        ("te_qwen3_8b", "qwen3", 36, 32, 8),
        ("te_ovis25_2b", "qwen3", 28, 16, 8),
        ("te_gemma2_2b", "gemma2", 26, 8, 4),
        ("te_gemma3_4b", "gemma3", 34, 8, 4),
        ("te_gemma3_12b", "gemma3", 48, 16, 8),
    ],
)
def test_takes_a_published_file(name, family, layers, heads, kv_heads):
    sd = key_map(name)
    config = config_from_state_dict(sd)
    assert family_of(sd) == family
    assert (config.num_hidden_layers, config.num_attention_heads) == (layers, heads)
    assert config.num_key_value_heads == kv_heads
    net = LlamaEncoder(config, device="meta", dtype=torch.float16)
    missing, unexpected = net.load_state_dict(sd, assign=True, strict=False)
    assert not missing
    # The halves that look at images, and the head that predicts words, are not part of a text encoder.
    assert {key.split(".")[0] for key in unexpected} <= {"visual", "vision_model", "multi_modal_projector", "model"}
    assert [key for key in unexpected if key.startswith("model.")] in ([], ["model.lm_head.weight"])


def test_padding_on_the_right_changes_nothing_before_it():
    golden = Golden("llm_gemma3_4b")
    net = network(golden)
    ids, mask = golden.inputs["ids"], golden.inputs["mask_right"]
    words = int(mask.sum())
    padded, alone = net(ids, attention_mask=mask).last[:, :words], net(ids[:, :words]).last
    assert error(padded, alone) < 1e-5


def test_a_local_layer_sees_only_its_window():
    golden = Golden("llm_gemma3_4b")
    net = network(golden)
    ids = golden.inputs["ids"]
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 256
    first, second = net(ids, layer=0).hidden, net(changed, layer=0).hidden
    assert not torch.equal(first[:, 7], second[:, 7])
    assert torch.equal(first[:, 8:], second[:, 8:])


def test_weights_may_rest_in_half_precision():
    golden = Golden("llm_gemma2_2b")
    golden.weights = {k: v.half() for k, v in golden.weights.items()}
    net = network(golden, operations=comfy.ops.manual_cast)
    assert error(net(golden.inputs["ids"]).last, golden.out["nomask.last"]) < LIMIT


def test_embeddings_in_place_of_tokens():
    golden = Golden("llm_qwen3_4b")
    net = network(golden)
    ids = golden.inputs["ids"]
    assert torch.equal(net(embeds=net.embed(ids)).last, net(ids).last)
    assert torch.equal(net(ids, layer=-1, normalize_hidden=True).hidden, net(ids).last)
    with pytest.raises(ValueError, match="tokens or embeds"):
        net()
