"""`queue.history` over a store: as packs use it, and no larger in memory than it should be."""

import json
import threading

import pytest

from comfy_execution.history import HistoryEntry
from comfy_execution.queue_control import NotPending
from jobs import history as stored
from jobs.retention import CHECK_SECONDS, Retention, Rule, parse_rule

DAY = 86_400


def record(prompt_id, text="x"):
    return {
        "prompt": [1, prompt_id, {}, {"create_time": 1}, ["1"]],
        "outputs": {"1": {"text": [text]}},
        "status": {"status_str": "success", "completed": True, "messages": []},
        "meta": {},
    }


def test_it_is_a_mapping_that_packs_can_change(live):
    life = live()
    for prompt_id in "abc":
        life.run(prompt_id)
    history = life.queue.history
    assert list(history) == ["a", "b", "c"] and len(history) == 3 and "b" in history and "x" not in history
    assert history.get("x") is None and history["a"]["status"]["completed"] is True
    assert [ident for ident, _ in history.items()] == ["a", "b", "c"]
    del history["a"]
    assert history.pop("c")["prompt"][1] == "c" and list(history) == ["b"]
    with pytest.raises(KeyError):
        del history["a"]
    assert life.state("a") is None and life.state("c") is None and life.state("b") == "completed"
    history["own"] = record("own", "of a pack")
    history["b"] = {**history["b"], "outputs": {"1": {"text": ["changed"]}}}
    life.crash()
    again = live()
    assert list(again.queue.history) == ["own", "b"]
    assert again.queue.history["own"]["outputs"] == {"1": {"text": ["of a pack"]}}
    assert again.queue.history["b"]["outputs"] == {"1": {"text": ["changed"]}}
    assert again.state("own") == "completed"
    again.queue.history = {"only": record("only")}
    assert list(again.queue.history) == ["only"] and again.state("b") is None


def test_only_the_newest_are_in_memory(live, monkeypatch):
    monkeypatch.setattr(stored, "RECENT_ENTRIES", 3)
    life = live()
    for number in range(10):
        life.put(str(number))
        life.end(life.take()[1], outputs={"1": {"text": [f"text {number}"]}})
    assert len(life.queue.history._recent) == 3
    assert [record["outputs"]["1"]["text"] for _, record in life.queue.history.items()] == [
        [f"text {number}"] for number in range(10)
    ]
    whole = json.loads(life.queue.history_json())
    assert list(whole) == [str(number) for number in range(10)]
    assert all(json.loads(life.queue.history_json(ident))[ident] == whole[ident] for ident in whole)


def test_large_results_do_not_pile_up_in_memory(live, monkeypatch):
    monkeypatch.setattr(stored, "RECENT_BYTES", 50_000)
    life = live()
    for number in range(10):
        life.put(str(number))
        life.end(life.take()[1], outputs={"1": {"text": ["x" * 20_000]}})
    assert len(life.queue.history._recent) == 2
    assert len(life.queue.history["0"]["outputs"]["1"]["text"][0]) == 20_000


def test_looking_at_old_jobs_does_not_fill_memory(live, monkeypatch):
    monkeypatch.setattr("jobs.ledger._RECENT", 3)
    first = live()
    for number in range(9):
        first.run(str(number))
    first.stop()
    life = live()
    assert all(life.state(str(number)) == "completed" for number in range(9))
    assert sum(life.ledger.remembered(str(number)) is not None for number in range(9)) == 3


def test_listings_are_bounded_and_older_ones_are_known_by_id(live):
    life = live(history_size=3)
    for prompt_id in "abcde":
        life.run(prompt_id)
    assert list(life.queue.history) == ["c", "d", "e"]
    assert list(json.loads(life.queue.history_json(max_items=2))) == ["d", "e"]
    assert list(json.loads(life.queue.history_json(max_items=1, offset=1))) == ["d"]
    assert json.loads(life.queue.history_json("a"))["a"]["status"]["completed"] is True
    life.crash()
    again = live(history_size=3)
    assert list(again.queue.history) == ["c", "d", "e"] and "a" in again.queue.history


def test_running_an_id_again_makes_it_the_newest(live):
    life = live()
    for number, prompt_id in enumerate("aba"):
        life.run(prompt_id, create_time=number)
    assert list(life.queue.history) == ["b", "a"]
    life.crash()
    assert list(live().queue.history) == ["b", "a"]


def test_the_json_of_an_entry_is_what_the_entry_says(live):
    life = live()
    life.put("a", 2.5, text="ü")
    life.end(life.take()[1], outputs={"1": {"text": ["ö", float("nan")]}})
    entry = life.queue.history["a"]
    assert isinstance(entry, HistoryEntry)
    shown = json.loads(life.queue.history_json("a"))["a"]
    assert shown["prompt"] == entry["prompt"] and shown["outputs"] == {"1": {"text": ["ö", None]}}


# --- how long it is kept --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, rule",
    [
        ("30d", Rule(30 * DAY)),
        ("12h", Rule(DAY / 2)),
        ("5000", Rule(None, 5000)),
        ("2w,100", Rule(14 * DAY, 100)),
        ("all", Rule()),
    ],
)
def test_rules(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "30", "-1", "d", "30y", "1d;5", "1.5d"])
def test_what_is_no_rule(text):
    if text == "30":
        assert parse_rule(text) == Rule(None, 30)
    else:
        with pytest.raises(ValueError, match="30d"):
            parse_rule(text)


@pytest.fixture
def clock(monkeypatch):
    """A list whose element is the time in seconds since the epoch."""
    now = [1_000_000.0]
    monkeypatch.setattr("jobs.ledger.time", type("Time", (), {"time": staticmethod(lambda: now[0])}))
    return now


def test_old_jobs_are_deleted(live, clock):
    life = live(retention=Retention(Rule(seconds=10 * DAY), clock=lambda: clock[0]))
    for day in range(20):
        life.run(str(day))
        clock[0] += DAY
    life.put("waits")
    life.ledger.prune()
    assert list(life.queue.history) == [str(day) for day in range(10, 20)]
    assert life.state("3") is None and life.queue.history_json("3") == b"{}"
    assert life.waiting() == ["waits"] and life.state("waits") == "pending"
    assert life.ledger.store.counts() == {"completed": 10, "pending": 1}


def test_the_oldest_beyond_a_count_are_deleted(live, clock, monkeypatch):
    monkeypatch.setattr("jobs.retention._AT_ONCE", 4)
    life = live(retention=Retention(Rule(count=5), clock=lambda: clock[0]))
    for number in range(17):
        clock[0] += 1
        life.run(str(number))
    life.ledger.prune()
    assert list(life.queue.history) == ["12", "13", "14", "15", "16"]
    assert life.ledger.prune() == 0


def test_it_is_looked_at_now_and_then(clock):
    retention = Retention(Rule(count=5), clock=lambda: clock[0])
    assert retention.is_due() and not retention.is_due()
    clock[0] += CHECK_SECONDS + 1
    assert retention.is_due() and not retention.is_due()
    assert not Retention().is_due()
    assert Retention().is_due(bounded=True)


def test_a_clock_that_is_set_back_holds_nothing_up(clock):
    retention = Retention(Rule(count=5), clock=lambda: clock[0])
    assert retention.is_due()
    clock[0] -= 365 * DAY
    assert retention.is_due() and not retention.is_due()


def test_the_queue_is_not_held_up_by_a_slow_disk(live):
    """Its lock is everybody's: what needs it must not wait for a commit, nor read."""
    life = live(history_size=3)
    for number in range(6):
        life.run(str(number))
    life.put("waits")
    life.ledger.settle()
    unknown = [*"01", "never"]  # ended long ago, or unknown: who asks by other ways finds out more
    with life.ledger._writer._writing:  # a commit that takes long
        life.put("new")
        done = threading.Event()

        def use():
            assert life.queue.cancel([*unknown, "5", "waits"]) == {
                **dict.fromkeys(unknown, "unknown"), "5": "already_finished", "waits": "cancelled"}  # fmt: skip
            for ident in (*unknown, "5", "new"):
                life.queue.delete_history_item(ident)
            with pytest.raises(NotPending):
                life.queue.move([*unknown, "4"], "front")
            done.set()

        threading.Thread(target=use, daemon=True).start()
        assert done.wait(5)
    life.crash()
    again = live(history_size=3)
    assert again.waiting() == ["new"] and list(again.queue.history) == ["2", "3", "4"]


def test_an_entry_that_only_the_standard_encoder_can_express():
    entry = HistoryEntry(prompt=[1, "a"], outputs={"1": {"text": ["half \ud83d"]}}, status=None)
    entry.prompt_json = b'[1,"a"]'
    assert json.loads(entry.json) == entry
    empty = HistoryEntry(prompt=[1])
    empty.prompt_json = b"[1]"
    assert empty.json == b'{"prompt":[1]}'
