"""Kind of sampling, settings and latent format of every model family (goldens, model_family_sampling.json)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import toy

import comfy.latent_formats
import comfy.model_sampling
import comfy.supported_models
from comfy.model_sampling import ModelType

FAMILIES = toy.meta("model_family_sampling")
OURS = {cls.__name__: cls for cls in comfy.supported_models.models}
# What a network of the family looks like where its kind is read off it.
NETWORKS = {
    name: {"in_channels": 4, "transformer_depth_output": [1]} for name in ("SD20", "SD21UnclipL", "SD21UnclipH")
}
NETWORKS["Flux2"] = {"image_model": "flux2", "hidden_size": 6144}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_familys_noise_levels_can_be_made(name):
    """Also of those whose networks are not part of this program: nodes and packs set them."""
    facts = FAMILIES[name]
    settings = facts["sampling_settings"]
    config = SimpleNamespace(sampling_settings=settings)
    sampling = comfy.model_sampling.model_sampling(config, ModelType[facts["model_type_default"]])
    assert sampling.sigmas.ndim == 1 and (sampling.sigmas.diff() >= 0).all() and sampling.sigma_max > 0
    known = {"shift", "multiplier", "noise_scale", "sigma_data"}
    if facts["model_type_default"] == "FLUX":
        known.remove("multiplier")  # its timestep is sigma itself
    for setting in known:
        if setting in settings:
            assert getattr(sampling, setting) == settings[setting]
    for setting in ("sigma_min", "sigma_max"):
        if setting in settings:
            assert float(getattr(sampling, setting)) == pytest.approx(settings[setting], rel=1e-5)
    assert isinstance(getattr(comfy.latent_formats, facts["latent_format"])(), comfy.latent_formats.LatentFormat)


@pytest.mark.parametrize("name", OURS)
def test_families_here_are_set_up_so(name):
    cls, facts = OURS[name], FAMILIES[name]
    assert cls.sampling_settings == facts["sampling_settings"]
    assert cls.latent_format.__name__ == facts["latent_format"]
    assert cls(dict(NETWORKS.get(name, {}))).model_type({}).name == facts["model_type_default"]
