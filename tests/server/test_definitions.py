"""GET /object_info: current for everyone who asks, and sent again only when it has changed."""

import asyncio
import logging
import sys
import threading

import pytest

from routes.nodes import _Shared


async def test_what_has_not_changed_is_not_sent_again(running):
    status, everything, headers = await running.get("/object_info")
    assert status == 200 and set(everything) == {"Text"}
    tag = headers["ETag"]
    for value in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
        status, body, again = await running.get("/object_info", headers={"If-None-Match": value})
        assert (status, body, again["ETag"]) == (304, b"", tag)
    assert headers["Cache-Control"] == "no-cache"
    status, body, _ = await running.get("/object_info", headers={"If-None-Match": '"other"'})
    assert (status, body) == (200, everything)


async def test_a_changed_choice_is_sent(running):
    _, _, headers = await running.get("/api/object_info")
    choices = ["a.png"]
    text = sys.modules["nodes"].NODE_CLASS_MAPPINGS["Text"]

    class WithFiles(text):
        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {"file": (choices, {})}}

    sys.modules["nodes"].NODE_CLASS_MAPPINGS["Files"] = WithFiles
    known = {"If-None-Match": headers["ETag"]}
    status, body, headers = await running.get("/api/object_info", headers=known)
    assert status == 200 and body["Files"]["input"]["required"]["file"][0] == ["a.png"]
    # A class may hand out one list for ever, and change it.
    choices.append("b.png")
    status, body, _ = await running.get("/api/object_info", headers={"If-None-Match": headers["ETag"]})
    assert status == 200 and body["Files"]["input"]["required"]["file"][0] == ["a.png", "b.png"]


async def test_who_asks_during_a_computation_gets_the_next_one():
    value, calls, go = [1], [], threading.Semaphore(0)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def compute():
        seen = value[0]
        calls.append(seen)
        loop.call_soon_threadsafe(begun.set)
        go.acquire()
        return seen

    shared = _Shared(compute)
    first = asyncio.create_task(shared.get())
    await begun.wait()
    value[0] = 2
    later = [asyncio.create_task(shared.get()) for _ in range(5)]
    await asyncio.sleep(0)
    go.release(2)
    assert await first == 1
    assert await asyncio.gather(*later) == [2] * 5
    assert calls == [1, 2], "five who wait are served by one computation"


async def test_a_failed_computation_is_not_kept():
    answers = iter([ValueError("no"), 5])

    def compute():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = _Shared(compute)
    try:
        await shared.get()
        raise AssertionError("the failure must reach who asked")
    except ValueError:
        pass
    assert await shared.get() == 5


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), BaseException("x"), ValueError("x")])
async def test_classes_that_cannot_describe_themselves(running, caplog, error):
    """They are left out, whatever they raise, and the log is not filled by each page that opens."""
    nodes = sys.modules["nodes"]
    plain = nodes.node_info

    def node_info(name):
        if name == "Odd":
            raise error
        return plain(name)

    nodes.node_info = node_info
    nodes.NODE_CLASS_MAPPINGS["Odd"] = object
    for _ in range(3):
        status, known, _ = await running.get("/object_info")
        assert status == 200 and "Text" in known and "Odd" not in known
    assert (await running.get("/object_info/Odd"))[:2] == (200, {})
    assert sum("Odd" in record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR) == 1


@pytest.mark.parametrize("path", ["/object_info", "/object_info/Text"])
async def test_classes_are_asked_off_the_event_loop(running, path):
    """Some list folders with thousands of files."""
    nodes, threads = sys.modules["nodes"], []
    plain = nodes.node_info
    nodes.node_info = lambda name: (threads.append(threading.current_thread()), plain(name))[1]
    assert "Text" in (await running.get(path))[1]
    assert threads and threading.main_thread() not in threads
