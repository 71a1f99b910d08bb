"""Module names under which packs look for nodes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import nodes

FOLDER = Path(nodes.__file__).parents[1] / "compat" / "comfy_extras"
MODULES = sorted(path.stem for path in FOLDER.glob("nodes_*.py"))


def test_every_module_of_extra_nodes_has_its_name():
    modules = {cls.RELATIVE_PYTHON_MODULE for cls in nodes.NODE_CLASS_MAPPINGS.values()}
    expected = {m.partition(".")[2] for m in modules if m.startswith("comfy_extras.")}
    assert set(MODULES) == expected


@pytest.mark.parametrize("name", MODULES)
def test_what_a_pack_imports_is_what_is_registered(name):
    module = importlib.import_module(f"comfy_extras.{name}")
    registered = set(nodes.NODE_CLASS_MAPPINGS.values())
    classes = {
        cls for cls in nodes.NODE_CLASS_MAPPINGS.values() if f"comfy_extras.{name}" == cls.RELATIVE_PYTHON_MODULE
    }
    exported = {getattr(module, entry) for entry in module.__all__}
    assert classes and classes <= exported
    assert {e for e in exported if hasattr(e, "RELATIVE_PYTHON_MODULE")} <= registered


def test_other_names_packs_use():
    from comfy_extras.nodes_custom_sampler import Guider_Basic, Noise_EmptyNoise, Noise_RandomNoise
    from comfy_extras.nodes_mask import ImageCompositeMasked, composite
    from comfy_extras.nodes_model_advanced import LCM, ModelSamplingDiscreteDistilled

    assert callable(composite) and callable(ImageCompositeMasked.composite)
    assert Noise_RandomNoise(3).seed == 3 and Noise_EmptyNoise().seed == 0
    assert isinstance(Guider_Basic, type) and isinstance(LCM, type)
    assert isinstance(ModelSamplingDiscreteDistilled, type)
