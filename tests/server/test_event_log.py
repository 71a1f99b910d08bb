"""The events that clients may have missed: numbers, and what is kept within which bounds."""

import json

import pytest

from gateway import event_log
from gateway.event_log import EventLogs
from gateway.outbox import Frame


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def online():
    return set()


@pytest.fixture
def logs(clock, online):
    return EventLogs(online.__contains__, first=100, clock=clock)


def event(text="x", **kind) -> Frame:
    return Frame(b'{"type":"executed","data":"%s"}' % text.encode(), **kind)


def numbers(frames):
    return [json.loads(frame.data)["seq"] for frame in frames]


def test_numbers_grow_over_all_ids_and_are_beside_the_data(logs):
    logs.follow("a")
    logs.follow("b")
    first, second, third = logs.add("a", event("1")), logs.add("b", event("2")), logs.add("a", event("3"))
    assert json.loads(first.data) == {"type": "executed", "data": "1", "seq": 101}
    assert numbers([second, third]) == [102, 103]
    assert numbers(logs.missed("a", 100)) == [101, 103] and numbers(logs.missed("a", 101)) == [103]
    assert logs.missed("a", 103) == [] and numbers(logs.missed("b", 100)) == [102]


def test_a_new_process_never_gives_an_old_number(logs):
    assert EventLogs(lambda sid: False).last > EventLogs(lambda sid: False, first=0).last + 10**15


def test_what_is_superseded_or_fleeting_has_a_number_but_is_not_kept(logs):
    logs.follow("a")
    assert numbers([logs.add("a", event(replaces=("progress",))), logs.add("a", event(fleeting=True))]) == [101, 102]
    last = logs.add("a", event("last"))
    assert logs.missed("a", 100) == [last]


def test_binary_frames_are_kept_as_they_are(logs):
    logs.follow("a")
    picture = Frame(b"\0\0\0\1\0\0\0\2png", True)
    assert logs.add("a", picture) is picture and logs.missed("a", 100) == [picture]


@pytest.mark.parametrize("since", [0, 99, 104, 10**15])
def test_numbers_from_before_the_log_or_from_nowhere_are_not_known(logs, since):
    logs.follow("a")
    for _ in range(3):
        logs.add("a", event())
    assert logs.missed("a", since) is None and logs.missed("b", 100) is None


def test_count_bytes_and_age_are_bounded(logs, clock, monkeypatch):
    monkeypatch.setattr(event_log, "MOST_EVENTS", 10)
    monkeypatch.setattr(event_log, "MOST_BYTES", 1000)
    logs.follow("a")
    for _ in range(15):
        logs.add("a", event())
    assert len(logs.missed("a", 105)) == 10 and logs.missed("a", 104) is None
    logs.add("a", event("y" * 900))
    assert logs.size <= 1000 and len(logs.missed("a", 115)) == 1 and logs.missed("a", 110) is None
    clock.now += event_log.KEPT_FOR + 1
    assert logs.missed("a", 115) is None and logs.missed("a", 116) == [] and logs.size == 0


def test_too_large_for_the_log(logs, monkeypatch):
    monkeypatch.setattr(event_log, "MOST_BYTES", 100)
    logs.follow("a")
    logs.add("a", event("y" * 200))
    assert logs.size == 0 and logs.missed("a", 100) is None and logs.missed("a", 101) == []


def test_ids_that_are_away_are_bounded_and_the_least_used_goes(logs, online, monkeypatch):
    monkeypatch.setattr(event_log, "MOST_CLIENTS", 2)
    online.add("here")
    for sid in ("here", "a", "b"):
        logs.follow(sid)
    logs.add("a", event())  # b is now the least used
    logs.follow("c")
    assert [sid for sid in ("here", "a", "b", "c") if sid in logs] == ["here", "a", "c"]


def test_bytes_of_all_are_bounded(logs, monkeypatch):
    monkeypatch.setattr(event_log, "MOST_BYTES_OF_ALL", 1000)
    for sid in ("a", "b"):
        logs.follow(sid)
        logs.add(sid, event("y" * 600))
    assert logs.size <= 1000 and "a" in logs
    assert logs.missed("a", 100) is None and len(logs.missed("b", 101)) == 1


def test_tidying_drops_what_is_too_old(logs, clock):
    logs.follow("a")
    logs.add("a", event())
    clock.now += event_log.KEPT_FOR + 1
    logs.tidy()
    assert logs.size == 0 and logs.missed("a", 101) == []
