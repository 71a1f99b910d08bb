"""Image encoders against a second, plain computation; their files, pictures and layouts."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import comfy.clip_vision
import comfy.ops
from comfy.clip_vision import ClipVisionModel, UnknownVisionModel, clip_preprocess, load_clipvision_from_sd
from comfy.models.clip_vision import CLIPVisionConfig, config_from_state_dict

CLIP = CLIPVisionConfig(64, 96, 3, 1, patch_size=4, image_size=16, projection_dim=24)
SIGLIP = CLIPVisionConfig(
    64, 96, 2, 1, patch_size=4, image_size=16, projection_dim=None, hidden_act="gelu_pytorch_tanh", norm_eps=1e-6,
    class_token=False,
)  # fmt: skip


def weights(config: CLIPVisionConfig) -> dict[str, torch.Tensor]:
    """Random ones for each tensor of the model."""
    generator = torch.Generator().manual_seed(0)
    shapes = {k: v.shape for k, v in ClipVisionModel(config).model.state_dict().items()}
    return {k: torch.randn(shape, generator=generator) * 0.1 for k, shape in shapes.items()}


def plain(
    sd: dict[str, torch.Tensor], config: CLIPVisionConfig, pixels: torch.Tensor, activation
) -> list[torch.Tensor]:
    """Hidden states after the embeddings and after each block, from the equations of the papers (one head)."""

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], sd[f"{name}.weight"], sd[f"{name}.bias"], config.norm_eps)

    def linear(x, name):
        return x @ sd[f"{name}.weight"].T + sd[f"{name}.bias"]

    table = sd["vision_model.embeddings.patch_embedding.weight"]
    patches = F.unfold(pixels, config.patch_size, stride=config.patch_size).transpose(1, 2)
    x = patches @ table.flatten(1).T
    if config.class_token:
        first = sd["vision_model.embeddings.class_embedding"].expand(x.shape[0], 1, -1)
        x = torch.cat([first, x], dim=1)
    else:
        x = x + sd["vision_model.embeddings.patch_embedding.bias"]
    x = x + sd["vision_model.embeddings.position_embedding.weight"]
    x = norm(x, "vision_model.pre_layrnorm") if config.class_token else x
    states = [x]
    for i in range(config.num_hidden_layers):
        layer = f"vision_model.encoder.layers.{i}"
        h = norm(x, f"{layer}.layer_norm1")
        q, k, v = (linear(h, f"{layer}.self_attn.{n}_proj") for n in "qkv")
        attention = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        x = x + linear(attention, f"{layer}.self_attn.out_proj")
        h = activation(linear(norm(x, f"{layer}.layer_norm2"), f"{layer}.mlp.fc1"))
        x = x + linear(h, f"{layer}.mlp.fc2")
        states.append(x)
    return states


@pytest.mark.parametrize("config, activation", [
    (CLIP, lambda x: x * torch.sigmoid(1.702 * x)),
    (SIGLIP, lambda x: F.gelu(x, approximate="tanh")),
])  # fmt: skip
def test_outputs(config, activation):
    sd = weights(config)
    model = load_clipvision_from_sd(sd)
    image = torch.rand(2, 16, 16, 3, generator=torch.Generator().manual_seed(1))
    out = model.encode_image(image)
    pixels = clip_preprocess(image, 16, model.image_mean, model.image_std)
    states = plain(sd, config, pixels, activation)
    assert torch.allclose(out.penultimate_hidden_states, states[-2], atol=1e-5)

    def post(x):
        weight, bias = (sd[f"vision_model.post_layernorm.{kind}"] for kind in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], weight, bias, config.norm_eps)

    if config.class_token:
        assert torch.allclose(out["last_hidden_state"], states[-1], atol=1e-5)
        assert torch.allclose(out.image_embeds, post(states[-1][:, 0]) @ sd["visual_projection.weight"].T, atol=1e-5)
    else:
        assert torch.allclose(out["last_hidden_state"], post(states[-1]), atol=1e-5)
        assert out.image_embeds is None


def test_configuration_is_read_from_shapes():
    assert config_from_state_dict(weights(CLIP)) == CLIP
    assert config_from_state_dict(weights(SIGLIP)) == SIGLIP


@pytest.mark.parametrize(
    "width, hidden, layers, patch, size, heads, activation",
    [
        (1024, 4096, 24, 14, 224, 16, "quick_gelu"),
        (1280, 5120, 32, 14, 224, 16, "gelu"),
        (1664, 8192, 48, 14, 224, 16, "gelu"),
    ],
)
def test_published_clip_models(width, hidden, layers, patch, size, heads, activation):
    """ViT-L, H and bigG."""
    asked = CLIPVisionConfig(width, hidden, layers, heads, patch, size, 768, activation)
    sd = dict(ClipVisionModel(asked, torch.float16).model.state_dict())
    assert config_from_state_dict(sd) == asked


def test_pictures_are_cut_or_squeezed():
    image = torch.zeros(1, 32, 64, 4)
    image[:, :, 16:48, :3] = 1.0  # the middle square is white
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    cut = clip_preprocess(image, 16, mean, std)
    assert cut.shape == (1, 3, 16, 16) and (cut[..., 2:-2] == 1).all()
    squeezed = clip_preprocess(image, 16, mean, std, crop=False)
    assert squeezed.shape == (1, 3, 16, 16) and not squeezed[..., :2].any() and (squeezed[..., 6:10] == 1).all()
    # 8 bits, as the encoders were trained on.
    grey = clip_preprocess(torch.full((1, 16, 16, 3), 0.4999), 16, mean, std)
    assert grey.unique().item() == pytest.approx(127 / 255)


OPEN_CLIP_PARTS = {
    "encoder.layers.": "transformer.resblocks.",
    "self_attn.q_proj.": "attn.in_proj_",
    "self_attn.": "attn.",
    "layer_norm": "ln_",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "pre_layrnorm": "ln_pre",
    "post_layernorm": "ln_post",
}


def to_open_clip(sd: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {
        "vision_model.embeddings.class_embedding": "class_embedding",
        "vision_model.embeddings.position_embedding.weight": "positional_embedding",
        "vision_model.embeddings.patch_embedding.weight": "conv1.weight",
    }
    out = {"visual.proj": sd["visual_projection.weight"].T.contiguous()}
    for key, value in sd.items():
        name = names.get(key, key.removeprefix("vision_model."))
        if "self_attn.k_proj" in key or "self_attn.v_proj" in key or key.startswith("visual_projection"):
            continue
        if "self_attn.q_proj" in key:
            value = torch.cat([sd[key.replace("q_proj", f"{n}_proj")] for n in "qkv"])
        for own, other in OPEN_CLIP_PARTS.items():
            name = name.replace(own, other)
        out[f"visual.{name}"] = value
    return out


def test_open_clips_layout():
    sd = weights(CLIP)
    image = torch.rand(1, 16, 16, 3, generator=torch.Generator().manual_seed(1))
    expected = load_clipvision_from_sd(sd).encode_image(image).image_embeds
    checkpoint = {f"embedder.model.{k}": v for k, v in to_open_clip(sd).items()}
    found = load_clipvision_from_sd(checkpoint, "embedder.model.").encode_image(image).image_embeds
    assert torch.allclose(found, expected, atol=1e-6)


def test_files(tmp_path):
    sd = {**weights(CLIP), "text_model.final_layer_norm.weight": torch.ones(4)}
    save_file(sd, tmp_path / "clip.safetensors")
    assert isinstance(comfy.clip_vision.load(str(tmp_path / "clip.safetensors")), ClipVisionModel)
    other = str(tmp_path / "other.safetensors")
    save_file({"something": torch.ones(2)}, other)
    with pytest.raises(UnknownVisionModel, match="such as something") as caught:
        comfy.clip_vision.load(other)
    assert "other.safetensors" in str(caught.value) and caught.value.path == other
    del sd["vision_model.pre_layrnorm.weight"]
    save_file(sd, tmp_path / "broken.safetensors")
    with pytest.raises(UnknownVisionModel, match="pre_layrnorm"):
        comfy.clip_vision.load(str(tmp_path / "broken.safetensors"))
