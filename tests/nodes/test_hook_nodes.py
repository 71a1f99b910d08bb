"""Hook nodes: what they make, against recorded cases (tests/data/hooks), and what it does to pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import comfy.hooks
import comfy.lora
import folder_paths
import nodes
from nodes.hook_keyframes import KeyframeStrengthsError
from tests.networks import checkpoints
from tests.nodes.golden_format import Goldens, compare
from tests.nodes.runner import GraphRunner

GOLDENS = Goldens(str(Path(__file__).parents[1] / "data" / "hooks"))


def run(name: str, **inputs):
    cls = nodes.NODE_CLASS_MAPPINGS[name]
    result = getattr(cls(), cls.FUNCTION)(**inputs)
    return result[0] if len(result) == 1 else result


def plain(value):
    if isinstance(value, comfy.hooks.HookKeyframeGroup):
        names = ("strength", "start_percent", "guarantee_steps")
        return {"$hook_keyframes": [{n: getattr(k, n) for n in names} for k in value.keyframes]}
    return value


@pytest.mark.parametrize("case", GOLDENS.cases, ids=lambda case: case["id"])
def test_recorded_case(case):
    prompt, links = GOLDENS.prompt(case)
    runner = GraphRunner(prompt, GOLDENS.source_values(case))
    assert not compare(case, GOLDENS, [runner.slot(link) for link in links], plain=plain)


# --- keyframes and groups ---------------------------------------------------------------------------


def test_easing_in_and_out_is_symmetric():
    keyframes = run(
        "CreateHookKeyframesInterpolated", strength_start=0.0, strength_end=1.0, interpolation="ease_in_out",
        start_percent=0.0, end_percent=1.0, keyframes_count=5, print_keyframes=False,
    )  # fmt: skip
    strengths = [k.strength for k in keyframes.keyframes]
    assert strengths == pytest.approx([0.0, 0.15625, 0.5, 0.84375, 1.0])


def test_keyframes_are_added_to_earlier_ones_which_stay_as_they_are(caplog):
    first = run("CreateHookKeyframe", strength_mult=0.5, start_percent=0.9)
    with caplog.at_level("INFO"):
        both = run(
            "CreateHookKeyframesFromFloats", floats_strength=[1, 2], start_percent=0.0, end_percent=0.5,
            print_keyframes=True, prev_hook_kf=first,
        )  # fmt: skip
    assert [k.strength for k in both.keyframes] == [1.0, 2.0, 0.5] and len(first.keyframes) == 1
    assert "keyframe 2: from 0.500 of sampling on strength 2.000" in caplog.text


@pytest.mark.parametrize("value", ["much", None, [], [1.0, "x"], [float("nan")], [[1.0]]])
def test_strengths_that_are_no_numbers_are_refused(value):
    with pytest.raises(KeyframeStrengthsError, match="floats_strength"):
        run("CreateHookKeyframesFromFloats", floats_strength=value, start_percent=0.0, end_percent=1.0)


def test_groups_are_put_together():
    groups = [comfy.hooks.create_hook_lora({}, strength, strength) for strength in (1.0, 2.0, 3.0)]
    joined = run("CombineHooks4", hooks_A=groups[0], hooks_C=groups[1], hooks_D=groups[0])
    assert joined.hooks == [groups[0].hooks[0], groups[1].hooks[0]]
    assert run("CombineHooks2", hooks_B=groups[2]) is groups[2]
    eight = run("CombineHooks8", **{f"hooks_{letter}": group for letter, group in zip("AHC", groups)})
    assert eight.hooks == [groups[i].hooks[0] for i in (0, 2, 1)]


def test_keyframes_are_set_on_a_copy():
    hooks = comfy.hooks.create_hook_lora({}, 1.0, 1.0)
    keyframes = run("CreateHookKeyframe", strength_mult=0.5, start_percent=0.0)
    scheduled = run("SetHookKeyframes", hooks=hooks, hook_kf=keyframes)
    assert scheduled.hooks == hooks.hooks and scheduled.hooks[0].strength_model == 0.5
    assert hooks.hooks[0].strength_model == 1.0
    assert run("SetHookKeyframes", hooks=hooks) is hooks


# --- pictures ---------------------------------------------------------------------------------------

CONTEXT = 24  # channels of the conditioning that the small network takes
LAYERS = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two small checkpoints and a LoRA for both parts of the first."""
    root = tmp_path_factory.mktemp("hooks")
    for name in ("checkpoints", "loras"):
        (root / name).mkdir()
    path = Path(checkpoints.write(root / "checkpoints" / "small.safetensors", dtype=torch.float32))
    moved = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i))
        for i, (name, tensor) in enumerate(load_file(path).items())
    }
    save_file(moved, root / "checkpoints" / "other.safetensors")
    return root


@pytest.fixture
def loaded(files, monkeypatch, folders):
    for name in ("checkpoints", "loras"):
        _, extensions = folder_paths.folder_names_and_paths[name]
        monkeypatch.setitem(folder_paths.folder_names_and_paths, name, ([str(files / name)], extensions))
    with torch.inference_mode():
        model, clip, _ = nodes.CheckpointLoaderSimple().load_checkpoint("small.safetensors")
        lora = files / "loras" / "some.safetensors"
        if not lora.exists():
            save_file({**lora_for(model.model, "diffusion_model."), **lora_for(clip.cond_stage_model, "")}, lora)
        yield model, clip


def lora_for(model, prefix: str) -> dict[str, torch.Tensor]:
    """Rank-2 changes of some of the model's layers, under names that trainers use."""
    names = comfy.lora.model_lora_keys_unet if prefix else comfy.lora.model_lora_keys_clip
    kohya = {key: name for name, key in names(model, {}).items() if isinstance(key, str) and name.startswith("lora_")}
    layers = [k for k, v in model.state_dict().items() if v.ndim == 2 and k in kohya and k.startswith(prefix)]
    generator, out = torch.Generator().manual_seed(1), {}
    for key in layers[:: max(len(layers) // LAYERS, 1)]:
        rows, columns = model.state_dict()[key].shape
        out[f"{kohya[key]}.lora_up.weight"] = torch.randn(rows, 2, generator=generator) * 0.5
        out[f"{kohya[key]}.lora_down.weight"] = torch.randn(2, columns, generator=generator) * 0.5
    assert len(out) >= 2
    return out


def encode(clip, text: str = "a box") -> list:
    (conditioning,) = nodes.CLIPTextEncode().encode(clip, text)
    return [[tensor[..., :CONTEXT], options] for tensor, options in conditioning]


def picture(model, positive, negative, **changes) -> torch.Tensor:
    inputs = {"seed": 1, "steps": 2, "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    result = nodes.KSampler().sample(
        model, positive=positive, negative=negative, latent_image=latent, **{**inputs, **changes}
    )
    return result[0]["samples"]


def same(one: torch.Tensor, other: torch.Tensor, tolerance: float = 2e-5) -> bool:
    """Whether pictures differ by roundings only; the untrained network makes large values."""
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())


def lora_hook(model: float = 1.0, clip: float = 1.0):
    return run("CreateHookLora", lora_name="some.safetensors", strength_model=model, strength_clip=clip)


def with_hooks(hooks, positive, negative):
    return run(
        "PairConditioningSetProperties", positive_NEW=positive, negative_NEW=negative, strength=1.0,
        set_cond_area="default", hooks=hooks,
    )  # fmt: skip


@pytest.mark.parametrize("strengths", [(1.0, 1.0), (0.4, -0.7)])
def test_a_hook_everywhere_is_the_lora_itself(loaded, strengths):
    model, clip = loaded
    patched_model, patched_clip = nodes.LoraLoader().load_lora(model, clip, "some.safetensors", *strengths)
    expected = picture(patched_model, encode(patched_clip), encode(patched_clip, ""))
    hooked = run("SetClipHooks", clip=clip, apply_to_conds=True, schedule_clip=False, hooks=lora_hook(*strengths))
    positive, negative = encode(hooked), encode(hooked, "")
    assert same(positive[0][0], encode(patched_clip)[0][0])
    assert not same(positive[0][0], encode(clip)[0][0], 1e-3)
    assert same(picture(model, positive, negative), expected)
    # Afterwards nothing of it is left.
    plain_picture = picture(model, encode(clip), encode(clip, ""))
    assert not same(plain_picture, expected, 1e-3)
    assert torch.equal(plain_picture, picture(model, encode(clip), encode(clip, "")))


def test_a_hook_of_the_model_only_leaves_the_encoder_alone(loaded):
    model, clip = loaded
    hooks = run("CreateHookLoraModelOnly", lora_name="some.safetensors", strength_model=1.0)
    hooked = run("SetClipHooks", clip=clip, apply_to_conds=False, schedule_clip=False, hooks=hooks)
    assert torch.equal(encode(hooked)[0][0], encode(clip)[0][0])
    assert "hooks" not in encode(hooked)[0][1]
    (patched,) = nodes.LoraLoaderModelOnly().load_lora_model_only(model, "some.safetensors", 1.0)
    expected = picture(patched, encode(clip), encode(clip, ""))
    assert same(picture(model, *with_hooks(hooks, encode(clip), encode(clip, ""))), expected)


def test_a_hook_acts_for_its_conditioning_only(loaded):
    """Guidance of 0 shows the negative alone, of 1 the positive alone."""
    model, clip = loaded
    positive, negative = encode(clip), encode(clip, "")
    (patched,) = nodes.LoraLoaderModelOnly().load_lora_model_only(model, "some.safetensors", 1.0)
    changed = run(
        "ConditioningSetProperties", cond_NEW=positive, strength=1.0, set_cond_area="default", hooks=lora_hook()
    )
    for sampler in ("euler", "dpmpp_2m", "heun"):
        kept = picture(model, changed, negative, cfg=0.0, sampler_name=sampler)
        assert same(kept, picture(model, positive, negative, cfg=0.0, sampler_name=sampler))
        hooked = picture(model, changed, negative, cfg=1.0, sampler_name=sampler)
        assert same(hooked, picture(patched, positive, negative, cfg=1.0, sampler_name=sampler))


def test_hooks_come_on_top_of_loras(loaded):
    model, clip = loaded
    positive, negative = encode(clip), encode(clip, "")
    load = nodes.LoraLoaderModelOnly().load_lora_model_only
    (once,) = load(model, "some.safetensors", 0.5)
    (twice,) = load(once, "some.safetensors", 0.5)
    hooked = with_hooks(lora_hook(0.5), positive, negative)
    assert same(picture(once, *hooked), picture(twice, positive, negative))
    more = with_hooks(run("CombineHooks2", hooks_A=lora_hook(0.5), hooks_B=lora_hook(0.5)), positive, negative)
    assert same(picture(model, *more), picture(twice, positive, negative))


def test_a_whole_model_as_a_lora(loaded):
    model, clip = loaded
    other, other_clip, _ = nodes.CheckpointLoaderSimple().load_checkpoint("other.safetensors")
    hooks = run("CreateHookModelAsLora", ckpt_name="other.safetensors", strength_model=1.0, strength_clip=1.0)
    hooked = run("SetClipHooks", clip=clip, apply_to_conds=True, schedule_clip=False, hooks=hooks)
    expected = picture(other, encode(other_clip), encode(other_clip, ""))
    assert same(encode(hooked)[0][0], encode(other_clip)[0][0])
    assert same(picture(model, encode(hooked), encode(hooked, "")), expected, 1e-4)
    only = run("CreateHookModelAsLoraModelOnly", ckpt_name="other.safetensors", strength_model=1.0)
    positive, negative = encode(clip), encode(clip, "")
    assert same(picture(model, *with_hooks(only, positive, negative)), picture(other, positive, negative), 1e-4)


def test_the_encoder_follows_the_keyframes(loaded):
    _, clip = loaded
    keyframes = None
    for strength, start in ((1.0, 0.0), (1.0, 0.2), (0.0, 0.5), (0.5, 0.75)):
        keyframes = run("CreateHookKeyframe", strength_mult=strength, start_percent=start, prev_hook_kf=keyframes)
    hooks = run("SetHookKeyframes", hooks=lora_hook(), hook_kf=keyframes)
    scheduled = run("SetClipHooks", clip=clip, apply_to_conds=True, schedule_clip=True, hooks=hooks)
    entries = encode(scheduled)
    ranges = [(o["clip_start_percent"], o["clip_end_percent"]) for _, o in entries]
    assert ranges == [(0.0, 0.5), (0.5, 0.75), (0.75, 1.0)]  # 0.2 changes nothing
    assert all(options["hooks"] is hooks for _, options in entries)
    for (tensor, _), strength in zip(entries, (1.0, 0.0, 0.5)):
        _, patched = nodes.LoraLoader().load_lora(None, clip, "some.safetensors", 0.0, strength)
        assert same(tensor, encode(patched)[0][0])
    # Without a schedule the encoder has the hooks' full strength throughout.
    still = run("SetClipHooks", clip=clip, apply_to_conds=True, schedule_clip=False, hooks=hooks)
    (entry,) = encode(still)
    assert same(entry[0], entries[0][0]) and "clip_start_percent" not in entry[1]


def test_parts_outside_of_a_range_are_not_encoded(loaded):
    _, clip = loaded
    keyframes = run(
        "CreateHookKeyframesFromFloats", floats_strength=[0.0, 1.0, 2.0, 3.0], start_percent=0.0, end_percent=0.75
    )
    hooks = run("SetHookKeyframes", hooks=lora_hook(), hook_kf=keyframes)
    scheduled = run("SetClipHooks", clip=clip, apply_to_conds=False, schedule_clip=True, hooks=hooks)
    entries = scheduled.encode_from_tokens_scheduled(
        scheduled.tokenize("a box"), add_dict={"start_percent": 0.3, "end_percent": 0.6}
    )
    assert [o["clip_start_percent"] for _, o in entries] == [0.25, 0.5]
    assert all("hooks" not in options for _, options in entries)


def test_no_strength_is_no_hook(loaded):
    assert len(lora_hook(0.0, 0.0)) == 0
    before = lora_hook()
    both = run("CreateHookLora", lora_name="some.safetensors", strength_model=0.5, strength_clip=0.5, prev_hooks=before)
    assert both.hooks[0] == before.hooks[0] and len(both) == 2 and len(before) == 1


def test_files_that_are_missing_are_named(loaded):
    for node, key in (("CreateHookLora", "lora_name"), ("CreateHookModelAsLora", "ckpt_name")):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors"):
            run(node, **{key: "nowhere.safetensors"}, strength_model=1.0, strength_clip=1.0)
    assert run("SetClipHooks", clip=loaded[1], apply_to_conds=True, schedule_clip=True) is loaded[1]
