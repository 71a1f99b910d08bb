"""What each flag for memory and number formats changes in the decisions (spec/cli.md, "Device and memory")."""

import os

import pytest
import torch

import comfy.devices as devices
import comfy.loaded_models
import comfy.model_management as management
import comfy.sd
import main
from comfy.cli_args import args, finish, parser
from comfy.device_memory import ASYNC_STREAMS, GB, CudaMemory
from tests.memory.conftest import HOST, PAPER
from tests.networks.checkpoints import write
from tests.networks.golden import Golden

GPU = torch.device("cuda", 0)


@pytest.fixture
def flags(monkeypatch):
    """Set flags as the command line would, on a machine with a GPU, and let what follows from them follow."""
    monkeypatch.setattr(devices, "cpu_state", devices.CPUState.GPU)
    monkeypatch.setattr(devices, "get_torch_device", lambda: GPU)

    def set_flags(*given):
        parsed = finish(parser.parse_args(list(given)), parser)
        for name, value in vars(parsed).items():
            monkeypatch.setattr(args, name, value)
        monkeypatch.setattr(devices, "vram_state", devices._vram_state())

    return set_flags


PLACES = (
    "unet_offload_device",
    "text_encoder_device",
    "text_encoder_offload_device",
    "vae_device",
    "vae_offload_device",
)


@pytest.mark.parametrize(
    ("given", "state", "places", "intermediate"),
    [
        ([], "NORMAL_VRAM", "host gpu host gpu host", "host"),
        (["--normalvram"], "NORMAL_VRAM", "host gpu host gpu host", "host"),
        (["--highvram"], "HIGH_VRAM", "gpu gpu host gpu host", "host"),
        (["--gpu-only"], "HIGH_VRAM", "gpu gpu gpu gpu gpu", "gpu"),
        (["--lowvram"], "LOW_VRAM", "host host host gpu host", "host"),
        (["--novram"], "NO_VRAM", "host host host gpu host", "host"),
        (["--cpu-vae"], "NORMAL_VRAM", "host gpu host host host", "host"),
    ],
)
def test_where_things_are(flags, given, state, places, intermediate):
    flags(*given)
    expected = [{"gpu": GPU, "host": HOST}[place] for place in places.split()]
    assert devices.vram_state.name == state
    assert [getattr(devices, name)() for name in PLACES] == expected
    assert devices.intermediate_device() == {"gpu": GPU, "host": HOST}[intermediate]


def test_cpu(monkeypatch):
    monkeypatch.setattr(args, "cpu", True)
    assert devices._cpu_state() == devices.CPUState.CPU
    monkeypatch.setattr(devices, "cpu_state", devices.CPUState.CPU)
    assert devices._vram_state() == devices.VRAMState.DISABLED
    assert devices.get_torch_device() == HOST == devices.unet_offload_device()


def test_memory_left_free(flags):
    flags()
    usual = devices.extra_reserved_memory()
    assert 0.3 * GB < usual < 0.7 * GB
    flags("--reserve-vram", "2.5")
    assert devices.extra_reserved_memory() == 2.5 * GB
    assert devices.minimum_inference_memory() == int(0.8 * GB) + 2.5 * GB
    flags("--reserve-vram", "2", "--vram-headroom", "1")
    assert devices.extra_reserved_memory() == 3 * GB


def test_novram_keeps_nothing_that_can_be_streamed(device, unet, monkeypatch):
    monkeypatch.setattr(devices, "vram_state", devices.VRAMState.NO_VRAM)
    management.load_models_gpu([unet])
    assert unet.loaded_size() < 0.01 * unet.model_size()


def test_highvram_leaves_models_there_until_the_memory_is_needed(device, unet):
    unet.offload_device = PAPER
    management.load_models_gpu([unet])
    unet.detach()
    assert device.used == unet.model_size()
    management.free_memory(device.size, PAPER)
    assert device.used == 0 and unet.current_loaded_device() == HOST


@pytest.mark.parametrize("smart", [True, False])
def test_smart_memory(device, unet, monkeypatch, smart):
    from execution import PromptExecutor

    monkeypatch.setattr(args, "disable_smart_memory", not smart)
    management.load_models_gpu([unet])
    PromptExecutor._after_run()
    assert (device.used > 0) == smart


@pytest.mark.parametrize(
    ("given", "streams"),
    [([], ASYNC_STREAMS), (["--async-offload", "5"], 5), (["--async-offload"], 2), (["--disable-async-offload"], 0)],
)
def test_streams(flags, monkeypatch, given, streams):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    flags(*given)
    assert CudaMemory(GPU).streams == streams


def test_pinned_memory(flags):
    flags("--disable-pinned-memory")
    tensor = torch.zeros(8)
    assert CudaMemory(GPU).pin(tensor) is tensor


@pytest.mark.parametrize(
    ("given", "visible"),
    [(["--cuda-device", "1"], "1"), (["--cuda-device", "0,2"], "0,2"), (["--default-device", "2"], "2,0,1,3")],
)
def test_visible_devices(flags, monkeypatch, given, visible):
    monkeypatch.setattr(os, "environ", {})
    flags(*given)
    main.prepare_environment()
    assert os.environ["CUDA_VISIBLE_DEVICES"].startswith(visible)


@pytest.mark.parametrize(
    ("given", "before", "expected"),
    [
        (["--cuda-malloc"], None, "backend:cudaMallocAsync"),
        (["--cuda-malloc"], "max_split_size_mb:64", "max_split_size_mb:64,backend:cudaMallocAsync"),
        (["--cuda-malloc"], "backend:native", "backend:native"),
        (["--disable-cuda-malloc"], None, None),
    ],
)
def test_the_allocator(flags, monkeypatch, given, before, expected):
    name = "PYTORCH_CUDA_ALLOC_CONF"
    monkeypatch.setattr(os, "environ", {} if before is None else {name: before})
    flags(*given)
    main.prepare_environment()
    assert os.environ.get(name) == expected


def test_devices_of_oneapi(flags, monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    flags("--oneapi-device-selector", "level_zero:1")
    main.prepare_environment()
    assert os.environ["ONEAPI_DEVICE_SELECTOR"] == "level_zero:1"


@pytest.mark.parametrize("forced", [True, False])
def test_copies_that_do_not_wait(flags, monkeypatch, forced):
    flags(*(["--force-non-blocking"] if forced else []))
    asked = []
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *_, **kwargs: asked.append(kwargs["non_blocking"]))
    CudaMemory(GPU).put(torch.zeros(2))
    assert asked == [forced] and devices.device_supports_non_blocking(HOST) == forced


@pytest.mark.parametrize("mapped", [True, False])
def test_torch_files_are_mapped(flags, monkeypatch, tmp_path, mapped):
    import comfy.weights

    flags(*(["--mmap-torch-files"] if mapped else []))
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    load, asked = torch.load, []
    monkeypatch.setattr(
        torch, "load", lambda *a, **kwargs: asked.append(bool(kwargs.get("mmap"))) or load(*a, **kwargs)
    )
    assert torch.equal(comfy.weights.load_torch_file(str(tmp_path / "a.pt"))["a"], torch.ones(3))
    assert asked == [mapped]


UNET = [
    ("--fp32-unet", torch.float32),
    ("--fp64-unet", torch.float64),
    ("--bf16-unet", torch.bfloat16),
    ("--fp16-unet", torch.float16),
    ("--force-fp16", torch.float16),
    ("--fp8_e4m3fn-unet", torch.float8_e4m3fn),
    ("--fp8_e5m2-unet", torch.float8_e5m2),
    ("--fp8_e8m0fnu-unet", torch.float8_e8m0fnu),
]


@pytest.mark.parametrize(("flag", "dtype"), UNET)
def test_the_diffusion_models_format(flags, flag, dtype):
    flags(flag)
    assert devices.unet_dtype(HOST, weight_dtype=torch.float16) == dtype


def _first_matrix(network: torch.nn.Module) -> torch.nn.Parameter:
    return next(p for name, p in network.named_parameters() if name.endswith("weight") and p.ndim >= 2)


@pytest.mark.parametrize(("flag", "dtype"), UNET)
def test_a_diffusion_model_is_kept_in_it(monkeypatch, tmp_path, flag, dtype):
    """Computed in float32 on a CPU, unless the flag asks for a format that is computed in everywhere."""
    monkeypatch.setattr(args, "fp16_unet", flag == "--force-fp16")
    monkeypatch.setattr(args, flag.removeprefix("--").replace("-", "_"), True)
    file = write(tmp_path / "c.safetensors", "unet", "vae")
    model, *_ = comfy.sd.load_checkpoint_guess_config(file, output_clip=False, output_vae=False)
    assert _first_matrix(model.model.diffusion_model).dtype == dtype and model.model.weights_file == file
    norm = model.model.diffusion_model.input_blocks[1][0].in_layers[0].weight
    assert norm.dtype == (torch.float16 if dtype.itemsize == 1 else dtype)
    as_it_is = {"--fp64-unet": torch.float64, "--force-fp16": torch.float16}
    assert model.model.get_dtype_inference() == as_it_is.get(flag, torch.float32)
    if dtype != torch.float8_e8m0fnu:  # it knows no signs
        golden = Golden("unet_sd1")
        management.load_models_gpu([model])
        with torch.inference_mode():
            out = model.model.apply_model(golden.inputs["x"], torch.ones(2), c_crossattn=golden.inputs["context"])
        assert torch.isfinite(out).all() and out.dtype == torch.float32


def test_forced_float32(flags):
    flags("--force-fp32")
    assert not devices.should_use_fp16(GPU) and not devices.should_use_bf16(GPU)
    assert devices.unet_manual_cast(torch.float16, GPU) == torch.float32
    assert devices.vae_dtype(GPU, [torch.bfloat16, torch.float32]) == torch.float32


def test_forced_float16(flags):
    flags("--force-fp16")
    assert devices.should_use_fp16(HOST) and devices.unet_manual_cast(torch.float16, HOST) is None


@pytest.mark.parametrize(
    ("flag", "dtype"),
    [("--fp16-vae", torch.float16), ("--bf16-vae", torch.bfloat16), ("--fp32-vae", torch.float32)],
)
def test_the_autoencoders_format(flags, flag, dtype):
    flags(flag)
    assert devices.vae_dtype(HOST, [torch.bfloat16, torch.float32]) == dtype


@pytest.mark.parametrize(
    ("flag", "wanted", "computed"),
    [
        (None, None, torch.float16),
        (None, torch.float32, torch.float32),
        ("--force-upcast-attention", None, torch.float32),
        ("--dont-upcast-attention", torch.float32, torch.float16),
    ],
)
def test_attentions_format(monkeypatch, flag, wanted, computed):
    from comfy.models import attention

    if flag is not None:
        monkeypatch.setattr(args, flag.removeprefix("--").replace("-", "_"), True)
    kernel, seen = torch.nn.functional.scaled_dot_product_attention, []
    monkeypatch.setattr(
        attention.F, "scaled_dot_product_attention", lambda q, *a, **k: seen.append(q.dtype) or kernel(q, *a, **k)
    )
    q = torch.ones(1, 3, 8, dtype=torch.float16)
    assert attention.optimized_attention(q, q, q, 2, attn_precision=wanted).dtype == torch.float16
    assert seen == [computed]


VAE = [
    ("--fp16-vae", torch.float16),
    ("--bf16-vae", torch.bfloat16),
    ("--fp32-vae", torch.float32),
    ("--cpu-vae", torch.float32),
]


@pytest.mark.parametrize(("flag", "dtype"), VAE)
def test_an_autoencoder_computes_in_it(monkeypatch, flag, dtype):
    from comfy.vae.vae import VAE as Autoencoder

    monkeypatch.setattr(args, flag.removeprefix("--").replace("-", "_"), True)
    golden = Golden("vae_kl4")
    vae = Autoencoder(sd=golden.module_weights())
    seen = []
    decode = vae.first_stage_model.decode
    monkeypatch.setattr(vae.first_stage_model, "decode", lambda x: seen.append(x.dtype) or decode(x))
    with torch.inference_mode():
        pixels = vae.decode(golden.inputs["latent"])
    assert seen == [dtype] and pixels.dtype == torch.float32 and torch.isfinite(pixels).all()


TEXT = [
    ("--fp8_e4m3fn-text-enc", torch.float8_e4m3fn),
    ("--fp8_e5m2-text-enc", torch.float8_e5m2),
    ("--fp16-text-enc", torch.float16),
    ("--bf16-text-enc", torch.bfloat16),
    ("--fp32-text-enc", torch.float32),
]


@pytest.mark.parametrize(("flag", "dtype"), TEXT)
def test_the_text_encoders_format(monkeypatch, tmp_path, flag, dtype):
    monkeypatch.setattr(args, flag.removeprefix("--").replace("-", "_"), True)
    _, clip, _, _ = comfy.sd.load_checkpoint_guess_config(write(tmp_path / "c.safetensors"), output_model=False)
    weights = dict(clip.cond_stage_model.named_parameters())
    matrix = next(w for name, w in weights.items() if name.endswith("fc1.weight"))
    norm = next(w for name, w in weights.items() if "layer_norm1.weight" in name)
    assert matrix.dtype == dtype
    assert clip.cond_stage_model.weights_file == str(tmp_path / "c.safetensors")
    assert norm.dtype == (torch.float16 if dtype.itemsize == 1 else dtype)
    assert torch.isfinite(clip.encode("a cat")).all()


def test_text_encoders_without_flags_stay_as_in_the_file(tmp_path):
    from comfy.text_encoders.clip_handle import _in_dtype

    half, full = {"a": torch.zeros(2, 2, dtype=torch.float16)}, {"a": torch.zeros(2, 2)}
    assert _in_dtype(half, None, HOST)["a"].dtype == torch.float16
    assert _in_dtype(full, None, HOST)["a"].dtype == torch.float32
    assert _in_dtype(full, None, GPU)["a"].dtype == torch.float16
    assert _in_dtype(full, torch.bfloat16, GPU)["a"].dtype == torch.bfloat16


def test_channels_last(monkeypatch, device, unet):
    whole = {name: p.clone() for name, p in unet.model.named_parameters()}
    monkeypatch.setattr(args, "force_channels_last", True)
    management.load_models_gpu([unet])
    weight = unet.model.diffusion_model.input_blocks[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert all(torch.equal(p, whole[name]) for name, p in unet.model.named_parameters())
    assert comfy.loaded_models.loaded_models() == [unet]
