"""Checkpoints with configuration files, and folders in the layout of diffusers, through their nodes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

import folder_paths
import nodes
from comfy.model_config_files import ConfigFileError, read_config_file
from comfy.model_sampling import ModelType
from comfy.text_encoders import sd1
from comfy.weights import MissingWeightsError
from tests.families.test_diffusers_files import as_diffusers
from tests.families.test_diffusers_vae import _other
from tests.families.text import clip_config, encoder_file
from tests.networks.golden import Golden

UNET = Golden("unet_sd1")
OWN = {k.removeprefix("model.diffusion_model."): v for k, v in UNET.weights.items()}
VAE = {k.removeprefix("first_stage_model."): v for k, v in Golden("vae_kl4").weights.items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for kind in ("checkpoints", "configs", "diffusers"):
        _, extensions = folder_paths.folder_names_and_paths[kind]
        path = tmp_path / kind
        path.mkdir()
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, ([str(path)], extensions))
    monkeypatch.setattr(folder_paths, "filename_list_cache", {}, raising=False)
    return tmp_path


@pytest.fixture
def small_clip(monkeypatch):
    """Of the small encoder only its file tells, and not its heads."""
    monkeypatch.setattr(sd1, "config_from_state_dict", lambda *args, **kwargs: clip_config("L"))


def config_text(parameterization: str | None = None, layer: str = "") -> str:
    line = f"    parameterization: {parameterization}\n" if parameterization else ""
    text = f"    cond_stage_config:\n      target: x\n      params:\n        freeze: true\n{layer}"
    return f"model:\n  params:\n{line}{text}"


@pytest.mark.parametrize("parameterization, expected", [(None, ModelType.EPS), ("v", ModelType.V_PREDICTION)])
def test_configuration_says_what_is_predicted(folder, parameterization, expected):
    save_file(UNET.weights, folder / "checkpoints/a.safetensors")
    (folder / "configs/c.yaml").write_text(config_text(parameterization))
    model, clip, _ = nodes.CheckpointLoader().load_checkpoint("c.yaml", "a.safetensors")
    assert model.model.model_type == expected and clip is None
    x = torch.ones(1, 4, 2, 2)
    denoised = model.model.model_sampling.calculate_denoised(torch.tensor([2.0]), x, x)
    assert torch.allclose(denoised, x - 2 if expected == ModelType.EPS else x / 5 - 2 / 5**0.5 * x)


def test_configuration_names_the_layer(tmp_path):
    path = tmp_path / "c.yaml"

    def layer_in(layer: str) -> int | None:
        path.write_text(config_text(None, layer))
        return read_config_file(str(path)).clip_layer

    assert layer_in("") is None
    assert layer_in("        layer: penultimate\n") == -2
    assert layer_in("        layer: hidden\n        layer_idx: -3\n") == -3
    with pytest.raises(ConfigFileError, match="layer_idx 'x'"):
        layer_in("        layer: hidden\n        layer_idx: x\n")
    for content, cause in (("a: [", "no YAML"), ("- 1", r"model\.params")):
        path.write_text(content)
        with pytest.raises(ConfigFileError, match=rf"c\.yaml.*{cause}"):
            read_config_file(str(path))


def diffusers_folder(root, *without: str) -> None:
    levels = 1 + max(int(k.split(".")[2]) for k in VAE if k.startswith("encoder.down."))
    parts = {
        "unet/diffusion_pytorch_model.safetensors": as_diffusers(OWN),
        "vae/diffusion_pytorch_model.safetensors": {_other(k, levels): v.contiguous() for k, v in VAE.items()},
        "text_encoder/model.safetensors": encoder_file("L"),
    }
    for name, tensors in parts.items():
        if name.split("/")[0] not in without:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            save_file({k: v.contiguous() for k, v in tensors.items()}, root / name)
    (root / "model_index.json").write_text("{}")


def test_folder_of_diffusers(folder, small_clip):
    diffusers_folder(folder / "diffusers/some/model")
    loader = nodes.DiffusersLoader
    assert loader.INPUT_TYPES()["required"]["model_path"][0] == ["some/model"]
    model, clip, vae = loader().load_checkpoint("some/model")
    own = model.model.diffusion_model.state_dict()
    assert own.keys() == OWN.keys() and all(torch.equal(own[k], OWN[k]) for k in OWN)
    assert type(clip.tokenizer).__name__ == "SD1Tokenizer"
    vae.throw_exception_if_invalid()
    assert vae.latent_channels == 4


@pytest.mark.parametrize("part, name", [("unet", "unet or transformer"), ("vae", "vae"), ("text_encoder", "text_enc")])
def test_missing_part_is_named(folder, small_clip, part, name):
    diffusers_folder(folder / "diffusers/model", part)
    with pytest.raises(MissingWeightsError, match=rf"model.*no {name}"):
        nodes.DiffusersLoader().load_checkpoint("model")


def test_other_folders_are_refused(folder):
    (folder / "secret").mkdir()
    (folder / "secret/model_index.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"\.\./secret"):
        nodes.DiffusersLoader().load_checkpoint("../secret")
