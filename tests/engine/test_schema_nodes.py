"""Schema based ("V3") nodes: what they declare, how they are called, what they may return, the helpers around them."""

import asyncio
import json
import os

import pytest
from engine_kit import n

from comfy_api.latest import ComfyAPI, ComfyAPISync, ComfyExtension, Types, io, ui
from comfy_execution.facts import NodeFacts


def make(classes, execute, inputs=(), outputs=(), name="V3", **schema):
    """Register a V3 class with these inputs and this execute(cls, ...)."""
    members = {
        "define_schema": classmethod(
            lambda cls: io.Schema(node_id=name, inputs=list(inputs), outputs=list(outputs), **schema)
        ),
        "execute": classmethod(execute),
    }
    classes[name] = type(name, (io.ComfyNode,), members)
    return classes[name]


def shown(runner, prompt):
    return runner.good({**prompt, "o": n("Show", value=("v", 0))})["o"]["value"]


ANY = [io.AnyType.Output()]


# --- declaring


def test_object_info(classes):
    cls = make(
        classes,
        None,
        [io.Int.Input("value", default=1, min=0, max=9, tooltip="a number")],
        [io.Int.Output("number", display_name="Number", tooltip="it"), io.Float.Output()],
        display_name="Title",
        description="d",
        search_aliases=["x"],
        hidden=[io.Hidden.unique_id],
    )
    assert cls.GET_NODE_INFO_V1() == {
        "input": {
            "required": {"value": ("INT", {"tooltip": "a number", "default": 1, "min": 0, "max": 9})},
            "hidden": {"unique_id": ("UNIQUE_ID",)},
        },
        "input_order": {"required": ["value"], "hidden": ["unique_id"]},
        "is_input_list": False,
        "output": ["INT", "FLOAT"],
        "output_is_list": [False, False],
        "output_name": ["Number", "FLOAT"],
        "output_tooltips": ["it", None],
        "output_matchtypes": None,
        "name": "V3",
        "display_name": "Title",
        "description": "d",
        "python_module": "nodes",
        "category": "sd",
        "output_node": False,
        "deprecated": False,
        "experimental": False,
        "dev_only": False,
        "api_node": False,
        "price_badge": None,
        "search_aliases": ["x"],
        "essentials_category": None,
        "has_intermediate_output": False,
    }
    json.dumps(cls.GET_NODE_INFO_V1())


@pytest.mark.parametrize(
    "declared, io_type, options",
    [
        (io.Int.Input("x", step=2, control_after_generate=True, display_mode=io.NumberDisplay.slider), "INT",
         {"step": 2, "control_after_generate": True, "display": "slider"}),
        (io.Float.Input("x", default=0.5, round=0.01), "FLOAT", {"default": 0.5, "round": 0.01}),
        (io.String.Input("x", force_input=True), "STRING", {"forceInput": True, "multiline": False}),
        (io.Boolean.Input("x", label_on="on"), "BOOLEAN", {"label_on": "on"}),
        (io.Combo.Input("x", ["a"], upload=io.UploadType.image, image_folder=io.FolderType.input), "COMBO",
         {"multiselect": False, "options": ["a"], "image_upload": True, "image_folder": "input"}),
        (io.Combo.Input("x", remote=io.RemoteOptions("/r", True, timeout=5)), "COMBO",
         {"multiselect": False, "options": [], "remote": {"route": "/r", "refresh_button": True,
                                                          "control_after_refresh": "first", "timeout": 5}}),
        (io.MultiCombo.Input("x", ["a"], chip=True), "COMBO",
         {"multiselect": True, "options": ["a"], "multi_select": {"chip": True}}),
        (io.Color.Input("x"), "COLOR", {"default": "#ffffff", "socketless": True}),
        (io.Colors.Input("x"), "COLORS", {"default": [], "socketless": True}),
        (io.BoundingBox.Input("x"), "BOUNDING_BOX",
         {"default": {"x": 0, "y": 0, "width": 512, "height": 512}, "socketless": True}),
        (io.Curve.Input("x"), "CURVE",
         {"default": {"points": [[0.0, 0.0], [1.0, 1.0]], "interpolation": "monotone_cubic"}, "socketless": True}),
        (io.Range.Input("x", value_max=2), "RANGE",
         {"default": {"min": 0.0, "max": 1.0}, "socketless": True, "value_max": 2}),
        (io.ImageCompare.Input("x"), "IMAGECOMPARE", {"socketless": True}),
        (io.Image.Input("x", lazy=True, raw_link=True, advanced=True, extra_dict={"more": 1}), "IMAGE",
         {"lazy": True, "rawLink": True, "advanced": True, "more": 1}),
        (io.Custom("MINE").Input("x", display_name="X"), "MINE", {"display_name": "X"}),
        (io.File3DSplatAny.Input("x"), "FILE_3D_SPLAT_ANY", {}),
        (io.MultiType.Input("x", types=[io.Int, io.Float]), "INT,FLOAT", {}),
        (io.MultiType.Input(io.String.Input("x", default="w"), types=[io.Boolean]), "STRING,BOOLEAN",
         {"default": "w", "widgetType": "STRING", "multiline": False}),
        (io.MatchType.Input("x", template=io.MatchType.Template("t", [io.Int, io.String])), "COMFY_MATCHTYPE_V3",
         {"template": {"template_id": "t", "allowed_types": "INT,STRING"}}),
        (io.Autogrow.Input("x", io.Autogrow.TemplatePrefix(io.Int.Input("item"), "item", min=2, max=5)),
         "COMFY_AUTOGROW_V3", {"template": {"input": {"required": {"item": ("INT", {"forceInput": True})}},
                                            "prefix": "item", "min": 2, "max": 5}}),
        (io.Autogrow.Input("x", io.Autogrow.TemplateNames(io.AnyType.Input("i", optional=True), ["l", "r"], min=0)),
         "COMFY_AUTOGROW_V3", {"template": {"input": {"required": {}, "optional": {"i": ("*", {})}},
                                            "names": ["l", "r"], "min": 0}}),
    ],
)  # fmt: skip
def test_declarations(declared, io_type, options):
    assert declared.declaration() == (io_type, options)


def test_schema_is_checked(classes):
    with pytest.raises(ValueError, match="twice"):
        make(classes, None, [io.Int.Input("twice"), io.Int.Input("twice")]).GET_SCHEMA()
    with pytest.raises(ValueError, match="output ids"):
        make(classes, None, [], [io.Int.Output("a"), io.Int.Output("a")]).GET_SCHEMA()
    with pytest.raises(ValueError, match="max"):
        io.Autogrow.TemplatePrefix(io.Int.Input("i"), "i", min=5, max=2)


def test_hidden_inputs_of_output_nodes(classes):
    cls = make(classes, None, is_output_node=True)
    assert cls.INPUT_TYPES()["hidden"] == {"prompt": "PROMPT", "extra_pnginfo": "EXTRA_PNGINFO"}
    cls = make(classes, None, is_api_node=True)
    assert list(cls.INPUT_TYPES()["hidden"]) == ["auth_token_comfy_org", "api_key_comfy_org", "comfy_usage_source"]


def test_read_like_a_v1_class(classes):
    async def execute(cls):
        return io.NodeOutput()

    cls = make(classes, execute, [], [io.Int.Output(is_output_list=True)], is_input_list=True, category="c")
    assert (cls.RETURN_TYPES, cls.OUTPUT_IS_LIST, cls.INPUT_IS_LIST, cls.CATEGORY) == (["INT"], [True], True, "c")
    assert cls.FUNCTION == "EXECUTE_NORMALIZED_ASYNC" and cls.OUTPUT_NODE is False
    facts = NodeFacts("V3", cls)
    assert facts.is_v3 and facts.is_async and facts.input_is_list and facts.output_is_list == (True,)
    assert facts.own_check is None and facts.fingerprint is None and not facts.has_lazy_check


# --- calling


@pytest.mark.parametrize(
    "answer", [io.NodeOutput(5), (5,), {"result": (5,)}, {"result": (5,), "ui": {"a": [1]}}], ids=["o", "t", "d", "u"]
)
def test_return_forms(runner, classes, answer):
    make(classes, lambda cls: answer, [], ANY)
    assert shown(runner, {"v": n("V3")}) == ["5"]


def test_other_returns(runner, classes):
    make(classes, lambda cls: 5, [], ANY)
    error = runner.bad({"v": n("V3"), "o": n("Show", value=("v", 0))})
    assert error["exception_message"].startswith("Invalid return type from node") and error["node_id"] == "v"
    make(classes, lambda cls: io.NodeOutput(1, expand={}), [], ANY)
    assert "enable_expand" in runner.bad({"v": n("V3"), "o": n("Show", value=("v", 0))})["exception_message"]


def test_blocking(runner, classes):
    make(classes, lambda cls: io.NodeOutput(block_execution="stop"), [], ANY)
    assert runner.good({"v": n("V3"), "o": n("Show", value=("v", 0))}) == {}
    assert runner.server.of("execution_error")[0]["exception_message"] == "Execution Blocked: stop"


def test_hidden(runner, classes):
    def execute(cls):
        h = cls.hidden
        return io.NodeOutput([h.unique_id, h.extra_pnginfo, h.api_key_comfy_org, h.whatever])

    make(classes, execute, [], ANY, hidden=[io.Hidden.unique_id, io.Hidden.extra_pnginfo])
    prompt = {"v": n("V3"), "o": n("Show", value=("v", 0))}
    outputs = runner.good(prompt, extra_pnginfo={"k": 1}, api_key_comfy_org="not asked for")
    assert outputs["o"]["value"] == [repr(["v", {"k": 1}, None, None])]
    assert io.ComfyNode.hidden.unique_id is None
    renamed = {"w": n("V3"), "o": n("Show", value=("w", 0))}
    assert "'w'" in runner.good(renamed)["o"]["value"][0]  # the result belongs to the id


def test_class_is_locked(runner, classes):
    def execute(cls):
        cls.counter = 1

    cls = make(classes, execute, [], ANY)
    assert runner.bad({"v": n("V3"), "o": n("Show", value=("v", 0))})["exception_type"] == "AttributeError"
    assert not hasattr(cls, "counter")


def test_accept_all_inputs(runner, classes):
    make(classes, lambda cls, **kw: io.NodeOutput(sorted(kw)), [io.Int.Input("a")], ANY, accept_all_inputs=True)
    assert shown(runner, {"v": n("V3", a=1, b=2)}) == [repr(["a", "b"])]


def test_coroutine(runner, classes):
    async def execute(cls, a):
        await asyncio.sleep(0.01)
        return io.NodeOutput(a)

    make(classes, execute, [io.Int.Input("a")], ANY)
    assert shown(runner, {"r": n("Int", value=3), "v": n("V3", a=("r", 0))}) == ["3"]


def test_own_methods(runner, classes, check):
    cls = make(classes, lambda cls, a, b=None: io.NodeOutput(b if a else "no"),
               [io.Int.Input("a", max=5), io.AnyType.Input("b", lazy=True, optional=True)], ANY)  # fmt: skip
    cls.check_lazy_status = classmethod(lambda cls, a, b=None: ["b"] if a else [])
    cls.validate_inputs = classmethod(lambda cls, a: a != 9 or "nine")
    cls.fingerprint_inputs = classmethod(lambda cls, a, b: float("nan"))
    prompt = {"i": n("Int", value=7), "v": n("V3", a=1, b=("i", 0)), "o": n("Show", value=("v", 0))}
    assert check(prompt)[0]
    assert runner.good(prompt)["o"]["value"] == ["7"]
    runner.good(prompt)
    assert runner.cached == ["i"]
    prompt["v"]["inputs"]["a"] = 9
    assert check(prompt)[3]["v"]["errors"][0]["details"] == "a - nine"


# --- dynamic inputs


def size_combo():
    return io.DynamicCombo.Input(
        "mode",
        [
            io.DynamicCombo.Option("plain", []),
            io.DynamicCombo.Option("size", [io.Int.Input("width", max=64), io.Int.Input("height")]),
            io.DynamicCombo.Option(
                "nested",
                [io.DynamicCombo.Input("inner", [io.DynamicCombo.Option("a", [io.String.Input("text")])]),
                 io.Autogrow.Input("grow", io.Autogrow.TemplatePrefix(io.Int.Input("g"), "g", min=0, max=3))],
            ),
        ],
    )  # fmt: skip


@pytest.mark.parametrize(
    "sent, received",
    [
        ({"mode": "plain", "mode.width": 9}, {"mode": "plain"}),
        ({"mode": "size", "mode.width": 9, "mode.height": 10}, {"mode": "size", "width": 9, "height": 10}),
        ({"mode": "nested", "mode.inner": "a", "mode.inner.text": "deep", "mode.grow.g1": 4},
         {"grow": {"g1": 4}, "mode": "nested", "inner": {"inner": "a", "text": "deep"}}),
    ],
)  # fmt: skip
def test_dynamic_combo(runner, classes, check, sent, received):
    make(classes, lambda cls, mode: io.NodeOutput(mode), [size_combo()], ANY)
    prompt = {"v": n("V3", **sent), "o": n("Show", value=("v", 0))}
    assert check(prompt)[0]
    assert runner.good(prompt)["o"]["value"] == [repr(received)]


def test_dynamic_combo_is_checked(classes, check):
    make(classes, lambda cls, mode: io.NodeOutput(mode), [size_combo()], ANY, is_output_node=True)
    errors = check({"v": n("V3", mode="size", **{"mode.width": 65})})[3]["v"]["errors"]
    assert [(e["type"], e["extra_info"]["input_name"]) for e in errors] == [
        ("required_input_missing", "mode.height"),
        ("value_bigger_than_max", "mode.width"),
    ]
    assert errors[0]["details"] == "height"
    (error,) = check({"v": n("V3", mode="other")})[3]["v"]["errors"]
    assert error["type"] == "value_not_in_list" and error["extra_info"]["input_name"] == "mode"


def test_autogrow(runner, classes, check):
    grow = io.Autogrow.Input("items", io.Autogrow.TemplatePrefix(io.Int.Input("i"), "i", min=1, max=3))
    make(classes, lambda cls, items: io.NodeOutput(items), [grow], ANY, is_output_node=True)
    prompt = {"a": n("Int", value=1), "v": n("V3", **{"items.i0": ("a", 0), "items.i2": 5, "items.i9": 7})}
    assert check(prompt)[0]
    assert shown(runner, prompt) == [repr({"i0": 1, "i2": 5})]
    (error,) = check({"v": n("V3")})[3]["v"]["errors"]
    assert error["extra_info"] == {"input_name": "items.i0"} and error["details"] == "i0"


def test_lazy_autogrow_gets_names_to_ask_for(runner, classes):
    template = io.Autogrow.TemplatePrefix(io.AnyType.Input("i"), "i", min=0, max=3)
    cls = make(classes, lambda cls, items: io.NodeOutput(items), [io.Autogrow.Input("items", template, lazy=True)], ANY)
    cls.check_lazy_status = classmethod(lambda cls, items: [items["i1"][1]])
    prompt = {
        "a": n("Int", value=1),
        "b": n("Int", value=2),
        "v": n("V3", **{"items.i0": ("a", 0), "items.i1": ("b", 0)}),
    }
    assert shown(runner, prompt) == [repr({"i0": None, "i1": 2})]
    assert classes["Int"].calls == [2]


def test_lists(runner, classes):
    make(classes, lambda cls, items: io.NodeOutput(items), is_input_list=True, outputs=ANY,
         inputs=[io.Autogrow.Input("items", io.Autogrow.TemplatePrefix(io.Int.Input("i"), "i"))])  # fmt: skip
    assert shown(runner, {"v": n("V3", **{"items.i0": 5})}) == [repr({"i0": [5]})]


# --- around nodes


def test_synchronous_api():
    from comfy_api.internal import synchronous

    class Waiting(ComfyAPI.Execution):
        async def quick(self):
            return 5

        async def fails(self):
            raise KeyError("x")

        async def slow(self):
            await asyncio.sleep(0)

    plain = synchronous(Waiting)()
    assert plain.quick() == 5
    with pytest.raises(KeyError):
        plain.fails()
    with pytest.raises(RuntimeError, match="slow has to wait"):
        plain.slow()
    assert isinstance(ComfyAPISync(), ComfyAPI)


def test_extension():
    class Mine(ComfyExtension):
        async def get_node_list(self):
            return []

    asyncio.run(Mine().on_load())
    assert asyncio.run(Mine().get_node_list()) == []
    with pytest.raises(TypeError):
        ComfyExtension()


@pytest.fixture
def folders(monkeypatch, tmp_path):
    import folder_paths

    for name in ("output", "temp"):
        (tmp_path / name).mkdir()
        getattr(folder_paths, f"set_{name}_directory")(str(tmp_path / name))
    yield tmp_path
    for name in ("output", "temp"):
        getattr(folder_paths, f"set_{name}_directory")(os.path.join(folder_paths.base_path, name))


def node_class():
    hidden = {"prompt": {"1": {}}, "extra_pnginfo": {"workflow": {"id": 1}}}
    return io.ComfyNode.PREPARE_CLASS_CLONE(hidden)


def test_saving_images(folders):
    torch = pytest.importorskip("torch")
    from PIL import Image

    images = torch.stack([torch.zeros(4, 8, 3), torch.ones(4, 8, 3)])
    shown = ui.ImageSaveHelper.get_save_images_ui(images, "sub/name", cls=node_class()).as_dict()
    assert list(shown) == ["images"] and [r["filename"] for r in shown["images"]] == [
        "name_00001_.png",
        "name_00002_.png",
    ]
    assert all(r["subfolder"] == "sub" and r["type"] == "output" for r in shown["images"])
    with Image.open(folders / "output" / "sub" / "name_00002_.png") as image:
        assert image.size == (8, 4) and image.getpixel((0, 0)) == (255, 255, 255)
        assert json.loads(image.text["prompt"]) == {"1": {}} and json.loads(image.text["workflow"]) == {"id": 1}


def test_previews(folders):
    torch = pytest.importorskip("torch")
    shown = ui.PreviewImage(torch.zeros(1, 4, 4, 3)).as_dict()
    assert shown["animated"] == (False,) and shown["images"][0]["type"] == "temp"
    assert shown["images"][0]["filename"].startswith("ComfyUI_temp_")
    assert len(ui.PreviewMask(torch.zeros(2, 4, 4)).as_dict()["images"]) == 2
    assert len(list((folders / "temp").glob("*.png"))) == 3
    assert ui.PreviewText("t").as_dict() == {"text": ("t",)}
    assert ui.PreviewVideo([{"filename": "v"}]).as_dict() == {"images": [{"filename": "v"}], "animated": (True,)}
    model, camera, background = ui.PreviewUI3D("m.glb", {"c": 1}, torch.zeros(1, 4, 4, 3)).as_dict()["result"]
    assert (model, camera) == ("m.glb", {"c": 1}) and (folders / background).is_file()


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_animations(folders, kind):
    torch = pytest.importorskip("torch")
    from PIL import Image

    images = torch.rand(3, 16, 16, 3)
    helper = ui.ImageSaveHelper
    if kind == "png":
        shown = helper.get_save_animated_png_ui(images, "anim", node_class(), fps=10, compress_level=1).as_dict()
    else:
        shown = helper.get_save_animated_webp_ui(images, "anim", node_class(), 10, True, 80, "fastest").as_dict()
    assert shown["animated"] == (True,)
    with Image.open(folders / "output" / shown["images"][0]["filename"]) as image:
        assert image.n_frames == 3


@pytest.mark.parametrize("form", ["flac", "mp3", "opus"])
def test_audio(folders, form):
    torch = pytest.importorskip("torch")
    av = pytest.importorskip("av")
    audio = {"waveform": torch.sin(torch.arange(44100) / 20.0).reshape(1, 1, -1), "sample_rate": 44100}
    (result,) = ui.AudioSaveHelper.get_save_audio_ui(audio, "sound", node_class(), format=form).as_dict()["audio"]
    with av.open(str(folders / "output" / result["filename"])) as container:
        seconds = sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))
    assert seconds == pytest.approx(1.0, abs=0.1)
    with pytest.raises(ValueError, match="wav"):
        ui.AudioSaveHelper.save_audio(audio, "x", io.FolderType.output, None, format="wav")


def test_video(folders):
    torch = pytest.importorskip("torch")
    pytest.importorskip("av")
    from fractions import Fraction

    from comfy_api.latest import InputImpl

    images = torch.linspace(0, 1, 10).reshape(10, 1, 1, 1).expand(10, 32, 48, 3)
    audio = {"waveform": torch.zeros(1, 2, 48000), "sample_rate": 48000}
    video = InputImpl.VideoFromComponents(Types.VideoComponents(images, Fraction(10), audio))
    path = str(folders / "v.mp4")
    video.save_to(path, metadata={"prompt": {"1": {}}})
    read = InputImpl.VideoFromFile(path)
    assert read.get_dimensions() == (48, 32) and read.get_frame_count() == 10 and read.get_frame_rate() == 10
    components = read.get_components()
    assert torch.allclose(components.images, images, atol=0.05)
    assert components.audio["sample_rate"] == 48000 and components.metadata["prompt"] == {"1": {}}
    part = read.as_trimmed(0.5, 0.3)
    assert part.get_frame_count() == 3 and read.as_trimmed(0.5, 5) is None
    assert Types.VideoContainer.get_extension("auto") == "mp4" and "h264" in Types.VideoCodec.as_input()


def test_file_3d(tmp_path):
    path = tmp_path / "m.GLB"
    path.write_bytes(b"glTF")
    file = Types.File3D(str(path))
    assert file.format == "glb" and file.is_disk_backed and file.get_bytes() == b"glTF"
    copy = Types.File3D(file.get_data(), "glb")
    assert copy.save_to(str(tmp_path / "sub" / "c.glb")) and (tmp_path / "sub" / "c.glb").read_bytes() == b"glTF"


def test_v1_types():
    from comfy.comfy_types import IO, CheckLazyMixin

    assert not IO.ANY != "INT" and not IO.NUMBER != "INT" and IO.INT != "FLOAT" and not IO.INT != "INT"  # noqa: SIM202
    assert not IO.PRIMITIVE != IO.NUMBER and f"{IO.INT}" == "INT" and {IO.INT: 1}["INT"] == 1  # noqa: SIM202
    assert CheckLazyMixin().check_lazy_status(a=1, b=None) == ["b"]


def test_older_names():
    from comfy_api import feature_flags, input, input_impl, util, v0_0_1, v0_0_2

    assert v0_0_2.io is io and not hasattr(v0_0_1, "io")
    assert util.VideoContainer is Types.VideoContainer and input_impl.VideoFromFile and input.VideoInput
    metadata = {"s": {"feature_flags": {"a": True, "b": 1}}}
    assert feature_flags.supports_feature(metadata, "s", "a")
    assert not feature_flags.supports_feature(metadata, "s", "b") and not feature_flags.supports_feature(
        metadata, None, "a"
    )
    assert feature_flags.get_connection_feature(metadata, "s", "b") == 1
