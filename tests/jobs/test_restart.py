"""What is there again after a restart."""

import json
import sqlite3

import pytest

from comfy_execution.attempts import StopOrder
from comfy_execution.outcomes import SHUTDOWN, TIMEOUT, Actor
from comfy_execution.prompt_queue import ExecutionStatus, QueueEntry
from jobs import pages
from jobs.ledger import Submission
from jobs.store import Query
from jobs.writer import Writer


def test_pending_prompts_are_back_as_they_were(live):
    first = live()
    first.put("b", 7, client_id="c", extra_pnginfo={"workflow": {"id": "w"}})
    first.put("a", 7)
    first.put("front", -3.5)
    entries = list(first.queue.queue)
    first.stop()
    again = live()
    assert again.waiting() == ["front", "b", "a"]
    assert [tuple(entry[:5]) for entry in again.queue.queue] == [tuple(entry[:5]) for entry in entries]
    assert again.queue.queue_json() == first.queue.queue_json()
    assert again.state("b") == "pending" and again.ledger.find("b").client_id == "c"
    assert type(again.queue.queue[0].number) is float and type(again.queue.queue[1].number) is int


WIDE = {
    "half an emoji": "a cat \ud83d",
    "an integer over 64 bits": 2**64 + 5,
    "a very negative integer": -(2**63) - 1,
    "the largest seed": 2**64 - 1,
    "a float": 0.1 + 0.2,
    "deep nesting": json.loads("[" * 400 + "]" * 400),
    "JSON in a text": '{"a": 1, "b": [2, 3]}',
}


@pytest.mark.parametrize("value", WIDE.values(), ids=WIDE)
def test_whatever_json_can_express_is_back_as_it_was(live, value):
    life = live()
    prompt, extra = {"1": {"class_type": "Text", "inputs": {"text": value}}}, {"create_time": 5, "note": value}
    life.queue.put((1, "ran", prompt, extra, ["1"]))
    life.end(life.take()[1], outputs={"1": {"text": [value]}})
    life.queue.put((1, "waits", prompt, extra, ["1"]))
    life.queue.move(["waits"], "front")
    life.crash()
    again = live()
    (entry,) = again.queue.queue
    assert entry[2:4] == (prompt, extra)
    record = again.queue.history["ran"]
    assert record["prompt"][2:4] == [prompt, extra] and record["outputs"] == {"1": {"text": [value]}}
    assert json.loads(again.queue.history_json("ran"))["ran"]["outputs"] == {"1": {"text": [value]}}
    assert again.ledger.shown("ran")["outputs"] == {"1": {"text": [value]}}
    assert json.loads(pages.by_offset(again.ledger, Query(("completed", "pending"))))["pagination"]["total"] == 2


def test_an_error_that_is_no_proper_text_is_an_end_all_the_same(live):
    """Names of files come from the system as they are: Python has halves of characters for bytes that are no text."""
    life = live()
    life.put("a")
    data = {"exception_type": "FileNotFoundError", "exception_message": "no file bad\udcff.png\n", "timestamp": 2}
    status = ExecutionStatus("error", False, [["execution_start", {"timestamp": 1}], ["execution_error", data]])
    life.queue.task_done(life.take()[1], {"outputs": {}, "meta": {}}, status)
    life.crash()
    again = live()
    assert again.waiting() == [] and again.state("a") == "failed"
    job = again.ledger.shown("a")
    assert (job["reason"], job["detail"]) == ("missing_file", "no file bad?.png")
    assert again.queue.history["a"]["status"]["messages"][-1][1] == data
    assert json.loads(pages.by_offset(again.ledger, Query(("failed",))))["jobs"][0]["detail"].startswith("no file bad")


def test_a_parked_job_that_is_retried_by_hand_waits_through_restarts(live):
    life = live()
    life.put("bad")
    for _ in range(2):
        life.take()
        life.crash()
        life = live()
    assert life.state("bad") == "failed"
    life.queue.run_again(life.ledger.entry("bad"))
    for stop in ("crash", "stop"):
        getattr(life, stop)()
        life = live()
        assert life.waiting() == ["bad"] and life.state("bad") == "pending"
    life.take()
    life.crash()
    life = live()
    assert life.waiting() == [] and life.ledger.find("bad").detail == "the server died while this job ran, 3 times"


@pytest.mark.parametrize(
    "retry, waits",
    [
        (None, True),
        (2, True),
        ({"on": ["worker_died"]}, True),
        (False, False),
        (1, False),
        ({"on": ["timeout"]}, False),
    ],
)
def test_a_job_says_itself_whether_it_outlives_the_server(live, retry, waits):
    life = live()
    life.put("a", retry=retry)
    life.take()
    life.crash()
    life = live()
    assert life.waiting() == ["a"] * waits
    if not waits:
        job = life.ledger.find("a")
        assert (job.state, job.reason) == ("failed", "worker_died") and "no further attempt" in job.detail


def test_a_clean_stop_takes_no_attempt_away(live):
    life = live()
    life.put("a", retry=2)
    for reason in (SHUTDOWN, SHUTDOWN, TIMEOUT):
        life.queue.put_back(life.take()[1], reason)
    life.take()
    life.crash()
    assert live().ledger.find("a").detail.endswith("asks for no further attempt")


@pytest.mark.parametrize(
    "damage",
    [
        *("UPDATE payloads SET entry = x'5b22' WHERE seq = 2", "DELETE FROM payloads WHERE seq = 2"),
        *(
            f"UPDATE payloads SET entry = '{entry}' WHERE seq = 2"
            for entry in (
                *("[]", "{}", '"text"', '[1,"b",{},{}]', '["1","b",{},{},[]]', "[1,5,{},{},[]]", '[1,"a",{},{},[]]'),
                *('[1,"b",[],{},[]]', '[1,"b",{},[],[]]', '[1,"b",{},{},5]'),
            )
        ),
    ],
)
def test_a_job_that_cannot_be_read_any_more_takes_no_other_along(live, path, damage):
    life = live()
    for prompt_id in "abc":
        life.put(prompt_id, client_id="c")
    life.crash()
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    for _ in range(2):
        life = live()
        job = life.ledger.shown("b")
        assert life.waiting() == ["a", "c"]
        assert (job["status"], job["reason"]) == ("failed", "validation_error") and "cannot be read" in job["detail"]
        assert life.queue.history["b"]["prompt"][1] == "b"
        life.crash()


@pytest.mark.parametrize("value", ["attempts = '[{'", "actor = '[{'", "actor = '5'", "number = 'x'", "place = 'x'"])
def test_a_job_of_which_something_else_cannot_be_read_runs(live, path, value):
    life = live()
    for prompt_id in "abc":
        life.put(prompt_id)
    life.crash()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE jobs SET {value} WHERE seq = 2")
    for _ in range(2):
        life = live()
        assert sorted(life.waiting()) == ["a", "b", "c"] and life.ledger.shown("b")["status"] == "pending"
        life.crash()


@pytest.mark.parametrize("what", ["a move", "a retry"])
def test_what_belongs_together_is_stored_together(live, monkeypatch, what):
    """However quick the writer is: a process can die between any two of its commits."""
    life = live()
    for prompt_id in "abc":
        life.put(prompt_id)
    life.run("bad", "failed")
    life.ledger.settle()
    commits, add_all = [], Writer.add_all

    def write_at_once(self, changes):
        add_all(self, changes)
        commits.append(sorted(change.name for change in changes))

    monkeypatch.setattr(Writer, "add_all", write_at_once)
    if what == "a move":
        life.queue.move(["c", "b"], "front")
        assert commits == [["move", "move"]]
    else:
        life.queue.run_again(life.ledger.entry("bad"))
        assert commits == [["move", "unkeep", "update"]]


def test_new_prompts_go_behind_those_of_before(live):
    first = live()
    first.put("a", 1)
    first.put("b", 1)
    first.crash()
    again = live()
    again.put("c", 1)
    again.crash()
    assert live().waiting() == ["a", "b", "c"]


def test_the_servers_count_goes_on(live):
    first = live()
    assert first.next_number == 0
    entry = QueueEntry((-41, "a", {}, {}, ["1"]))
    entry.submission = Submission(counter=41)
    first.queue.put(entry)
    first.put("b", 1e9)
    first.stop()
    assert live().next_number == 42


def test_what_ran_is_put_back_at_its_place_as_a_new_attempt(live):
    first = live()
    for prompt_id in "abc":
        first.put(prompt_id)
    assert first.take()[0] == "a"
    first.crash()
    again = live()
    assert again.waiting() == ["a", "b", "c"]
    assert again.state("a") == "pending"
    prompt_id, task_id = again.take()
    again.end(task_id)
    attempts = again.ledger.find("a").attempts
    assert prompt_id == "a" and [(a.number, a.result) for a in attempts] == [(1, "died"), (2, "completed")]
    assert attempts[0].reason == "worker_died"


def test_a_job_that_takes_the_process_with_it_twice_is_parked(live):
    life = live()
    life.put("bad")
    life.put("good")
    for _ in range(2):
        assert life.take()[0] == "bad"
        life.crash()
        life = live()
    assert life.waiting() == ["good"]
    job = life.ledger.find("bad")
    assert (job.state, job.reason) == ("failed", "worker_died")
    assert job.detail == "the server died while this job ran, 2 times"
    record = life.queue.history["bad"]
    assert record["status"]["status_str"] == "error" and "2 times" in str(record["status"]["messages"])
    life.crash()
    assert live().waiting() == ["good"]


def test_dying_again_before_it_ran_again_counts_once(live):
    life = live()
    life.put("a")
    life.take()
    for _ in range(3):
        life.crash()
        life = live()
    assert life.waiting() == ["a"] and [a.result for a in life.ledger.find("a").attempts] == ["died"]


def test_an_attempt_that_a_clean_stop_ended_is_no_death(live):
    life = live()
    life.put("a")
    for _ in range(4):
        _, task_id = life.take()
        assert life.queue.put_back(task_id, SHUTDOWN)
        life.stop()
        life = live()
    assert life.waiting() == ["a"]
    assert {(a.result, a.reason) for a in life.ledger.find("a").attempts} == {("put_back", "shutdown")}


def test_nothing_that_has_ended_runs_again(live):
    life = live()
    for prompt_id, state in (("ok", "completed"), ("bad", "failed"), ("stopped", "cancelled")):
        life.run(prompt_id, state)
    life.put("dropped")
    life.queue.delete_queue_items(["dropped"])
    life.crash()
    again = live()
    assert again.waiting() == []
    states = [again.state(i) for i in ("ok", "bad", "stopped", "dropped")]
    assert states == ["completed", "failed", "cancelled", "cancelled"]


def test_clear_cancels_what_waited(live):
    life = live()
    life.put("a")
    life.put("b")
    life.take()
    life.crash()
    again = live("clear")
    assert again.waiting() == []
    assert [again.state(i) for i in "ab"] == ["cancelled", "cancelled"]
    assert again.ledger.find("b").by == {"route": "--on-restart clear"}
    again.crash()
    assert live().waiting() == []


def test_pause_lets_it_wait(live):
    life = live()
    life.put("a")
    life.stop()
    again = live("pause")
    assert again.waiting() == ["a"] and again.queue.paused
    assert again.queue.get(0) is None
    again.queue.resume()
    assert again.take()[0] == "a"


@pytest.mark.parametrize("stop", ["stop", "crash"])
@pytest.mark.parametrize("on_restart", ["resume", "pause", "clear"])
def test_who_paused_the_queue_finds_it_paused(live, on_restart, stop):
    life = live()
    life.queue.pause()
    life.put("a")
    for _ in range(2):
        getattr(life, stop)()
        life = live(on_restart)
        assert life.queue.paused and life.queue.was_paused and life.queue.get(0) is None
    life.queue.resume()
    getattr(life, stop)()
    life = live()
    assert not life.queue.paused and not life.queue.was_paused
    assert life.waiting() == ([] if on_restart == "clear" else ["a"])


def test_a_pause_by_flag_is_that_starts_alone(live):
    life = live()
    life.put("a")
    life.stop()
    life = live("pause")
    assert life.queue.paused
    life.stop()
    assert not live().queue.paused


BY = Actor("10.0.0.7", "POST /interrupt", "alice")


@pytest.mark.parametrize("by", [BY, None])
def test_what_was_cancelled_while_it_ran_does_not_run_again(live, by):
    """An operator cancels a job that hangs, and then has to kill the process."""
    life = live()
    for prompt_id in "ab":
        life.put(prompt_id, client_id="c")
    life.take()
    assert life.queue.interrupt(by) == ["a"]
    life.crash()
    for _ in range(2):
        life = live()
        assert life.waiting() == ["b"]
        job = life.ledger.shown("a")
        assert (job["status"], job["reason"]) == ("cancelled", "interrupted")
        assert job.get("by") == (by.shown() if by else None)
        (attempt,) = job["attempts"]
        assert (attempt["result"], attempt["reason"], attempt.get("by")) == ("cancelled", "interrupted", job.get("by"))
        assert life.queue.history["a"]["status"]["messages"][-1][0] == "execution_interrupted"
        life.crash()


@pytest.mark.parametrize("reason", [TIMEOUT, SHUTDOWN])
def test_what_was_told_to_stop_for_another_reason_runs_again(live, reason):
    life = live()
    life.put("a")
    life.take()
    assert life.queue.stop(StopOrder(reason)) == ["a"]
    life.crash()
    again = live()
    assert again.waiting() == ["a"] and again.ledger.find("a").attempts[0].result == "died"


def test_a_count_that_a_retry_took_is_not_given_again(live):
    life = live()
    life.run("a", "failed")
    entry = life.ledger.entry("a").with_number(-7)
    entry.submission = Submission(counter=7)
    life.queue.run_again(entry)
    life.crash()
    again = live()
    assert again.next_number == 8 and again.waiting() == ["a"]


def test_moves_survive(live):
    life = live()
    for number, prompt_id in enumerate("abcd"):
        life.put(prompt_id, number)
    life.queue.move(["d"], "front")
    life.queue.move(["a"], "after", "b")
    order = life.waiting()
    shown = life.queue.queue_json()
    life.crash()
    again = live()
    assert order == again.waiting() == ["d", "b", "a", "c"]
    assert again.queue.queue_json() == shown


def test_secrets_never_touch_the_disk(live, path):
    life = live()
    life.put("a", secrets={"api_key_comfy_org": "s3cret-key"})
    life.end(life.take()[1])
    life.put("b", secrets={"auth_token_comfy_org": "s3cret-token"})
    life.stop()
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"s3cret" not in stored and b'"a"' in stored
    assert live().queue.queue[0].secrets == {}


def test_history_is_back(live):
    life = live()
    life.put("a", client_id="c")
    life.end(life.take()[1], outputs={"1": {"text": ["é"]}})
    life.run("b", "failed")
    shown = life.queue.history_json()
    life.crash()
    again = live()
    assert again.queue.history_json() == shown
    assert list(again.queue.history) == ["a", "b"]
    assert again.queue.history["a"]["outputs"] == {"1": {"text": ["é"]}}
    assert json.loads(shown)["a"]["prompt"][3]["client_id"] == "c"


def test_deleted_history_stays_deleted(live):
    life = live()
    for prompt_id in "abc":
        life.run(prompt_id)
    life.queue.delete_history_item("b")
    life.crash()
    again = live()
    assert list(again.queue.history) == ["a", "c"] and again.state("b") is None
    again.queue.wipe_history()
    again.crash()
    last = live()
    assert list(last.queue.history) == [] and last.state("a") is None


@pytest.mark.parametrize("stop", ["stop", "crash"])
def test_only_whole_groups_are_stored(live, path, stop):
    life = live()
    for number in range(50):
        life.put(str(number), number)
    getattr(life, stop)()
    with sqlite3.connect(path) as connection:
        jobs, payloads = (
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("jobs", "payloads")
        )
        assert jobs == payloads == 50
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
