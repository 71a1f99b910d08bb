"""Command line → settings → server + worker; the only place that wires things together.

Order of a start: settings, folders, the socket (HTTP answers from here on), then on a background thread the
packs' prestartup scripts, torch, the built-in nodes and the custom packs. What needs nodes waits for them.
"""

from __future__ import annotations

import os
import signal

EXIT_OK, EXIT_FAILED = 0, 1


def stop_early(number: int, _frame: object) -> None:
    """End the process on a signal that comes before the server listens, while most of its time goes into imports.

    An exception could end up in whatever is being imported, and there is nothing to close yet.
    """
    os.write(2, f"{signal.Signals(number).name} came before the server was up; it ends\n".encode())
    os._exit(EXIT_OK)


if __name__ == "__main__":  # before anything else is imported; `serve` takes over once it can
    for early in (signal.SIGINT, signal.SIGTERM):
        signal.signal(early, stop_early)

import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()

import asyncio  # noqa: E402
import contextlib  # noqa: E402
import faulthandler  # noqa: E402
import logging  # noqa: E402
import math  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

import folder_paths  # noqa: E402
from comfy.cli_args import args, no_effect_notes  # noqa: E402

if TYPE_CHECKING:
    from jobs.ledger import Ledger

UPKEEP_SECONDS = 2.0  # between two looks at the store, also while nothing happens
STORE_SECONDS = 0.5  # for the last changes to reach the disk
LAST_SECONDS = 1.5  # for sockets to close, and for threads to end
DISK_SECONDS = 6.0  # for a slow disk to take what is not stored by then; containers are killed after ten
KNOWN_RUNS = 200  # of earlier processes that estimates start from
RESTART_SECONDS = 5  # after which a client may try again
# A thread that waits for the interpreter while a node computes in Python gets it after this long, instead of the usual
# 5 ms: a request changes threads several times. What the node loses by it cannot be measured.
SWITCH_SECONDS = 0.001
STARTED = time.perf_counter()
log = logging.getLogger("darkroom")


def prepare_environment() -> None:
    """Set up the interpreter, and what torch and its driver read from the environment: before torch is imported."""
    # Threads that wait for the next parallel loop sleep instead of spinning: spinning beside the event loop or any
    # other process on the same cores makes a small model twenty times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if args.cuda_device is not None and args.cuda_device.strip().lower() != "all":
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = args.cuda_device
    elif args.default_device is not None:
        others = [str(i) for i in range(32) if i != args.default_device]
        order = ",".join([str(args.default_device), *others])
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = order
    if args.oneapi_device_selector is not None:
        os.environ["ONEAPI_DEVICE_SELECTOR"] = args.oneapi_device_selector
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if args.cuda_malloc:
        allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        if "backend" not in allocator:
            parts = [p for p in (allocator, "backend:cudaMallocAsync") if p]
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ",".join(parts)
    sys.setswitchinterval(SWITCH_SECONDS)
    # Modules that old packs import but that are no rooms of ours; last, so that ours always win.
    sys.path.append(os.path.join(folder_paths.program_path, "compat"))


def prepare_folders() -> None:
    """Read the extra model paths files, make the folders, empty the temp folder."""
    beside_main = os.path.join(folder_paths.program_path, "extra_model_paths.yaml")
    files = [beside_main] if os.path.isfile(beside_main) else []
    files += [path for group in args.extra_model_paths_config or [] for path in group]
    for path in files:
        folder_paths.load_extra_model_paths(path)
    folder_paths.create_folders()
    empty_temp_folder()


TEMP_MARK = ".darkroom-temp"


def empty_temp_folder(recreate: bool = True) -> None:
    """Delete the temp folder, unless it is one that was given by flag and that we have not made.

    The folder of `--temp-directory` may be anybody's; a mark file tells that it is ours.
    """
    temp = folder_paths.get_temp_directory()
    mark = os.path.join(temp, TEMP_MARK)
    ours = args.temp_directory is None or os.path.exists(mark) or not os.path.isdir(temp) or not os.listdir(temp)
    if ours:
        shutil.rmtree(temp, ignore_errors=True)
    else:
        log.warning("%s was not made by this server; its files are kept", temp)
    if recreate:
        try:
            os.makedirs(temp, exist_ok=True)
            with open(mark, "w"):
                pass
        except OSError as error:
            log.warning("cannot prepare the temp folder %s: %s", temp, error)


def load_nodes(server) -> None:
    """Import torch and every node, then let waiting requests and the worker go on. Runs on its own thread."""
    try:
        import custom_packs

        custom_packs.run_prestartup_scripts()
        # A family of built-in nodes may be missing, but without torch no prompt can run at all.
        import torch  # noqa: F401

        import nodes

        nodes.EXTENSION_WEB_DIRS["darkroom"] = os.path.join(folder_paths.program_path, "web")
        asyncio.run(nodes.init_extra_nodes(init_custom_nodes=True, init_api_nodes=not args.disable_api_nodes))
    except BaseException:
        log.critical("the built-in nodes cannot be loaded; the server stops", exc_info=True)
        server.loop.call_soon_threadsafe(server.stop_requested.set_result, EXIT_FAILED)
        return
    server.set_nodes_ready()
    log.info("%d nodes ready after %.1f s", len(nodes.NODE_CLASS_MAPPINGS), time.perf_counter() - STARTED)


async def serve() -> int:
    """Run the server until a signal or a fatal error; returns the exit status."""
    import execution
    import workers.drain
    import workers.local
    import workers.lookahead
    import workers.repeating
    import workers.watchdog
    from assets.database import DatabaseUnavailable
    from comfy_execution.jobs import COMPLETED
    from jobs.limits import time_limit
    from jobs.opening import open_ledger
    from jobs.recovery import recover
    from jobs.retry import RetryPolicy
    from jobs.store import Query, StoreUnavailable
    from server import PromptServer

    loop = asyncio.get_running_loop()
    try:
        server = PromptServer(loop)
    except DatabaseUnavailable as error:
        log.error("%s", error)
        return EXIT_FAILED
    server.stop_requested = loop.create_future()
    queue = execution.PromptQueue(server)
    server.jobs = open_ledger(args)
    server.jobs.attach(queue)
    server.number = server.jobs.next_number()
    recover(server.jobs, queue, args.on_restart)
    with contextlib.suppress(StoreUnavailable):
        server.run_times.seed(server.jobs.page(Query((COMPLETED,), limit=KNOWN_RUNS)))
    policy = RetryPolicy(args.max_attempts, args.retry_oom)
    worker = workers.local.PromptWorker(
        server,
        queue,
        retry_behind=policy.behind,
        succeeded=server.run_times.note,
        on_device_lost=lambda: loop.call_soon_threadsafe(stop, workers.local.EXIT_DEVICE_LOST),
        idle_unload=args.idle_unload,
    )
    server.watchdog = workers.watchdog.Watchdog(
        worker,
        queue,
        lambda entry: time_limit(entry.extra_data, args.job_timeout),
        args.stuck_seconds if args.on_stuck == "exit" else 0,
        lambda: loop.call_soon_threadsafe(stop, workers.watchdog.EXIT_STUCK),
    )
    hurry = asyncio.Event()
    if args.enable_assets:
        from assets import store
        from assets.finished import FinishedFiles

        worker.on_end.append(FinishedFiles(store()).prompt_ended)

    janitor = file_janitor()
    janitor.start()

    def stop(status: int = EXIT_OK) -> None:
        if not server.stop_requested.done():
            server.retry_after = math.ceil(args.drain_seconds) + RESTART_SECONDS
            server.stop_requested.set_result(status)
        else:
            hurry.set()

    for sig in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(sig, stop)
        except NotImplementedError:  # Windows
            signal.signal(sig, lambda *_: loop.call_soon_threadsafe(stop))
    if args.debug_hang and hasattr(faulthandler, "register"):  # not on Windows
        # Last, as it calls the handler that was there before.
        faulthandler.register(signal.SIGINT, all_threads=True, chain=True)

    addresses = [(address.strip(), args.port) for address in args.listen.split(",") if address.strip()]
    if not addresses:
        log.error("--listen %r names no address", args.listen)
        return EXIT_FAILED
    try:
        await server.start_multi_address(addresses, call_on_start=None if args.dont_print_server else announce)
    except OSError as error:
        log.error("cannot listen on %s port %d: %s", args.listen, args.port, error.strerror or error)
        return EXIT_FAILED
    worker.start()
    server.watchdog.start()
    upkeep = workers.repeating.Repeating("job-upkeep", UPKEEP_SECONDS, server.jobs.look_after)
    upkeep.start()
    lookahead = workers.lookahead.Lookahead(queue)
    lookahead.start()
    threading.Thread(target=load_nodes, args=(server,), name="load-nodes", daemon=True).start()
    if args.auto_launch:
        threading.Thread(target=open_browser, daemon=True).start()
    if args.demo:
        import demo

        demo.start(server, address_url())
    if args.quick_test_for_ci:
        threading.Thread(
            target=lambda: (server.wait_nodes_ready(), loop.call_soon_threadsafe(stop)), daemon=True
        ).start()
    status = await server.stop_requested
    janitor.stop()
    server.watchdog.stop()
    lookahead.stop()
    await workers.drain.drain(queue, worker, args.drain_seconds, hurry)
    upkeep.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.jobs.stored(), STORE_SECONDS)
    with ending_within(LAST_SECONDS, status, server.jobs):
        await server.close()
    with ending_within(DISK_SECONDS, status, server.jobs):
        server.jobs.close()
    hear_no_more(loop)
    last_timer(LAST_SECONDS, status, server.jobs).start()
    return status


def hear_no_more(loop: asyncio.AbstractEventLoop) -> None:
    """Have no further signal cut off the rest of the end. It cannot take long: see `last_timer`."""
    for sig in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows
            loop.remove_signal_handler(sig)
        signal.signal(sig, signal.SIG_IGN)


def last_timer(seconds: float, status: int, jobs: Ledger) -> threading.Timer:
    """Ends the process after `seconds` though a connection, or a thread that the loop waits for, holds it up."""

    def end() -> None:
        log.warning("something holds up the end of the server; it ends now")
        threading.Timer(DISK_SECONDS, leave, (status,)).start()
        jobs.settle(max(DISK_SECONDS - seconds, 0))
        empty_temp_folder(recreate=False)
        leave(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    return timer


@contextlib.contextmanager
def ending_within(seconds: float, status: int, jobs: Ledger) -> Iterator[None]:
    """What is done inside has `seconds`: see `last_timer`."""
    timer = last_timer(seconds, status, jobs)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def leave(status: int) -> None:
    """End the process. A node may still be computing; tearing the interpreter down under it can hang or crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(status)


def file_janitor():
    """Who keeps the output and temp folders within the limits of the command line."""
    import assets
    from gateway.file_retention import Janitor, Limits

    given = {
        folder_paths.get_output_directory(): args.keep_output,
        folder_paths.get_temp_directory(): args.keep_temp,
    }
    folders = {folder: Limits.read(text) for folder, text in given.items() if text is not None}
    return Janitor(folders, lambda path: assets.enabled() and assets.store().forget_path(path))


def address_url() -> str:
    """An address of this server that works from this machine."""
    host = args.listen.split(",")[0].strip()
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if args.tls_keyfile and args.tls_certfile else 'http'}://{host}:{args.port}"


def announce(scheme: str, address: str, port: int) -> None:
    """Print where the server listens; one call per address."""
    host = f"[{address}]" if ":" in address else address
    log.info("Listening on %s://%s:%d after %.2f s", scheme, host, port, time.perf_counter() - STARTED)


def open_browser() -> None:
    """Show the front end in the user's browser."""
    import webbrowser

    webbrowser.open(address_url())


def main() -> int:
    """Run the server; returns the process's exit status."""
    import logs

    logs.setup(args)
    for note in no_effect_notes(args):
        log.warning(note)
    prepare_environment()
    try:
        prepare_folders()
    except folder_paths.ExtraPathsError as error:
        log.error("%s", error)
        return EXIT_FAILED
    status = EXIT_FAILED
    with contextlib.suppress(KeyboardInterrupt):
        status = asyncio.run(serve())
    empty_temp_folder(recreate=False)
    return status


if __name__ == "__main__":
    leave(main())
