"""What is kept and what is dropped when a client reads too slowly."""

import asyncio

import pytest

from gateway import outbox
from gateway.outbox import Frame, Outbox, OutboxOverflow


async def drain(box: Outbox) -> list[bytes]:
    return [(await box.get()).data for _ in range(len(box))]


async def test_a_reader_that_keeps_up_gets_everything_in_order():
    box = Outbox()
    frames = [Frame(b"%d" % i, replaces=("progress",)) for i in range(outbox.SOFT_FRAMES)]
    for frame in frames:
        box.put(frame)
    assert await drain(box) == [f.data for f in frames]


async def test_backlog_is_thinned_but_terminal_events_and_last_values_stay():
    box = Outbox()
    for i in range(outbox.SOFT_FRAMES * 4):
        box.put(Frame(b"p%d" % i, replaces=("progress", "a")))
        if i % 100 == 0:
            box.put(Frame(b"executed%d" % i))
    left = await drain(box)
    terminal = [b"executed%d" % i for i in range(0, outbox.SOFT_FRAMES * 4, 100)]
    assert [d for d in left if d.startswith(b"executed")] == terminal
    assert left[-1] == b"p%d" % (outbox.SOFT_FRAMES * 4 - 1)
    assert len(left) <= outbox.SOFT_FRAMES + len(terminal)


async def test_big_previews_are_bounded_by_bytes():
    box = Outbox()
    preview = bytes(1 << 20)
    for _ in range(100):
        box.put(Frame(preview, True, ("preview",)))
    assert len(box) <= (outbox.SOFT_BYTES >> 20) + 1


async def test_a_reader_that_never_reads_is_given_up():
    box = Outbox()
    with pytest.raises(OutboxOverflow):
        for _ in range(outbox.HARD_FRAMES + 1):
            box.put(Frame(b"executed"))


async def test_get_waits_for_a_frame():
    box = Outbox()
    waiting = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put(Frame(b"x"))
    assert (await waiting).data == b"x"
