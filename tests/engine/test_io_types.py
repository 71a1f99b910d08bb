"""Every type of the schema interface by name: what its inputs and outputs look like in /object_info.

The tables are those of the interface (its section on inputs, outputs and types)."""

import importlib
import inspect
import json

import pytest
from engine_kit import n
from test_schema_nodes import ANY, make, shown

from comfy_api.latest import ComfyAPI, ComfyAPISync, _io, io

# Types with a widget: what an input of theirs shows when only its name is given.
WIDGETS = {
    "Int": ("INT", {}),
    "Float": ("FLOAT", {}),
    "String": ("STRING", {"multiline": False}),
    "Boolean": ("BOOLEAN", {}),
    "Combo": ("COMBO", {"multiselect": False, "options": []}),
    "Webcam": ("WEBCAM", {}),
    "Color": ("COLOR", {"default": "#ffffff", "socketless": True}),
    "Colors": ("COLORS", {"default": [], "socketless": True}),
    "BoundingBox": (
        "BOUNDING_BOX",
        {"default": {"x": 0, "y": 0, "width": 512, "height": 512}, "socketless": True},
    ),
    "BoundingBoxes": ("BOUNDING_BOXES", {"default": [], "socketless": True}),
    "Curve": (
        "CURVE",
        {"default": {"points": [[0.0, 0.0], [1.0, 1.0]], "interpolation": "monotone_cubic"}, "socketless": True},
    ),
    "Range": ("RANGE", {"default": {"min": 0.0, "max": 1.0}, "socketless": True}),
    "Compositor": ("COMPOSITOR", {"default": {}, "socketless": True}),
    "ImageCompare": ("IMAGECOMPARE", {"socketless": True}),
}
ONLY_INPUTS = {"ImageCompare", "MultiCombo"}
_SOCKET_TABLE = """
Image IMAGE, Mask MASK, Latent LATENT, Conditioning CONDITIONING, Model MODEL, Clip CLIP, Vae VAE,
ControlNet CONTROL_NET, Sampler SAMPLER, Sigmas SIGMAS, Noise NOISE, Guider GUIDER, ClipVision CLIP_VISION,
ClipVisionOutput CLIP_VISION_OUTPUT, StyleModel STYLE_MODEL, Gligen GLIGEN, UpscaleModel UPSCALE_MODEL,
LatentUpscaleModel LATENT_UPSCALE_MODEL, ModelPatch MODEL_PATCH, BackgroundRemoval BACKGROUND_REMOVAL,
AudioEncoder AUDIO_ENCODER, AudioEncoderOutput AUDIO_ENCODER_OUTPUT, Audio AUDIO, Video VIDEO, SVG SVG,
LoraModel LORA_MODEL, LossMap LOSS_MAP, Voxel VOXEL, Mesh MESH, Splat SPLAT, Hooks HOOKS,
HookKeyframes HOOK_KEYFRAMES, TimestepsRange TIMESTEPS_RANGE, LatentOperation LATENT_OPERATION,
FlowControl FLOW_CONTROL, Accumulation ACCUMULATION, Load3D LOAD_3D, Load3DAnimation LOAD_3D_ANIMATION,
Load3DCamera LOAD3D_CAMERA, Load3DModelInfo LOAD3D_MODEL_INFO, Layers LAYERS, Photomaker PHOTOMAKER, Point POINT,
FaceAnalysis FACE_ANALYSIS, BBOX BBOX, SEGS SEGS, Tracks TRACKS, WanCameraEmbedding WAN_CAMERA_EMBEDDING,
Histogram HISTOGRAM, Dict DICT, Array ARRAY, AnyType *, File3DAny FILE_3D, File3DGLB FILE_3D_GLB,
File3DGLTF FILE_3D_GLTF, File3DFBX FILE_3D_FBX, File3DOBJ FILE_3D_OBJ, File3DSTL FILE_3D_STL,
File3DUSDZ FILE_3D_USDZ, File3DPLY FILE_3D_PLY, File3DSPLAT FILE_3D_SPLAT, File3DSPZ FILE_3D_SPZ,
File3DKSPLAT FILE_3D_KSPLAT, File3DSplatAny FILE_3D_SPLAT_ANY, File3DPointCloudAny FILE_3D_POINT_CLOUD_ANY
"""
SOCKETS = dict(pair.split() for pair in _SOCKET_TABLE.split(","))
# Types that nodes of the reference name themselves.
CUSTOM = [
    "AUDIO_RECORD",
    "DA3_GEOMETRY",
    "DA3_MODEL",
    "FACE_DETECTION_MODEL",
    "FACE_LANDMARKS",
    "FLOATS",
    "IC_LORA_PARAMETERS",
    "INTERP_MODEL",
    "MOGE_GEOMETRY",
    "MOGE_MODEL",
    "OPTICAL_FLOW",
    "POSE_KEYPOINT",
    "SAM3_TRACK_DATA",
    "SHAPE_SUBDIVIDES",
]
DYNAMIC = {
    "Autogrow": "COMFY_AUTOGROW_V3",
    "DynamicCombo": "COMFY_DYNAMICCOMBO_V3",
    "DynamicSlot": "COMFY_DYNAMICSLOT_V3",
    "MatchType": "COMFY_MATCHTYPE_V3",
    "MultiType": "COMFY_MULTITYPE_V3",
}
VERSIONS = ("latest", "v0_0_2")


def info_of(cls):
    """What /object_info says about a class, as a client reads it."""
    return json.loads(json.dumps(cls.GET_NODE_INFO_V1()))


def declared(classes, item, outputs=()):
    """The declaration of one input, and the section it is in."""
    sections = info_of(make(classes, None, [item], outputs))["input"]
    ((section, name),) = [(key, name) for key, names in sections.items() for name in names]
    assert name == item.id
    return section, *sections[section][name]


@pytest.mark.parametrize("name", [*WIDGETS, *SOCKETS])
def test_input(classes, name):
    io_type, options = WIDGETS.get(name) or (SOCKETS[name], {})
    kind = getattr(_io, name)
    assert getattr(io, name) is kind and kind.io_type == io_type
    assert declared(classes, kind.Input("x")) == ("required", io_type, options)
    item = kind.Input("x", display_name="X", optional=True, tooltip="t")
    section, shown_type, shown_options = declared(classes, item)
    assert (section, shown_type) == ("optional", io_type)
    assert shown_options == {"display_name": "X", "tooltip": "t", **options}
    assert list(shown_options)[:2] == ["display_name", "tooltip"]


@pytest.mark.parametrize("name", SOCKETS)
def test_options_of_sockets(classes, name):
    item = getattr(io, name).Input("x", lazy=True, raw_link=True, advanced=False, extra_dict={"more": 1, "none": None})
    _, _, options = declared(classes, item)
    assert list(options.items()) == [("lazy", True), ("rawLink", True), ("advanced", False), ("more", 1)]


@pytest.mark.parametrize("name", [name for name in [*WIDGETS, *SOCKETS] if name not in ONLY_INPUTS])
def test_output(classes, name):
    io_type = SOCKETS.get(name) or WIDGETS[name][0]
    kind = getattr(io, name)
    outputs = [kind.Output(), kind.Output("named", display_name="Shown", tooltip="t", is_output_list=True)]
    info = info_of(make(classes, None, [], outputs))
    assert info["output"] == [io_type, io_type] and info["output_is_list"] == [False, True]
    assert info["output_name"] == [io_type, "Shown"] and info["output_tooltips"] == [None, "t"]
    assert outputs[0].id == f"_0_{io_type}_" and info["output_matchtypes"] is None


@pytest.mark.parametrize("name", sorted(ONLY_INPUTS))
def test_types_without_outputs(name):
    assert not hasattr(getattr(io, name), "Output")


@pytest.mark.parametrize("io_type", CUSTOM)
def test_types_by_any_name(classes, io_type):
    kind = io.Custom(io_type)
    assert declared(classes, kind.Input("x", optional=True)) == ("optional", io_type, {})
    assert info_of(make(classes, None, [], [kind.Output()]))["output"] == [io_type]

    @io.comfytype(io_type=io_type)
    class ByHand(io.ComfyTypeIO):
        Type = dict

    assert declared(classes, ByHand.Input("x")) == ("required", io_type, {})
    assert ByHand.Output().get_io_type() == io_type


def test_multi_combo(classes):
    shown_options = {"multiselect": True, "options": ["a", "b"], "multi_select": {"placeholder": "p", "chip": True}}
    item = io.MultiCombo.Input("x", ["a", "b"], placeholder="p", chip=True)
    assert declared(classes, item) == ("required", "COMBO", shown_options)


WIDGET_OPTIONS = [
    ("Int", {"default": 1, "min": 0, "max": 5, "step": 1}, {}),
    ("Int", {"control_after_generate": io.ControlAfterGenerate.randomize}, {"control_after_generate": "randomize"}),
    ("Int", {"display_mode": io.NumberDisplay.number}, {"display_mode": None, "display": "number"}),
    ("Float", {"min": 0.0, "max": 1.0, "step": 0.1, "round": 0.01, "default": 0.5}, {}),
    ("Float", {"display_mode": io.NumberDisplay.gradient_slider, "gradient_stops": [{"offset": 0}]},
     {"display_mode": None, "display": "gradientslider"}),
    ("String", {"default": "d", "multiline": True, "placeholder": "p"}, {}),
    ("String", {"dynamic_prompts": True}, {"dynamic_prompts": None, "dynamicPrompts": True}),
    ("Boolean", {"default": False, "label_on": "y", "label_off": "n"}, {}),
    ("Combo", {"options": ["a"], "default": "a"}, {}),
    *[("Combo", {"upload": upload}, {"upload": None, key: True}) for upload, key in [
        (io.UploadType.image, "image_upload"), (io.UploadType.audio, "audio_upload"),
        (io.UploadType.video, "video_upload"), (io.UploadType.model, "file_upload")]],
    *[("Combo", {"image_folder": folder}, {"image_folder": folder.value}) for folder in io.FolderType],
    ("Combo", {"remote": io.RemoteOptions("/r", False, "last", 1, 2, 3)},
     {"remote": {"route": "/r", "refresh_button": False, "control_after_refresh": "last", "timeout": 1,
                 "max_retries": 2, "refresh": 3}}),
    ("Color", {"default": "#102030", "socketless": False}, {}),
    ("Colors", {"default": ["#102030"]}, {}),
    ("BoundingBox", {"default": {"x": 1, "y": 2, "width": 3, "height": 4}, "component": "c", "force_input": True},
     {"force_input": None, "forceInput": True}),
    ("BoundingBoxes", {"default": [{"x": 1}], "socketless": False}, {}),
    ("Curve", {"default": [(0, 1), (1, 0)]},
     {"default": {"points": [[0.0, 1.0], [1.0, 0.0]], "interpolation": "monotone_cubic"}}),
    ("Range", {"display": "d", "gradient_stops": [], "show_midpoint": True, "midpoint_scale": "s", "value_min": 0,
               "value_max": 255}, {}),
    ("Compositor", {"default": {"layers": []}}, {}),
]  # fmt: skip


@pytest.mark.parametrize("name, given, renamed", WIDGET_OPTIONS)
def test_options_of_widgets(classes, name, given, renamed):
    wanted = {**WIDGETS[name][1], **given, **renamed}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    assert declared(classes, getattr(io, name).Input("x", **given)) == ("required", WIDGETS[name][0], wanted)


def test_nothing_is_left_out_here():
    """Each type that `io` has is in one of the tables."""
    bases = {"ComfyType", "ComfyTypeI", "ComfyTypeIO"}
    there = {name for name in dir(_io) if inspect.isclass(getattr(_io, name)) and hasattr(getattr(_io, name), "Input")}
    assert there - bases == set(WIDGETS) | set(SOCKETS) | set(DYNAMIC) | {"MultiCombo"}


# --- inputs that have inputs inside


@pytest.mark.parametrize("name", DYNAMIC)
def test_names_of_dynamic_types(name):
    assert getattr(_io, name).io_type == DYNAMIC[name]
    assert hasattr(io, name) == (name != "DynamicSlot")


@pytest.mark.parametrize(
    "template, shown_template",
    [
        (io.Autogrow.TemplatePrefix(io.Image.Input("image"), "image", min=2, max=4),
         {"input": {"required": {"image": ["IMAGE", {}]}}, "prefix": "image", "min": 2, "max": 4}),
        (io.Autogrow.TemplatePrefix(io.Int.Input("i", default=3), "i"),
         {"input": {"required": {"i": ["INT", {"default": 3, "forceInput": True}]}}, "prefix": "i", "min": 1,
          "max": 10}),
        (io.Autogrow.TemplateNames(io.Mask.Input("m", optional=True), ["a", "b"], min=0),
         {"input": {"required": {}, "optional": {"m": ["MASK", {}]}}, "names": ["a", "b"], "min": 0}),
    ],
)  # fmt: skip
def test_autogrow_declaration(classes, template, shown_template):
    section, io_type, options = declared(classes, io.Autogrow.Input("grow", template, tooltip="t"))
    assert (section, io_type, options) == (
        "required",
        "COMFY_AUTOGROW_V3",
        {"tooltip": "t", "template": shown_template},
    )


def test_dynamic_combo_declaration(classes):
    inner = io.DynamicCombo.Input("deep", [io.DynamicCombo.Option("k", [io.Float.Input("f", default=1.0)])])
    combo = io.DynamicCombo.Input(
        "c", [io.DynamicCombo.Option("a", []), io.DynamicCombo.Option("b", [io.Mask.Input("m", optional=True), inner])]
    )
    deep = {"options": [{"key": "k", "inputs": {"required": {"f": ["FLOAT", {"default": 1.0}]}}}]}
    assert declared(classes, combo) == (
        "required",
        "COMFY_DYNAMICCOMBO_V3",
        {
            "options": [
                {"key": "a", "inputs": {"required": {}}},
                {
                    "key": "b",
                    "inputs": {
                        "required": {"deep": ["COMFY_DYNAMICCOMBO_V3", deep]},
                        "optional": {"m": ["MASK", {}]},
                    },
                },
            ]
        },
    )


def slot_node(classes):
    """A node whose slot takes any number, and asks for `strength` and maybe `name` once it is used."""
    slot = _io.DynamicSlot.Input(
        io.Int.Input("number", tooltip="t"),
        [io.Float.Input("strength", max=1.0), io.String.Input("name", optional=True)],
    )
    make(classes, lambda cls, number=None: io.NodeOutput(number), [slot], ANY)
    return slot


def test_dynamic_slot_declaration(classes):
    slot = _io.DynamicSlot.Input(io.Int.Input("number", tooltip="t"), [io.Float.Input("strength")])
    assert declared(classes, slot) == (
        "optional",
        "COMFY_DYNAMICSLOT_V3",
        {"tooltip": "t", "slotType": "INT", "inputs": {"required": {"strength": ["FLOAT", {}]}}, "forceInput": True},
    )
    socket = _io.DynamicSlot.Input(io.Image.Input("image"), [])
    assert declared(classes, socket)[2] == {"slotType": "IMAGE", "inputs": {"required": {}}}
    with pytest.raises(ValueError, match="dynamic"):
        _io.DynamicSlot.Input(slot, [])


def test_dynamic_slot(runner, classes, check):
    slot_node(classes)
    linked = {"a": n("Int", value=4), "v": n("V3", number=("a", 0), **{"number.strength": 0.5})}
    assert check({**linked, "o": n("Show", value=("v", 0))})[0]
    assert shown(runner, linked) == [repr({"number": 4, "strength": 0.5})]
    assert shown(runner, {"v": n("V3")}) == ["None"]


def test_dynamic_slot_asks_for_its_inputs_when_it_is_used(classes, check):
    slot_node(classes)
    prompt = {"a": n("Int", value=4), "v": n("V3", number=("a", 0)), "o": n("Show", value=("v", 0))}
    (error,) = check(prompt)[3]["v"]["errors"]
    assert error["type"] == "required_input_missing" and error["extra_info"]["input_name"] == "number.strength"
    prompt["v"]["inputs"]["number.strength"] = 2.0
    (error,) = check(prompt)[3]["v"]["errors"]
    assert error["type"] == "value_bigger_than_max"


def test_match_type_declaration(classes):
    template = io.MatchType.Template("t", [io.Image, io.Mask])
    cls = make(
        classes,
        None,
        [io.MatchType.Input("a", template), io.MatchType.Input("b", io.MatchType.Template("any"), optional=True)],
        [io.MatchType.Output(template, display_name="same"), io.Int.Output(), io.MatchType.Output(template)],
    )
    info = info_of(cls)
    shown_template = {"template_id": "t", "allowed_types": "IMAGE,MASK"}
    assert info["input"]["required"]["a"] == ["COMFY_MATCHTYPE_V3", {"template": shown_template}]
    assert info["input"]["optional"]["b"][1]["template"] == {"template_id": "any", "allowed_types": "*"}
    assert info["output"] == ["COMFY_MATCHTYPE_V3", "INT", "COMFY_MATCHTYPE_V3"]
    assert info["output_name"] == ["same", "INT", "MATCHTYPE"]
    assert info["output_matchtypes"] == ["t", None, "t"]


def test_match_type_takes_any_link(runner, classes, check):
    template = io.MatchType.Template("t", [io.String])
    make(classes, lambda cls, a: io.NodeOutput(a), [io.MatchType.Input("a", template)], [io.MatchType.Output(template)])
    prompt = {"i": n("Int", value=3), "v": n("V3", a=("i", 0))}
    assert check({**prompt, "o": n("Show", value=("v", 0))})[0]
    assert shown(runner, prompt) == ["3"]


def test_multi_type_declaration(classes):
    assert declared(classes, io.MultiType.Input("x", [io.Image, io.Mask], optional=True)) == (
        "optional",
        "IMAGE,MASK",
        {},
    )
    item = io.MultiType.Input(io.Float.Input("x", default=1.0, optional=True), [io.Float, io.Int])
    assert declared(classes, item) == ("optional", "FLOAT,INT", {"default": 1.0, "widgetType": "FLOAT"})
    with pytest.raises(ValueError, match="widget"):
        io.MultiType.Input(io.Image.Input("x"), [io.Mask])


def test_multi_type_is_checked(classes, check):
    make(classes, None, [io.MultiType.Input("x", [io.Int, io.Float])], [], is_output_node=True)
    assert check({"i": n("Int", value=3), "v": n("V3", x=("i", 0))})[0]
    make(classes, None, [io.MultiType.Input("x", [io.Image, io.Mask])], [], is_output_node=True)
    (error,) = check({"i": n("Int", value=3), "v": n("V3", x=("i", 0))})[3]["v"]["errors"]
    assert error["type"] == "return_type_mismatch"


# --- versions


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_with_schemas(runner, classes, version):
    module = importlib.import_module(f"comfy_api.{version}")
    expected = {"IO", "UI", "ComfyAPI", "ComfyAPISync", "ComfyExtension", "Input", "InputImpl", "Types", "io", "ui"}
    assert expected <= set(module.__all__) <= expected | {"Caching"}
    members = {
        "define_schema": classmethod(
            lambda cls: module.io.Schema("V3", inputs=[module.io.Int.Input("a")], outputs=[module.io.AnyType.Output()])
        ),
        "execute": classmethod(lambda cls, a: module.io.NodeOutput(a + 1)),
    }
    classes["V3"] = type("V3", (module.IO.ComfyNode,), members)
    assert shown(runner, {"v": n("V3", a=1)}) == ["2"]


def test_the_first_version_has_no_schemas():
    from comfy_api import v0_0_1

    assert set(v0_0_1.__all__) == {"ComfyAPI", "ComfyAPISync", "Input", "InputImpl", "Types"}
    assert all(hasattr(v0_0_1, name) for name in v0_0_1.__all__)
    assert not hasattr(v0_0_1, "io") and not hasattr(v0_0_1, "ui")


@pytest.mark.parametrize("version", ["latest", "v0_0_1", "v0_0_2"])
def test_synchronous_variants(version):
    """Whatever can be awaited in `ComfyAPI` is a plain method of `ComfyAPISync`."""
    module = importlib.import_module(f"comfy_api.{version}")
    waiting, plain = module.ComfyAPI(), module.ComfyAPISync()
    assert isinstance(waiting, ComfyAPI) and isinstance(plain, ComfyAPISync)
    found = 0
    for part in ("execution", "node_replacement", "caching"):
        for name, method in inspect.getmembers(getattr(waiting, part), inspect.iscoroutinefunction):
            assert not inspect.iscoroutinefunction(getattr(getattr(plain, part), name)), (part, name)
            assert inspect.signature(method) == inspect.signature(getattr(getattr(plain, part), name))
            found += 1
    assert found >= 3
