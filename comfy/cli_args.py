"""The command line: every flag is declared here, once.

Names, types and defaults follow spec/cli.md. `args` is the parsed namespace that the whole program (and
custom node packs) reads. Flags that ask for something done differently here are accepted and answered with
one line that says why (`no_effect_notes`).
"""

from __future__ import annotations

import argparse
import enum
import json

import comfy.options
from comfy.cli_values import (
    EnumAction,
    VerboseAction,
    amount,
    base_path,
    cuda_devices,
    directory,
    file_limits,
    port,
    positive,
    retention,
)


class LatentPreviewMethod(enum.Enum):
    """How samplers draw previews of a latent."""

    NoPreviews = "none"
    Auto = "auto"
    Latent2RGB = "latent2rgb"
    TAESD = "taesd"

    @classmethod
    def from_string(cls, value: str) -> LatentPreviewMethod | None:
        """The method of that name, None if there is none."""
        return next((m for m in cls if m.value == value), None)


class PerformanceFeature(enum.Enum):
    """What `--fast` may trade for speed."""

    Fp16Accumulation = "fp16_accumulation"
    Fp8MatrixMultiplication = "fp8_matrix_mult"
    CublasOps = "cublas_ops"
    AutoTune = "autotune"
    Compile = "compile"


CACHE_RAM_AUTOMATIC: list[float] = []  # --cache-ram without values: thresholds follow the machine's RAM


def build_parser() -> argparse.ArgumentParser:
    """The parser of `main.py`; its groups are the sections of spec/cli.md."""
    parser = argparse.ArgumentParser(
        prog="main.py", description="Darkroom: a ComfyUI-compatible prompt server.", allow_abbrev=False
    )

    net = parser.add_argument_group("network and HTTP")
    net.add_argument(
        "--listen",
        nargs="?",
        default="127.0.0.1",
        const="0.0.0.0,::",
        metavar="ADDRESSES",
        help="comma-separated addresses to listen on; without a value: every interface, IPv4 and IPv6",
    )
    net.add_argument("--port", type=port, default=8188, help="TCP port (%(default)s)")
    net.add_argument("--tls-keyfile", metavar="PATH", help="private key; with --tls-certfile the server speaks https")
    net.add_argument("--tls-certfile", metavar="PATH", help="certificate for https")
    net.add_argument(
        "--enable-cors-header",
        nargs="?",
        default=None,
        const="*",
        metavar="ORIGIN",
        help="allow pages of this origin (any, without a value) and switch origin checks off",
    )
    net.add_argument(
        "--base-path",
        type=base_path,
        default="",
        metavar="PATH",
        help="answer below this path as well, for a reverse proxy that passes it on (example: /comfy)",
    )
    net.add_argument("--max-upload-size", type=amount, default=100, metavar="MB", help="largest request body (0: any)")
    net.add_argument("--enable-compress-response-body", action="store_true", help="gzip JSON and text answers")
    net.add_argument("--multi-user", action="store_true", help="separate settings and files per comfy-user header")
    net.add_argument(
        "--front-end-version",
        default=None,
        metavar="OWNER/REPO@VERSION",
        help="ask for another front end than the installed package",
    )
    net.add_argument(
        "--front-end-root",
        type=directory,
        default=None,
        metavar="DIR",
        help="serve the front end from this folder",
    )
    net.add_argument(
        "--feature-flag",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="add a flag to /features; repeatable",
    )
    net.add_argument("--list-feature-flags", action="store_true", help="print the known feature flags as JSON and exit")
    net.add_argument(
        "--comfy-api-base",
        default="https://api.comfy.org",
        metavar="URL",
        help="base address of remote paid nodes",
    )
    net.add_argument("--auto-launch", action="store_true", help="open a browser once the server listens")
    net.add_argument("--disable-auto-launch", action="store_true", help="never open a browser")
    net.add_argument("--dont-print-server", action="store_true", help="no start-up lines")

    _add_protection_flags(parser)

    data = parser.add_argument_group("folders and data")
    data.add_argument(
        "--base-directory",
        default=None,
        metavar="DIR",
        help="parent of models, custom_nodes, input, output, temp and user",
    )
    data.add_argument("--output-directory", default=None, metavar="DIR", help="where results are saved")
    data.add_argument("--input-directory", default=None, metavar="DIR", help="where uploads go")
    data.add_argument(
        "--temp-directory",
        default=None,
        metavar="DIR",
        help="previews go to DIR/temp, which is emptied at start and exit",
    )
    data.add_argument("--user-directory", type=directory, default=None, metavar="DIR", help="settings and workflows")
    data.add_argument("--models-directory", type=directory, default=None, metavar="DIR", help="model files")
    data.add_argument(
        "--extra-model-paths-config",
        nargs="+",
        action="append",
        default=None,
        metavar="YAML",
        help="files with more folders to search for models and custom nodes; repeatable",
    )
    data.add_argument(
        "--database-url",
        default=None,
        metavar="URL",
        help="sqlite:///path of the asset database, with the queue beside it; sqlite:///:memory: stores nothing",
    )
    data.add_argument("--enable-assets", action="store_true", help="asset database and its routes")
    data.add_argument("--enable-asset-hashing", action="store_true", help="hash file contents while scanning assets")
    data.add_argument(
        "--default-hashing-function",
        choices=["md5", "sha1", "sha256", "sha512"],
        default="sha256",
        help="for comparing uploads of the same name",
    )
    data.add_argument("--disable-metadata", action="store_true", help="save no prompt or workflow in files")

    _add_store_flags(parser)

    packs = parser.add_argument_group("custom nodes")
    packs.add_argument("--disable-all-custom-nodes", action="store_true", help="load no custom node pack")
    packs.add_argument(
        "--whitelist-custom-nodes",
        nargs="+",
        default=[],
        metavar="NAME",
        help="packs to load in spite of --disable-all-custom-nodes",
    )
    packs.add_argument(
        "--custom-node-timeout",
        type=amount,
        default=300,
        metavar="SECONDS",
        help="go on without a pack that takes longer to import (%(default)s; 0: wait for it)",
    )
    packs.add_argument(
        "--disable-api-nodes",
        action="store_true",
        help="no remote nodes; the browser page may not contact other hosts",
    )
    packs.add_argument("--enable-manager", action="store_true", help="start the separate manager package")
    ui = packs.add_mutually_exclusive_group()
    ui.add_argument("--disable-manager-ui", action="store_true", help="manager without its user interface")
    ui.add_argument("--enable-manager-legacy-ui", action="store_true", help="manager with its old user interface")

    _add_job_flags(parser)
    _add_device_flags(parser)
    _add_precision_flags(parser)

    other = parser.add_argument_group("previews, logging, other")
    other.add_argument(
        "--preview-method",
        type=LatentPreviewMethod,
        action=EnumAction,
        default=LatentPreviewMethod.NoPreviews,
        help="how samplers draw previews",
    )
    other.add_argument("--preview-size", type=positive, default=512, metavar="PIXELS", help="largest side of a preview")
    other.add_argument(
        "--verbose",
        nargs="*",
        action=VerboseAction,
        default="INFO",
        metavar=("LEVEL", "FILE"),
        help="console log level, or a log file with its own level; repeatable",
    )
    other.add_argument("--log-stdout", action="store_true", help="log below ERROR to stdout instead of stderr")
    other.add_argument("--debug-hang", action="store_true", help="Ctrl-C prints every thread's stack")
    other.add_argument("--quick-test-for-ci", action="store_true", help="load everything, then exit with status 0")
    other.add_argument("--windows-standalone-build", action="store_true", help="implies --auto-launch")
    other.add_argument(
        "--demo",
        action="store_true",
        help="once serving, draw one picture with the built-in model and print how it was done",
    )
    parser.set_defaults(log_files=[])
    return parser


def _add_protection_flags(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits and protection")
    limits.add_argument(
        "--max-queue",
        type=int,
        default=0,
        metavar="N",
        help="refuse prompts (429) while this many wait (0: no limit)",
    )
    limits.add_argument(
        "--max-queue-size",
        type=amount,
        default=0,
        metavar="MB",
        help="refuse prompts (429) while those that wait are this large together (0: no limit)",
    )
    limits.add_argument(
        "--private-extra-data",
        nargs="+",
        default=[],
        metavar="KEY",
        help="keys of a prompt's extra_data that nodes see but no answer shows; may hold * (example: *_key *token*)",
    )
    for folder, about in (("output", "saved files"), ("temp", "previews")):
        limits.add_argument(
            f"--keep-{folder}",
            type=file_limits,
            default=None,
            metavar="AGE,SIZE",
            help=f"delete {about} beyond these limits, the oldest first (example: 30d,20GB; off)",
        )
    limits.add_argument(
        "--follow-links",
        action="store_true",
        help="follow symbolic links that lead out of the input, output and temp folders",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 on")
    return seconds


def _attempts(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100")
    return int(text)


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running jobs")
    group.add_argument(
        "--job-timeout",
        type=_seconds,
        default=0,
        metavar="SECONDS",
        help="end a job that runs longer; extra_data.timeout may ask for less (%(default)s: no limit)",
    )
    group.add_argument(
        "--max-attempts",
        type=_attempts,
        default=2,
        metavar="N",
        help="run a job again that timed out or whose worker died, N times in all (%(default)s)",
    )
    group.add_argument(
        "--retry-oom", action="store_true", help="run a job again, once, that ran out of memory, with models unloaded"
    )
    group.add_argument(
        "--drain-seconds",
        type=_seconds,
        default=0,
        metavar="SECONDS",
        help="when told to stop, let the running job go on that long before it is put back (%(default)s)",
    )
    group.add_argument(
        "--on-stuck",
        choices=("wait", "exit"),
        default="wait",
        help="what to do about a node that does not stop: wait, or end the process with status 75 (%(default)s)",
    )
    group.add_argument(
        "--stuck-seconds",
        type=_seconds,
        default=60,
        metavar="SECONDS",
        help="how long a node may take to stop, for --on-stuck exit (%(default)s)",
    )


def _add_device_flags(parser: argparse.ArgumentParser) -> None:
    dev = parser.add_argument_group("device and memory")
    vram = dev.add_mutually_exclusive_group()
    vram.add_argument("--gpu-only", action="store_true", help="keep everything on the GPU")
    vram.add_argument("--highvram", action="store_true", help="keep used models on the GPU")
    vram.add_argument("--normalvram", action="store_true", help="the automatic choice, spelled out")
    vram.add_argument("--lowvram", action="store_true", help="use less VRAM, text encoders on the CPU")
    vram.add_argument("--novram", action="store_true", help="use as little VRAM as possible")
    vram.add_argument("--cpu", action="store_true", help="everything on the CPU")
    dev.add_argument(
        "--cuda-device",
        type=cuda_devices,
        default=None,
        metavar="IDS",
        help="only these CUDA devices are visible",
    )
    dev.add_argument(
        "--default-device",
        type=int,
        default=None,
        metavar="ID",
        help="this device first, others stay visible",
    )
    malloc = dev.add_mutually_exclusive_group()
    malloc.add_argument("--cuda-malloc", action="store_true", help="use cudaMallocAsync")
    malloc.add_argument("--disable-cuda-malloc", action="store_true", help="use torch's own allocator")
    dev.add_argument(
        "--directml", type=int, nargs="?", default=None, const=-1, metavar="DEVICE", help="use torch-directml"
    )
    dev.add_argument("--oneapi-device-selector", default=None, metavar="SELECTOR", help="visible oneAPI devices")
    dev.add_argument(
        "--reserve-vram", type=amount, default=None, metavar="GB", help="VRAM left free for other programs"
    )
    dev.add_argument("--vram-headroom", type=amount, default=0, metavar="GB", help="extra VRAM kept free while loading")
    dynamic = dev.add_mutually_exclusive_group()
    dynamic.add_argument("--enable-dynamic-vram", action="store_true", help="load weights as they are needed")
    dynamic.add_argument("--disable-dynamic-vram", action="store_true", help="load whole models")
    dev.add_argument("--disable-nvml-pressure", action="store_true", help="do not watch other processes' VRAM")
    dev.add_argument("--fast-disk", action="store_true", help="prefer reading weights again to keeping them in RAM")
    dev.add_argument("--disable-cuda-graphs", action="store_true", help="never capture CUDA graphs")
    offload = dev.add_mutually_exclusive_group()
    offload.add_argument(
        "--async-offload",
        type=int,
        nargs="?",
        default=None,
        const=2,
        metavar="STREAMS",
        help="move weights on background streams",
    )
    offload.add_argument("--disable-async-offload", action="store_true", help="move weights on the main stream")
    dev.add_argument("--disable-smart-memory", action="store_true", help="take models off the GPU after each prompt")
    dev.add_argument(
        "--idle-unload",
        type=_seconds,
        default=0,
        metavar="SECONDS",
        help="take models off the GPU after so long without a prompt (0: never)",
    )
    dev.add_argument(
        "--prefetch",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read the weight files of the next prompt while one runs (default: if models run on a GPU)",
    )
    dev.add_argument("--disable-pinned-memory", action="store_true", help="no page-locked host memory")
    dev.add_argument("--force-non-blocking", action="store_true", help="never wait for host to device copies")
    dev.add_argument("--mmap-torch-files", action="store_true", help="memory-map ckpt and pt files")
    dev.add_argument("--disable-mmap", action="store_true", help="read safetensors files into memory")
    cache = dev.add_mutually_exclusive_group()
    cache.add_argument(
        "--cache-ram",
        nargs="*",
        type=amount,
        default=CACHE_RAM_AUTOMATIC,
        metavar="GB",
        help="keep node results until free RAM falls below these thresholds (the default)",
    )
    cache.add_argument("--cache-classic", action="store_true", help="keep the results of the last prompt")
    cache.add_argument("--cache-lru", type=int, default=0, metavar="N", help="keep up to N node results")
    cache.add_argument("--cache-none", action="store_true", help="keep no node results")
    dev.add_argument(
        "--strict-cache",
        action="store_true",
        help="hand nodes copies of tensors and report nodes that change their inputs in place; slower",
    )
    cache.add_argument("--high-ram", action="store_true", help="as --cache-classic, using more RAM for weights")


def _add_store_flags(parser: argparse.ArgumentParser) -> None:
    store = parser.add_argument_group("what survives a restart")
    store.add_argument(
        "--no-persistence", action="store_true", help="keep queue, history and jobs in memory; nothing survives"
    )
    store.add_argument(
        "--on-restart",
        choices=("resume", "pause", "clear"),
        default="resume",
        help="what to do with prompts that waited: run them, let them wait until told, or cancel them (%(default)s)",
    )
    store.add_argument(
        "--history-size",
        type=positive,
        default=10_000,
        metavar="N",
        help="entries that GET /history has at most; older ones stay known by id (%(default)s)",
    )
    store.add_argument(
        "--keep-history",
        type=retention,
        default="30d",
        metavar="RULE",
        help="how long ended jobs are kept on disk: an age (30d, 12h), a number of jobs (5000), both (30d,5000), or all"
        " (%(default)s)",
    )


def _add_precision_flags(parser: argparse.ArgumentParser) -> None:
    prec = parser.add_argument_group("precision and attention")
    for flags in (
        (
            ("--force-fp32", "compute everything in float32"),
            ("--force-fp16", "compute everything in float16"),
        ),
        (
            ("--fp32-unet", "diffusion model in float32"),
            ("--fp64-unet", "diffusion model in float64"),
            ("--bf16-unet", "diffusion model in bfloat16"),
            ("--fp16-unet", "diffusion model in float16"),
            ("--fp8_e4m3fn-unet", "store diffusion weights as float8 e4m3fn"),
            ("--fp8_e5m2-unet", "store diffusion weights as float8 e5m2"),
            ("--fp8_e8m0fnu-unet", "store diffusion weights as float8 e8m0fnu"),
        ),
        (
            ("--fp16-vae", "VAE in float16"),
            ("--fp32-vae", "VAE in float32"),
            ("--bf16-vae", "VAE in bfloat16"),
        ),
        (
            ("--fp8_e4m3fn-text-enc", "store text encoders as float8 e4m3fn"),
            ("--fp8_e5m2-text-enc", "store text encoders as float8 e5m2"),
            ("--fp16-text-enc", "text encoders in float16"),
            ("--fp32-text-enc", "text encoders in float32"),
            ("--bf16-text-enc", "text encoders in bfloat16"),
        ),
        (
            ("--use-split-cross-attention", "attention in slices"),
            ("--use-quad-cross-attention", "sub-quadratic attention"),
            ("--use-pytorch-cross-attention", "torch's scaled_dot_product_attention"),
            ("--use-sage-attention", "the sageattention package"),
            ("--use-flash-attention", "the flash-attn package"),
            ("--use-ck-attention", "composable-kernel attention"),
        ),
        (
            ("--force-upcast-attention", "attention always in float32"),
            ("--dont-upcast-attention", "attention never in float32"),
        ),
        (
            ("--enable-triton-backend", "use Triton kernels"),
            ("--disable-triton-backend", "use no Triton kernels"),
        ),
    ):
        group = prec.add_mutually_exclusive_group()
        for flag, text in flags:
            group.add_argument(flag, action="store_true", help=text)
    prec.add_argument("--cpu-vae", action="store_true", help="run the VAE on the CPU")
    prec.add_argument("--fp16-intermediates", action="store_true", help="float16 tensors between nodes")
    prec.add_argument("--supports-fp8-compute", action="store_true", help="assume that the device computes in float8")
    prec.add_argument("--force-channels-last", action="store_true", help="channels-last weights")
    prec.add_argument("--disable-xformers", action="store_true", help="do not use xformers")
    prec.add_argument("--deterministic", action="store_true", help="deterministic torch algorithms")
    prec.add_argument(
        "--fast",
        nargs="*",
        type=PerformanceFeature,
        action=EnumAction,
        default=None,
        metavar="FEATURE",
        help="speed over quality: " + " ".join(f.value for f in PerformanceFeature),
    )


KNOWN_FEATURE_FLAGS = {
    "show_signin_button": {
        "type": "bool",
        "default": False,
        "description": "Show the sign-in button in the browser.",
    },
    "enable_telemetry": {
        "type": "bool",
        "default": False,
        "description": "Let the browser page send usage data.",
    },
}


def finish(namespace: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Apply what one flag implies for another (spec/cli.md)."""
    if len(namespace.cache_ram or []) > 2:
        parser.error("--cache-ram takes two thresholds at most")
    if namespace.high_ram:
        namespace.cache_classic = True
    if namespace.windows_standalone_build:
        namespace.auto_launch = True
    if namespace.disable_auto_launch:
        namespace.auto_launch = False
    if namespace.force_fp16:
        namespace.fp16_unet = True
    if namespace.enable_manager_legacy_ui:
        namespace.enable_manager = True
    # --fast without names means everything; absent means nothing.
    if namespace.fast is None:
        namespace.fast = set()
    else:
        namespace.fast = set(namespace.fast) or set(PerformanceFeature)
    return namespace


NO_EFFECT = {
    "front_end_version": "front ends come from pip or --front-end-root; nothing is downloaded",
    "enable_manager": "the manager is a separate package that patches its own host; install packs by hand",
    "comfy_api_base": "remote paid nodes are not part of this server",
    "directml": "this server runs on CUDA and the CPU",
    "oneapi_device_selector": "this server runs on CUDA and the CPU",
    "use_split_cross_attention": "torch's fused attention already needs no score matrix",
    "use_quad_cross_attention": "torch's fused attention already needs no score matrix",
    "use_ck_attention": "composable-kernel attention is chosen by torch itself on ROCm",
    "disable_xformers": "xformers is never used",
    "fast_disk": "weights are memory-mapped, so the system's page cache decides",
    "disable_nvml_pressure": "memory of other processes is read from the driver's free figure only",
    "disable_manager_ui": "the manager is a separate package that patches its own host",
    "enable_dynamic_vram": "models are loaded whole or by layer, never weight by weight",
    "disable_dynamic_vram": "models are loaded whole or by layer anyway",
    "use_sage_attention": "torch's fused attention is always used",
    "use_flash_attention": "torch's fused attention picks the flash kernel by itself",
    "dont_upcast_attention": "attention is only computed in float32 where a model family needs it",
    "enable_triton_backend": "no Triton kernels are part of this server",
    "disable_triton_backend": "no Triton kernels are part of this server",
}


def no_effect_notes(namespace: argparse.Namespace) -> list[str]:
    """One line for each given flag that changes nothing here, saying why."""
    defaults = build_parser().parse_args([])
    return [
        f"--{name.replace('_', '-')} has no effect: {why}"
        for name, why in NO_EFFECT.items()
        if getattr(namespace, name) != getattr(defaults, name)
    ]


def feature_flags(namespace: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """The `--feature-flag` values as a dict, and a warning for each that was dropped.

    Known keys are typed; other keys keep the text. A flag without value is true.
    """
    flags: dict[str, object] = {}
    warnings: list[str] = []
    for item in namespace.feature_flag:
        key, has_value, text = item.partition("=")
        value: object = text if has_value else True
        if has_value and KNOWN_FEATURE_FLAGS.get(key, {}).get("type") == "bool":
            if text.lower() not in ("true", "false"):
                warnings.append(f"--feature-flag {item}: {key} must be true or false; ignored")
                continue
            value = text.lower() == "true"
        flags[key] = value
    return flags, warnings


parser = build_parser()
args = finish(parser.parse_args(None if comfy.options.args_parsing else []), parser)

if args.list_feature_flags:
    print(json.dumps(KNOWN_FEATURE_FLAGS, indent=2))
    raise SystemExit(0)
