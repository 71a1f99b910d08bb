"""The command line: spec/cli.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from comfy import cli_args

ROOT = cli_args.__file__.rsplit("/", 2)[0]


def parse(*flags: str):
    return cli_args.finish(cli_args.parser.parse_args(list(flags)), cli_args.parser)


def test_defaults():
    args = parse()
    assert (args.listen, args.port, args.max_upload_size) == ("127.0.0.1", 8188, 100)
    assert args.enable_cors_header is None and args.preview_method.value == "none" and args.fast == set()
    assert not any((args.cache_classic, args.cache_none, args.cache_lru))


def test_optional_values():
    args = parse("--listen", "--enable-cors-header", "--fast", "--verbose", "--directml", "--async-offload")
    assert args.listen == "0.0.0.0,::" and args.enable_cors_header == "*" and args.verbose == "DEBUG"
    assert args.fast == set(cli_args.PerformanceFeature) and args.directml == -1 and args.async_offload == 2


def test_implications():
    assert parse("--high-ram").cache_classic
    assert parse("--force-fp16").fp16_unet
    assert parse("--windows-standalone-build").auto_launch
    assert not parse("--auto-launch", "--disable-auto-launch").auto_launch
    assert parse("--enable-manager-legacy-ui").enable_manager


@pytest.mark.parametrize(
    "flags",
    [
        ["--cpu", "--highvram"],
        ["--cache-none", "--cache-classic"],
        ["--fp16-unet", "--bf16-unet"],
        ["--cache-ram", "1", "2", "3"],
        ["--user-directory", "/no/such/folder"],
        ["--preview-method", "sketch"],
        ["--verbose", "LOUD"],
        ["--cuda-device", "first"],
        ["--no-such-flag"],
        ["--port", "eighty"],
        ["--port", "65536"],
        ["--port", "-1"],
        *(
            [flag, value]
            for flag in (
                "--max-upload-size",
                "--max-queue-size",
                "--reserve-vram",
                "--vram-headroom",
                "--cache-ram",
                "--custom-node-timeout",
                "--job-timeout",
                "--drain-seconds",
            )
            for value in ("nan", "inf", "much")
        ),
        ["--max-upload-size", "-5"],
        ["--preview-size", "0"],
    ],
)
def test_refused(flags, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(*flags)
    assert stop.value.code == 2
    assert flags[-1].lstrip("-").split("=")[0] in capsys.readouterr().err or len(flags) > 1


def test_verbose_files():
    args = parse("--verbose", "WARNING", "--verbose", "DEBUG", "a.log")
    assert args.verbose == "WARNING" and args.log_files == [("DEBUG", "a.log")]


def test_feature_flags():
    flags, warnings = cli_args.feature_flags(
        parse(
            "--feature-flag",
            "a=b=c",
            "--feature-flag",
            "show_signin_button",
            "--feature-flag",
            "enable_telemetry=maybe",
        )
    )
    assert flags == {"a": "b=c", "show_signin_button": True}
    assert len(warnings) == 1 and "enable_telemetry" in warnings[0]


def test_a_flag_without_effect_says_why():
    assert cli_args.no_effect_notes(parse()) == []
    notes = cli_args.no_effect_notes(parse("--disable-xformers", "--directml"))
    assert len(notes) == 2 and all("no effect:" in n for n in notes)


def test_every_flag_is_read_somewhere_or_says_why_not():
    """A flag that is parsed and then forgotten would be a lie."""
    unused = set(vars(parse())) - cli_args.NO_EFFECT.keys()
    # Read through another flag, or asking for what is done anyway.
    unused -= {"feature_flag", "list_feature_flags", "disable_auto_launch", "enable_manager_legacy_ui"}
    unused -= {
        "high_ram",
        "windows_standalone_build",
        "normalvram",
        "disable_cuda_malloc",
        "use_pytorch_cross_attention",
    }
    rooms = [
        "main.py",
        "server.py",
        "execution.py",
        "folder_paths.py",
        "logs.py",
        "custom_packs.py",
        "latent_preview.py",
        "node_helpers.py",
    ]
    rooms += ["comfy", "comfy_execution", "gateway", "routes", "userdata", "assets", "workers", "nodes", "jobs"]
    for room in rooms:
        path = Path(ROOT, room)
        for file in [path] if path.is_file() else path.rglob("*.py"):
            if file.name != "cli_args.py" and unused:
                text = file.read_text(encoding="utf-8")
                unused -= {name for name in unused if re.search(rf"\b{name}\b", text)}
    assert not unused


def test_importing_leaves_the_callers_arguments_alone():
    code = "import sys; sys.argv = ['x', '--bogus']; import comfy.cli_args; print(comfy.cli_args.args.port)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "8188\n"


def test_help_lists_every_flag():
    text = subprocess.run(
        [sys.executable, "main.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for action in cli_args.parser._actions:
        assert action.option_strings[-1] in text
        assert action.help, action.option_strings
