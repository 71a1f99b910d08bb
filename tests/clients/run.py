#!/usr/bin/env python3
"""Run existing ComfyUI clients, unchanged, against this server, and print what became of each.

    python tests/clients/run.py [--only REGEX] [--envs DIR] [--url URL] [--list]

Each Python client gets a virtual environment of its own (their requirements differ), the npm clients get a folder with
their packages, and the browser client gets one per front end. They are made in a temporary folder, or in `--envs`,
where they are found again the next time. One server is started per front end, in a temporary base directory.
Needs pip, npm and Node 20, curl, chromium, and the registries. Exit status 0 when every client's was 0.

The scripts beside this file are the clients; each takes the base URL of a running server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
START_PATIENCE = 180.0  # seconds until a server that does not answer counts as failed
CLIENT_PATIENCE = 1800.0  # seconds for one client
FRONT_END = "comfyui-frontend-package"
PINNED_FRONT_END = "1.49.6"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
TAIL = 25  # lines shown of a client that failed


class SetupFailed(RuntimeError):
    """An environment could not be made, or the server did not start."""


@dataclass(frozen=True)
class Client:
    """One client and how to run it.

    packages: what pip installs; the first is the client itself. npm: the npm package whose version is reported.
    preload: modules imported before the script starts.
    front_end: the version of the front end to serve, "" for the newest on the registry, None for what the server has.
    """

    name: str
    script: str
    packages: tuple[str, ...] = ()
    npm: str | None = None
    front_end: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()


# Runs a script as `python SCRIPT` would, with some modules imported already: PRELOADED MODULES SCRIPT ARGUMENTS.
PRELOADED = """
import importlib, os, runpy, sys
for module in sys.argv.pop(1).split(","):
    importlib.import_module(module)
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""

PYTHON = (
    Client("urllib + websocket-client", "python_raw_ws.py", ("websocket-client",)),
    # Where the reference answers 500 to broken JSON, this server answers 400.
    Client("curl", "curl_oneliners.sh", env={"BROKEN_JSON_STATUS": "400"}),
    Client("comfy-cli", "python_comfy_cli.py", ("comfy-cli==1.23.0",)),
    Client("comfy-sdk + proxy", "python_comfy_sdk.py", ("comfy-sdk==0.5.0", "comfy-api-proxy==0.1.6")),
    # Its extra does not ask for tqdm, which it imports in the thread of its WebSocket before it connects. Nothing waits
    # for that thread, and a prompt of milliseconds can end before it listens, on any server: hence the preload.
    Client("comfy-script", "python_comfy_script.py", ("comfy-script[client]==0.6.1", "tqdm"), preload=("tqdm.auto",)),
    Client("comfy-api-simplified", "python_comfy_api_simplified.py", ("comfy-api-simplified==1.6.0",)),
    Client("comfyui-utils", "python_comfyui_utils.py", ("comfyui-utils==0.0.1",)),
    Client("comfy-toolkit", "python_comfy_toolkit.py", ("comfy-toolkit==0.1.0", "websocket-client")),
    Client("comfyui-async-api-tool", "python_async_api_tool.py", ("comfyui-async-api-tool==0.1.0",)),
    Client("comfyapi", "python_comfyapi.py", ("comfyapi==2.0.1",)),
    Client("comfyui-xy", "python_comfyui_xy.py", ("comfyui-xy==0.3.0",)),
    Client("pycomfy", "python_pycomfy.py", ("pycomfy==0.4.0",)),
    Client("comfykit", "python_comfykit.py", ("comfykit==0.1.12",)),
)
NPM = (
    Client("@stable-canvas/comfyui-client", "node_stable_canvas.mjs", npm="@stable-canvas/comfyui-client"),
    Client("@saintno/comfyui-sdk", "node_saintno_sdk.mjs", npm="@saintno/comfyui-sdk"),
    Client("comfy-ui-client", "node_comfy_ui_client.mjs", npm="comfy-ui-client"),
)
BROWSER = (
    Client("browser, pinned front end", "browser_ui.py", ("playwright",), front_end=PINNED_FRONT_END),
    Client("browser, newest front end", "browser_ui.py", ("playwright",), front_end=""),
)
CLIENTS = PYTHON + NPM + BROWSER


@dataclass(frozen=True)
class Outcome:
    """What became of one client. note: the last word of its output, or why it was not run."""

    name: str
    version: str
    ok: bool
    seconds: float
    note: str


def quiet(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its output. Raises SetupFailed with the end of it when it fails."""
    try:
        done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SetupFailed(f"{command[0]} is not installed") from error
    if done.returncode:
        raise SetupFailed(f"{' '.join(str(c) for c in command[:4])} …: {(done.stderr or done.stdout)[-800:]}")
    return done.stdout


# --- environments ----------------------------------------------------------------------------------------------


class Environments:
    """Makes what a client needs below one folder; what is there already is used as it is."""

    def __init__(self, root: Path):
        self.root = root

    def python(self, client: Client) -> Path:
        """The interpreter of the client's virtual environment."""
        folder = self.root / re.sub(r"[^\w.-]+", "_", "py-" + "-".join(client.packages))
        interpreter = folder / "bin" / "python"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            quiet(sys.executable, "-m", "venv", folder)
            quiet(interpreter, "-m", "pip", "install", "-q", *client.packages)
            (folder / "complete").touch()
        return interpreter

    def node(self) -> Path:
        """A folder with the npm packages and, because modules are looked for beside them, the scripts."""
        folder = self.root / "npm"
        folder.mkdir(parents=True, exist_ok=True)
        for source in [HERE / "package.json", *HERE.glob("*.mjs")]:
            shutil.copy(source, folder)
        if not (folder / "complete").exists():
            quiet("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder)
            (folder / "complete").touch()
        return folder

    def front_end(self, version: str) -> tuple[Path, str]:
        """(web root, version) of a front end package; the newest for an empty version."""
        wanted = f"{FRONT_END}=={version}" if version else FRONT_END
        folder = self.root / f"front-end-{version or 'newest'}"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            quiet(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", folder, wanted)
            (folder / "complete").touch()
        info = next(folder.glob("comfyui_frontend_package-*.dist-info"))
        return folder / "comfyui_frontend_package" / "static", info.name.split("-")[1].removesuffix(".dist")


def version_of(distribution: str, interpreter: Path) -> str:
    """The installed version of a distribution, given as a requirement."""
    name = re.split(r"[\[=<>~ ]", distribution)[0]
    return quiet(interpreter, "-c", f"import importlib.metadata as m; print(m.version({name!r}))").strip()


# --- the server ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(front_end: Path | None, log: Path) -> Iterator[str]:
    """A server of this checkout in an empty base directory; gives its URL."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as base:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, str(REPO / "main.py"), "--cpu", "--disable-api-nodes", "--port", str(port)]
        command += ["--base-directory", base, *(["--front-end-root", str(front_end)] if front_end else [])]
        with open(log, "wb") as stream:
            process = subprocess.Popen(command, cwd=base, stdout=stream, stderr=subprocess.STDOUT)
            try:
                url = f"http://127.0.0.1:{port}"
                wait_until_ready(url, process, log)
                yield url
            finally:
                process.terminate()
                process.wait()


def wait_until_ready(url: str, process: subprocess.Popen, log: Path) -> None:
    """Wait until the nodes are loaded. Raises SetupFailed."""
    deadline = time.monotonic() + START_PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/object_info/SaveImage", timeout=START_PATIENCE).read()
            return
        except OSError:
            time.sleep(0.1)
    raise SetupFailed(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


# --- running ---------------------------------------------------------------------------------------------------


def prepare(client: Client, envs: Environments) -> tuple[list[str], str]:
    """(command without the URL, versions of what is run)."""
    if client.npm is not None:
        folder = envs.node()
        package = json.loads((folder / "node_modules" / client.npm / "package.json").read_text())
        return ["node", str(folder / client.script)], package["version"]
    if client.script.endswith(".sh"):
        return ["sh", str(HERE / client.script)], quiet("curl", "--version").split()[1]
    interpreter = envs.python(client)
    versions = [version_of(p, interpreter) for p in client.packages]
    start = ["-c", PRELOADED, ",".join(client.preload)] if client.preload else []
    return [str(interpreter), *start, str(HERE / client.script)], " + ".join(versions)


def run(client: Client, command: list[str], version: str, url: str, artifacts: Path) -> Outcome:
    """Run one client against the server at `url`."""
    command = [*command, url]
    if client in BROWSER:
        program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
        if program is None:
            return Outcome(client.name, version, False, 0.0, "no chromium on this machine")
        command += ["--chromium", program, "--out", str(artifacts / f"browser-{version}")]
        command += ["--start-timeout", "600"]  # a loaded machine needs minutes for the newest front end's scripts
    env = {**os.environ, **client.env, "PYTHONDONTWRITEBYTECODE": "1", "BASE_URL": url}
    output = artifacts / (re.sub(r"\W+", "_", client.name) + ".log")
    started = time.monotonic()
    with open(output, "w") as stream:
        try:
            process = subprocess.run(
                command, env=env, cwd=artifacts, stdout=stream, stderr=subprocess.STDOUT, timeout=CLIENT_PATIENCE
            )
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            status = None
    lines = output.read_text(errors="replace").splitlines() or [""]
    if status == 0:
        return Outcome(client.name, version, True, time.monotonic() - started, verdict(client, lines))
    print("\n".join(lines[-TAIL:]), file=sys.stderr)
    why = f"no end within {CLIENT_PATIENCE:.0f} s" if status is None else f"exit {status}: {lines[-1][:60]}"
    return Outcome(client.name, version, False, time.monotonic() - started, why)


def verdict(client: Client, lines: list[str]) -> str:
    """The number of checks that a client which succeeded has made, and what it says about the rest."""
    if client in BROWSER:
        passed = sum(line.startswith("[ok]") for line in lines)
        failed = [line.split()[1] for line in lines if line.startswith("[FAIL]")]
        return f"{passed} phases" + (f"; not {', '.join(failed)}" if failed else "")
    notes = sum(line.startswith("note ") for line in lines)
    checks = sum(line.startswith("ok ") for line in lines)
    return f"{checks} checks" + (f", {notes} notes" if notes else "")


def run_group(clients: list[Client], envs: Environments, url: str | None, artifacts: Path) -> list[Outcome]:
    """Prepare the clients of one front end, start the server for them, and run them one after another."""
    root, served = None, ""
    if clients[0].front_end is not None and url is None:
        root, served = envs.front_end(clients[0].front_end)
    ready, outcomes = [], []
    for client in clients:
        try:
            command, version = prepare(client, envs)
            ready.append((client, command, served or version))
        except SetupFailed as error:
            outcomes.append(Outcome(client.name, "", False, 0.0, str(error)))
    log = artifacts / f"server{'-' + served if served else ''}.log"
    with contextlib.nullcontext(url) if url else serving(root, log) as base:
        for client, command, version in ready:
            print(f"{client.name} {version} …", file=sys.stderr, flush=True)
            outcome = run(client, command, version, base, artifacts)
            if not outcome.ok and client in BROWSER and "start" in outcome.note:
                # The script gives a page 15 s, which is little on a loaded machine; now its files are in memory.
                second = run(client, command, version, base, artifacts)
                outcome = replace(second, note=f"{second.note} (second try)")
            outcomes.append(outcome)
            print("  ok" if outcome.ok else f"  FAILED: {outcome.note}", file=sys.stderr, flush=True)
    return outcomes


def print_table(outcomes: list[Outcome]) -> None:
    """One line per client."""
    width = max(len(o.name) for o in outcomes)
    room = max(7, *(len(o.version) for o in outcomes))
    print(f"{'client':{width}}  {'version':{room}}  {'result':6}  {'s':>5}  notes")
    for outcome in outcomes:
        result = "ok" if outcome.ok else "FAILED"
        print(f"{outcome.name:{width}}  {outcome.version:{room}}  {result:6}  {outcome.seconds:5.1f}  {outcome.note}")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Run existing clients against this server.")
    parser.add_argument("--only", default="", help="run the clients whose name contains this regular expression")
    parser.add_argument("--envs", type=Path, help="folder for the environments, kept and found again")
    parser.add_argument("--logs", type=Path, help="folder for logs and screenshots, kept")
    parser.add_argument("--url", help="a running server to use, with the front end it has")
    parser.add_argument("--list", action="store_true", help="print the clients and end")
    args = parser.parse_args()
    chosen = [c for c in CLIENTS if re.search(args.only, c.name)]
    if args.list or not chosen:
        print("\n".join(c.name for c in CLIENTS))
        return 0 if args.list else 1
    groups: dict[str | None, list[Client]] = {}
    for client in chosen:
        groups.setdefault(client.front_end, []).append(client)
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        envs = Environments((args.envs or Path(scratch) / "envs").resolve())
        artifacts = (args.logs or Path(scratch) / "logs").resolve()
        for folder in (envs.root, artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        for group in groups.values():
            try:
                outcomes += run_group(group, envs, args.url, artifacts)
            except SetupFailed as error:
                outcomes += [Outcome(c.name, c.front_end or "", False, 0.0, str(error)) for c in group]
    print_table(outcomes)
    return 0 if all(o.ok for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
