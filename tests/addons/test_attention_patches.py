"""Patches of transformers' attention, and the nodes built on them. No recording: papers, and what must hold."""

from __future__ import annotations

import uuid

import pytest
import torch
from safetensors.torch import save_file

import folder_paths
import nodes
from comfy.clip_vision import Output
from comfy.model_patcher import ModelPatcher
from comfy.models import flux2 as flux2_module
from comfy.models.attention_patches import attention_inputs, attention_output
from comfy.models.flux_layers import widened_mask
from comfy.models.references import TIMESTEP_ZERO
from comfy.reference_cache import IncompleteReferenceCache
from comfy.sampling.attention_guidance import normalized_guidance
from comfy.style_patch import UnfitVisionOutput
from nodes.model_patches import NotForThisModel
from tests.addons.guided_step import guided
from tests.addons.recorded_addons import PREFIX, Alone, host
from tests.addons.transformer_controls import drawn, random
from tests.architectures.recorded import build, run
from tests.families.models import family_model
from tests.networks.golden import Golden, error

NODES = nodes.NODE_CLASS_MAPPINGS
JOINT = ["flux_dev", "flux2", "chroma", "mmdit_sd3", "qwen_image", "lumina2", "z_image", "auraflow", "hidream"]


@pytest.fixture(scope="module")
def models():
    made = {}

    def get(name):
        if name not in made:
            golden = Golden(name)
            made[name] = family_model(golden), golden
        return made[name]

    return get


def network_output(models, name, patches=None, **more):
    model, golden = models(name)
    return run(model.diffusion_model, golden, transformer_options={"patches": patches or {}, **more})


# --- where the patches are called


@pytest.mark.parametrize("name", JOINT)
def test_output_patch_sees_every_joint_attention(models, name):
    """Its slice is the image's tokens: emptied there, the image no longer depends on what the attention gave it."""
    plain, seen = network_output(models, name), []

    def look(out, options):
        seen.append((options["block_type"], options["block_index"], options["img_slice"], out.shape[1]))
        return out

    assert error(network_output(models, name, {"attn1_output_patch": [look]}), plain) < 1e-5
    config = models(name)[0].diffusion_model.config
    counts = [getattr(config, n, 0) for n in ("depth", "depth_single_blocks", "num_layers", "num_single_layers")]
    blocks = sum(counts) or config.n_layers
    assert len({entry[:2] for entry in seen}) == len(seen) == blocks
    rows, columns = (-(-n // getattr(config, "patch_size", 1)) for n in models(name)[1].inputs["x"].shape[-2:])
    for _, _, (start, end), tokens in seen:
        assert 0 <= start < end <= tokens and end - start >= rows * columns

    def halve(out, options):
        start, end = options["img_slice"]
        return torch.cat([out[:, :start], out[:, start:end] * 0.5, out[:, end:]], dim=1)

    assert error(network_output(models, name, {"attn1_output_patch": [halve]}), plain) > 1e-4


def test_cross_attention_of_a_transformer(models):
    plain, seen = network_output(models, "pixart_sigma"), []

    def look(out, options):
        seen.append(options["block_index"])
        return out * 0.5

    assert error(network_output(models, "pixart_sigma", {"attn2_output_patch": [look]}), plain) > 1e-4
    assert seen == list(range(len(models("pixart_sigma")[0].diffusion_model.blocks)))


def test_input_patch_changes_what_it_returns():
    q, k, v, pe = (torch.full((1, 2, 3, 4), float(n)) for n in range(4))
    seen = {}

    def patch(q, k, v, pe, attn_mask, extra_options):
        seen.update(extra_options)
        return {"k": k + 10, "attn_mask": "mask"}

    def for_unets(q, k, v, options):
        raise AssertionError("patches of UNets mean something else")

    given = attention_inputs({"patches": {"attn1_patch": [for_unets, patch]}, "a": 1}, q, k, v, pe, None, 2)
    assert given[0] is q and given[1][0, 0, 0, 0] == 11 and given[2] is v and given[3] is pe and given[4] == "mask"
    assert seen["img_slice"] == [2, 3] and seen["a"] == 1
    assert attention_output(None, q, 0) is q


@pytest.mark.parametrize("node, options", [("TomePatchModel", {"ratio": 0.5}), ("HyperTile", {})])
def test_patches_of_unets_leave_a_transformer_alone(models, node, options):
    model, golden = models("flux_dev")
    patcher = ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    defaults = {"tile_size": 256, "swap_size": 2, "max_depth": 0, "scale_depth": False} if node == "HyperTile" else {}
    cls = NODES[node]
    arguments = {"model": patcher, **defaults, **options}
    patched = cls.execute(**arguments).result[0] if hasattr(cls, "execute") else cls().patch(**arguments)[0]
    patches = patched.model_options["transformer_options"]
    assert torch.equal(
        run(model.diffusion_model, golden, transformer_options=patches), network_output(models, "flux_dev")
    )


def test_masks_grow_at_the_front():
    scores = torch.tensor([[[[1.0, 2.0]]]])
    assert widened_mask(scores, 4).tolist() == [[[[0, 0, 1, 2]]]]
    allowed = torch.tensor([[True, False], [False, True]])
    assert widened_mask(allowed, 3).tolist() == [[True] * 3, [True, True, False], [True, False, True]]
    assert widened_mask(scores, 2) is scores and widened_mask(None, 9) is None


# --- normalized attention guidance


def test_the_papers_formula():
    """By hand, one token: z+ = (1, -3), z- = (0, 1), scale 3: 3 z+ - 2 z- = (3, -11), 14 long against 4: ratio 3.5."""
    positive, negative = torch.tensor([[[1.0, -3.0]]]), torch.tensor([[[0.0, 1.0]]])
    out = normalized_guidance(positive, negative, 3.0, 1.0, 10.0)
    assert torch.allclose(out, torch.tensor([[[3.0, -11.0]]]))
    out = normalized_guidance(positive, negative, 3.0, 0.25, 2.0)  # shortened to 8, a quarter of it
    assert torch.allclose(out, torch.tensor([[[3 * 2 / 3.5 / 4 + 0.75, -11 * 2 / 3.5 / 4 - 2.25]]]))
    assert torch.equal(normalized_guidance(positive, negative, 1.0, 0.5, 1.5), positive)
    zeros = torch.zeros(1, 1, 2)
    assert torch.isfinite(normalized_guidance(zeros, zeros, 5.0, 0.5, 1.5)).all()


def nag(patcher, scale=4.0, alpha=0.5, tau=1.5):
    return NODES["NAGuidance"].execute(patcher, scale, alpha, tau).result[0]


@pytest.mark.parametrize("name", ["unet_sd1", "flux_dev", "lumina2"])
def test_positive_is_guided_in_the_attention(models, name):
    """Against a run in which a patch of this test does the same to the rows; at CFG 1 the negative is evaluated."""
    model, golden = models(name)
    patcher = ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    x, sigma = golden.inputs["x"][:1], golden.inputs["sigma"][:1]
    more = {"pooled_output": golden.inputs["y"][:1]} if "y" in golden.inputs else {}
    positive = [[golden.inputs["context"][:1], more]]
    negative = [[golden.inputs["context"][:1].flip(1) * 0.5, more]]

    def other(out, options):
        assert options["cond_or_uncond"] == [1, 0]
        start, end = options.get("img_slice", (0, out.shape[1]))
        n, p = out[0, start:end], out[1, start:end]
        g = 4.0 * p - 3.0 * n
        lengths = (g.abs().sum(-1) / p.abs().sum(-1))[:, None]
        g = torch.where(lengths > 1.5, g / lengths * 1.5, g)
        out = out.clone()
        out[1, start:end] = (g + p) / 2
        return out

    by_hand = patcher.clone()
    by_hand.set_model_patch(other, "attn2_output_patch" if name == "unet_sd1" else "attn1_output_patch")
    by_hand.disable_model_cfg1_optimization()
    expected = guided(by_hand, x, sigma, positive, negative, 1.0)
    out = guided(nag(patcher), x, sigma, positive, negative, 1.0)
    assert error(out, expected) < 1e-5
    assert error(out, guided(patcher, x, sigma, positive, negative, 1.0)) > 1e-4
    assert error(guided(nag(patcher, scale=1.0), x, sigma, positive, negative, 1.0),
                 guided(patcher, x, sigma, positive, negative, 1.0)) < 1e-5  # fmt: skip


def test_sides_that_cannot_be_compared_are_told(models, caplog):
    """Prompts too different in length for one batch: nothing happens, and the log says why, once."""
    model, golden = models("flux_dev")
    patcher = ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))
    x, sigma, context = golden.inputs["x"][:1], golden.inputs["sigma"][:1], golden.inputs["context"][:1]
    y = {"pooled_output": golden.inputs["y"][:1]}
    positive, negative = [[context, y]], [[torch.cat([context, context[:, :1]], dim=1), y]]
    plain = guided(patcher, x, sigma, positive, negative, 1.0)
    assert error(guided(nag(patcher), x, sigma, positive, negative, 1.0), plain) < 1e-6
    assert sum("no effect" in r.getMessage() for r in caplog.records) == 1


# --- references computed once


@pytest.fixture(scope="module")
def editor():
    golden = Golden("flux2_ref")
    axes = tuple(golden.config["unet_config"]["axes_dim"])
    config = flux2_module.config_from_state_dict(golden.weights, PREFIX, axes_dim=axes)
    network = build(golden, config, flux2_module.Flux2, PREFIX)
    return ModelPatcher(Alone(network), torch.device("cpu"), torch.device("cpu")), golden


class Causal:
    """References see only themselves, in every step: what the cache must come to."""

    def __call__(self, q, k, v, pe, attn_mask, extra_options):
        references = sum(extra_options["reference_image_num_tokens"])
        mask = torch.zeros(q.shape[2], q.shape[2])
        mask[-references:, :-references] = float("-inf")
        return {"attn_mask": mask}


def steps(patcher, golden, times, **more):
    """The network at several timesteps of one run, as sampling calls it."""
    import comfy.model_management

    comfy.model_management.load_models_gpu([patcher])
    patcher.pre_run()
    call = {"uuids": [uuid.uuid4()], "cond_or_uncond": [0], **patcher.model_options["transformer_options"]}
    network, rows = patcher.model.diffusion_model, golden.inputs["x"].shape[0]
    try:
        return [
            run(
                network,
                golden,
                timesteps=torch.full((rows,), t),
                x=golden.inputs["x"] * t,
                transformer_options=call,
                **more,
            )
            for t in times
        ]
    finally:
        patcher.cleanup()
        patcher.detach()


def test_cached_references_give_what_computing_them_anew_gives(editor):
    patcher, golden = editor
    cached = NODES["FluxKVCache"].execute(patcher).result[0]
    lengths = []
    cached.set_model_patch(lambda out, o: lengths.append(out.shape[1]) or out, "attn1_output_patch")
    anew = patcher.clone()
    anew.set_model_attn1_patch(Causal())
    times = (1.0, 0.7, 0.2)
    expected = steps(anew, golden, times, ref_latents_method=TIMESTEP_ZERO)
    for _ in range(2):  # a second run keeps nothing of the first
        for got, wanted in zip(steps(cached, golden, times), expected):
            assert error(got, wanted) < 1e-5
    references = sum(r.shape[-2] * r.shape[-1] for k, r in golden.inputs.items() if k.startswith("ref_latents"))
    blocks = len(lengths) // 6
    assert lengths[0] - lengths[blocks] == references and lengths[blocks] == lengths[-1]
    assert error(steps(patcher, golden, (0.7,))[0], expected[1]) > 1e-4
    assert patcher.model.diffusion_model.default_ref_method == "index"


def test_each_conditioning_has_its_own(editor):
    """Other prompts, and other references, are not answered from what the first left."""
    patcher, golden = editor
    import comfy.model_management

    cached = NODES["FluxKVCache"].execute(patcher).result[0]
    comfy.model_management.load_models_gpu([cached])
    cached.pre_run()
    network, options = cached.model.diffusion_model, cached.model_options["transformer_options"]
    first, second = uuid.uuid4(), uuid.uuid4()

    def call(name, **more):
        return run(network, golden, transformer_options={**options, "uuids": [name], "cond_or_uncond": [0]}, **more)

    context = golden.inputs["context"].flip(1)
    alone = call(second, context=context)
    cached.pre_run()
    call(first)
    assert torch.equal(call(second, context=context), alone)
    keep = [golden.inputs["ref_latents.0"][..., :1]]
    narrower = call(first, **{"ref_latents.0": keep[0]})
    cached.pre_run()
    assert torch.equal(call(first, **{"ref_latents.0": keep[0]}), narrower)
    cached.cleanup()
    cached.detach()


def test_blocks_that_come_and_go(editor):
    patcher, golden = editor
    cached = NODES["FluxKVCache"].execute(patcher).result[0]
    skipped = {"dit": {("single_block", 0): lambda args, extra: {"img": args["img"]}}}
    network, options = cached.model.diffusion_model, cached.model_options["transformer_options"]
    cached.pre_run()
    run(network, golden, transformer_options={**options, "patches_replace": skipped})
    with pytest.raises(IncompleteReferenceCache, match="single block 0"):
        run(network, golden, transformer_options=options)
    cached.cleanup()


def test_cache_needs_a_flux():
    with pytest.raises(NotForThisModel, match="UNetModel"):
        NODES["FluxKVCache"].execute(host("sd1")[0])


# --- style tokens


PATCHES, TOKENS, SIGLIP = 9, 4, 12


@pytest.fixture
def projector(tmp_path, monkeypatch):
    _, extensions = folder_paths.folder_names_and_paths["model_patches"]
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "model_patches", ([str(tmp_path)], extensions))
    width = host("flux")[0].model.diffusion_model.config.hidden_size
    shapes = {}
    for depth in ("high", "mid", "low"):
        shapes |= {
            f"{depth}_embedding_linear.0.weight": (TOKENS, PATCHES),
            f"{depth}_embedding_linear.0.bias": (TOKENS,),
            f"{depth}_layer_norm.weight": (SIGLIP,),
            f"{depth}_layer_norm.bias": (SIGLIP,),
            f"{depth}_projection.weight": (width, SIGLIP),
            f"{depth}_projection.bias": (width,),
        }
    sd = drawn(shapes)
    save_file({f"feature_embedder.{k}": v for k, v in sd.items()}, tmp_path / "uso.safetensors")
    return NODES["ModelPatchLoader"]().load_model_patch("uso.safetensors")[0], sd


def seen(pictures=1, patches=PATCHES, blocks=22):
    output = Output()
    output.all_hidden_states = random("siglip", pictures, blocks, patches, SIGLIP)
    return output


def test_style_tokens_stand_before_the_words(projector):
    """Against tokens computed here, appended behind the words: all stand at position 0, so order does not matter."""
    patch, sd = projector
    patcher, golden = host("flux")
    vision = seen(2)
    patched = NODES["USOStyleReference"]().apply_patch(patcher, patch, vision)[0]
    assert patched.get_additional_models()[0].is_clone(patch)
    tokens = []
    for picture in vision.all_hidden_states:
        for depth, block in (("high", 20), ("mid", 11), ("low", 2)):  # of 22: the 2nd, 11th, 20th from the last
            h = sd[f"{depth}_embedding_linear.0.weight"] @ picture[block]
            h = torch.nn.functional.silu(h + sd[f"{depth}_embedding_linear.0.bias"][:, None])
            h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            h = h * sd[f"{depth}_layer_norm.weight"] + sd[f"{depth}_layer_norm.bias"]
            tokens.append(h @ sd[f"{depth}_projection.weight"].T + sd[f"{depth}_projection.bias"])
    tokens = torch.cat(tokens)

    def behind(values):
        txt, ids = values["txt"], values["txt_ids"]
        count = tokens.shape[0]
        return {
            "txt": torch.cat([txt, tokens.expand(txt.shape[0], -1, -1)], dim=1),
            "txt_ids": torch.cat([ids, ids.new_zeros(1, count, 3)], dim=1),
        }

    network = patcher.model.diffusion_model
    out = run(network, golden, transformer_options=patched.model_options["transformer_options"])
    expected = run(network, golden, transformer_options={"patches": {"post_input": [behind]}})
    assert tokens.shape[0] == 2 * 3 * TOKENS
    assert error(out, expected) < 1e-5 and error(out, run(network, golden)) > 1e-4


def test_siglip_shows_all_its_blocks():
    from comfy.models.clip_vision import CLIPVisionConfig, CLIPVisionModelProjection

    shape = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 16}
    siglip = CLIPVisionConfig(**shape, image_size=8, patch_size=4, class_token=False, projection_dim=None)
    torch.manual_seed(0)
    model = CLIPVisionModelProjection(siglip, operations=torch.nn).eval()
    out = model(torch.randn(1, 3, 8, 8))
    assert out.blocks.shape == (1, 3, 4, 8) and torch.equal(out.blocks[:, -2], out.penultimate)
    assert torch.equal(model.vision_model.post_layernorm(out.blocks[:, -1]), out.last)


def test_what_does_not_fit_is_told(projector):
    node, (patch, _) = NODES["USOStyleReference"](), projector
    flux_patcher = host("flux")[0]
    with pytest.raises(UnfitVisionOutput, match="SigLIP"):
        node.apply_patch(flux_patcher, patch, Output())
    with pytest.raises(UnfitVisionOutput, match=r"9 tokens.*as 22 of 16"):
        node.apply_patch(flux_patcher, patch, seen(patches=16))
    with pytest.raises(UnfitVisionOutput, match="20 or more blocks"):
        node.apply_patch(flux_patcher, patch, seen(blocks=5))
    with pytest.raises(NotForThisModel, match="UNetModel"):
        node.apply_patch(host("sd1")[0], patch, seen())
    with pytest.raises(NotForThisModel, match="no such control"):
        NODES["QwenImageDiffsynthControlnet"]().diffsynth_controlnet(flux_patcher, patch, None, None, 1.0)
