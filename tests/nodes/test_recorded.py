"""Every node against results recorded from the reference (tests/data/nodes)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import nodes
from tests.nodes.golden_format import Goldens, compare, same
from tests.nodes.runner import GraphRunner, NodeFailed
from tests.nodes.saved_files import WORKFLOW, Describer
from tests.nodes.stand_ins import Plain, StandInVAE

DATA = Path(__file__).parents[1] / "data" / "nodes"
GOLDENS = Goldens(str(DATA), {"$vae": lambda values: StandInVAE(**values), "$clip_vision_output": Plain})

# Where we do something else on purpose, and why.
DIFFERENT = {
    "ImageScale/18_gray1": "grey images keep their channel axis",
    "LatentCrop/06_smaller": "a crop of a small latent does not wrap around its edge",
    "ReplaceVideoLatentFrames/07": "an index before the first frame does not wrap around",
    "SaveImage/06": "grey images can be saved",
    "StringFormat/07": "private attributes are not shown to clients",
    "LoadImage/35_f32_tiff": "floating-point TIFF files are not black",
    "LoadImage/36_broken_png": "a cut-off file is an error in every format",
    "LoadImage/40_l8_tiny_png": "small images can be loaded",
    "LoadImage/45_video": "needs a package that is not required",
    # Values that the validator converts before the node sees them; see tests/engine.
    "PrimitiveInt/05_string": "converted by the validator",
    "PrimitiveInt/06_float": "converted by the validator",
    "PrimitiveBoolean/04": "converted by the validator",
    "PrimitiveBoolean/05": "converted by the validator",
    "PrimitiveString/02": "converted by the validator",
    "PrimitiveString/03": "converted by the validator",
}
# Larger tolerances: the reference's decoder goes through 16-bit YUV with rounding, or smooths JPEG colours differently.
TOLERANCES = {
    "LoadImage/09_l_trns_png": 1e-4,
    "LoadImage/12_rgb16_png": 6e-4,
    "LoadImage/14_la16_png": 1e-4,
    "LoadImage/20_exif6_webp": 6e-4,
    "LoadImage/21_sub420_jpg": 0.15,
    "LoadImage/24_prog_jpg": 0.15,
    "LoadImage/27_rgb_webp": 6e-4,
    "LoadImage/31_anim_gif": 6e-4,
    "LoadImage/34_rgb_bmp": 6e-4,
    "LoadImageMask/06_la8_png": 1e-4,
    "LoadImageMask/07_la8_png": 1e-4,
    "LoadImageMask/08_la8_png": 1e-4,
    "LoadImageMask/22_rgba16_png": 6e-4,
    "LoadImageMask/23_rgba16_png": 6e-4,
}
# Nodes that need a package which is not required.
NEEDS_AV = {"LTXVPreprocess"}
CASES = [case for case in GOLDENS.cases if case["id"] not in DIFFERENT]


def plain(value):
    """Stand-ins back into the form of the recordings."""
    if isinstance(value, Plain):
        return {"$clip_vision_output": vars(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


def expected_files(files: list[dict]) -> list[dict]:
    """The recorded descriptions, less what is about the reading program; our files name their own writer."""
    expected = [{key: value for key, value in file.items() if key != "av_format"} for file in files]
    for file in expected:
        for attribute in file.get("attributes", []):
            if attribute[0] == "writer":
                attribute[2] = "darkroom"
    return expected


def error_name(error: BaseException | None) -> str | None:
    """As `execution_error` reports it."""
    if error is None:
        return None
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def built_in_parent(error: BaseException | None) -> str | None:
    """Our own exception types count as the built-in ones they derive from."""
    kinds = type(error).__mro__ if error is not None else ()
    return next((kind.__name__ for kind in kinds if kind.__module__ == "builtins"), None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_recorded_case(case, folders):
    if case["node"] in NEEDS_AV:
        pytest.importorskip("av")
    if case["node"].startswith("Load"):
        shutil.copytree(DATA / "files", folders / "input", dirs_exist_ok=True)
    for name in case.get("pre_files", []):
        path = folders / "output" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    prompt, links = GOLDENS.prompt(case)
    runner = GraphRunner(prompt, GOLDENS.source_values(case), WORKFLOW)
    error, slots = None, None
    with torch.inference_mode():
        try:
            slots = [runner.slot(link) for link in links] if links else runner.run_for_ui("t")
        except NodeFailed as failure:
            error = failure.error
    case = {**case, "tol": TOLERANCES.get(case["id"], case["tol"])}
    problems = compare(case, GOLDENS, slots, ui=runner.ui.get("t"), error=error_name(error), plain=plain)
    if problems and error is not None:
        problems = compare(case, GOLDENS, slots, error=built_in_parent(error), plain=plain)
    assert not problems, (problems, error)
    if "files" in case:
        describer = Describer(prompt)
        files = [f for kind in ("output", "temp") for f in describer.folder(folders, kind, case.get("pre_files", []))]
        assert not same(expected_files(case["files"]), files, case["tol"], GOLDENS, "files")


def test_every_exception_is_about_a_recorded_case():
    known = {case["id"] for case in GOLDENS.cases}
    assert set(DIFFERENT) | set(TOLERANCES) <= known


def test_the_recordings_are_about_registered_nodes():
    assert {case["node"] for case in GOLDENS.cases} <= set(nodes.NODE_CLASS_MAPPINGS)
