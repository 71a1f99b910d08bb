"""Moving, pausing, cancelling and putting back: each in one step, each with a true answer."""

import json
import random
import threading

import pytest

from comfy.interrupt import processing_interrupted
from comfy_execution.attempts import StopOrder
from comfy_execution.outcomes import INTERRUPTED, SHUTDOWN, TIMEOUT, Actor
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue
from comfy_execution.queue_control import NotPending
from jobs.ledger import Ledger
from tests.engine.engine_kit import FakeServer

BY = Actor("10.0.0.7", "POST /api/jobs/cancel")


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def queue(server):
    queue = PromptQueue(server)
    queue.observer = Ledger()
    return queue


def put(queue, ids, number=1, client_id="c"):
    for prompt_id in ids:
        queue.put((number, prompt_id, {}, {"client_id": client_id}, ["1"], {}))


def take(queue):
    entry, task_id = queue.get(0)
    return entry.prompt_id, task_id


def finish(queue, task_id):
    return queue.finish(task_id, {"outputs": {}, "meta": {}}, ExecutionStatus("success", True, []))


def order(queue):
    return "".join(entry.prompt_id for entry in queue.queue)


# --- moving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids, where, anchor, expected",
    [
        ("d", "front", None, "dabcef"),
        ("ec", "front", None, "ecabdf"),
        ("a", "back", None, "bcdefa"),
        ("ca", "back", None, "bdefca"),
        ("f", "before", "c", "abfcde"),
        ("fa", "before", "c", "bfacde"),
        ("a", "after", "c", "bcadef"),
        ("ea", "after", "f", "bcdfea"),
        ("c", "before", "d", "abcdef"),
        ("fedcba", "front", None, "fedcba"),
    ],
)
@pytest.mark.parametrize("numbers", [(1, 1, 1, 1, 1, 1), (-3, 0.5, 1, 1, 7, 7)])
def test_moves(queue, numbers, ids, where, anchor, expected):
    for prompt_id, number in zip("abcdef", numbers, strict=True):
        put(queue, prompt_id, number)
    moved = queue.move(list(ids), where, anchor)
    assert [entry.prompt_id for entry in moved] == list(ids)
    assert order(queue) == expected
    assert "".join(take(queue)[0] for _ in range(6)) == expected


def test_a_number_puts_behind_those_who_have_it(queue):
    put(queue, "abc", 1)
    put(queue, "de", 5)
    queue.set_number(["c", "a"], 5)
    assert order(queue) == "bdeca"
    assert [entry.number for entry in queue.queue] == [1, 5, 5, 5, 5]
    queue.set_number(["e"], -0.5)
    assert order(queue) == "ebdca"


def test_the_listing_shows_the_new_number(queue):
    queue.put((1, "a", {"1": {"inputs": {"text": 'x, "y"'}}}, {}, ["1"]))
    before = json.loads(queue.queue_json())["queue_pending"][0]
    queue.set_number(["a"], -2.5)
    assert json.loads(queue.queue_json())["queue_pending"] == [[-2.5, *before[1:]]]
    assert [job.number for job in (queue.observer.find("a"),)] == [-2.5]


def test_later_arrivals_go_behind_what_was_moved_and_later_fronts_before_it(queue):
    put(queue, "ab", 3)
    queue.move(["b"], "front")
    put(queue, "c", 3)
    put(queue, "f", -4)
    assert order(queue) == "fbac"
    queue.move(["f"], "after", "c")
    put(queue, "d", 3)
    assert order(queue) == "bacfd"


def test_moving_again_and_again_between_the_same_two(queue):
    """Halving the distance 200 times is more than a float can bear: places are given anew."""
    put(queue, "ab", 1)
    put(queue, [f"{i:03}" for i in range(200)], 1)
    for i in range(200):
        queue.move([f"{i:03}"], "after", "a")
    assert [entry.prompt_id for entry in queue.queue] == ["a", *(f"{i:03}" for i in reversed(range(200))), "b"]
    assert len({waiting.key for waiting in queue._line.in_order()}) == 202


def test_random_moves_agree_with_a_list(queue):
    rng = random.Random(7)
    ids = [f"p{i}" for i in range(30)]
    for prompt_id in ids:
        put(queue, [prompt_id], rng.choice([-1, 0, 0, 2.5]))
    expected = [entry.prompt_id for entry in queue.queue]
    for _ in range(300):
        some = rng.sample(ids, rng.randint(1, 4))
        rest = [i for i in expected if i not in some]
        where, anchor = rng.choice(["front", "back", "before", "after"]), rng.choice(rest)
        at = {"front": 0, "back": len(rest), "before": rest.index(anchor), "after": rest.index(anchor) + 1}[where]
        queue.move(some, where, anchor)
        expected = rest[:at] + some + rest[at:]
        assert [entry.prompt_id for entry in queue.queue] == expected


def test_all_or_none(queue):
    put(queue, "abcd")
    _, task_id = take(queue)
    finish(queue, task_id)
    take(queue)
    with pytest.raises(NotPending) as refused:
        queue.move(["d", "a", "b", "x"], "front")
    assert refused.value.states == {"a": "already_finished", "b": "running", "x": "unknown"}
    with pytest.raises(NotPending):
        queue.move(["d"], "before", "x")
    with pytest.raises(ValueError, match="not be among them"):
        queue.move(["c", "d"], "after", "d")
    assert order(queue) == "cd"


# --- pausing -------------------------------------------------------------------------------------------------


def test_a_paused_queue_hands_out_nothing(queue):
    put(queue, "ab")
    queue.pause()
    assert queue.get(0.01) is None
    queue.resume()
    assert take(queue)[0] == "a"


def test_who_waits_gets_on_when_the_pause_ends(queue):
    put(queue, "a")
    queue.pause()
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.get(20)))
    thread.start()
    queue.resume()
    thread.join(20)
    assert got[0][0].prompt_id == "a"


def test_flags_are_handed_out_in_a_pause(queue):
    put(queue, "a")
    queue.pause()
    queue.set_flag("free_memory", True)
    assert queue.get(20) is None and queue.get_flags() == {"free_memory": True}


def test_a_closed_queue_hands_out_nothing(queue):
    put(queue, "a")
    queue.close()
    assert queue.get(20) is None


# --- cancelling ----------------------------------------------------------------------------------------------


def test_each_id_gets_a_true_answer(queue):
    put(queue, "abcd")
    _, first = take(queue)
    finish(queue, first)
    take(queue)
    assert queue.cancel(["a", "b", "c", "x", "c"], BY) == {
        "a": "already_finished",
        "b": "stopping",
        "c": "cancelled",
        "x": "unknown",
    }
    assert order(queue) == "d" and processing_interrupted()
    job = queue.observer.find("c")
    assert (job.state, job.reason, job.by) == ("cancelled", "interrupted", BY.shown())


def test_it_is_too_late_once_the_end_is_decided(queue):
    put(queue, "a")
    _, task_id = take(queue)
    attempt = queue.attempt_of(task_id)
    assert attempt.settle() is None
    assert queue.interrupt(BY) == [] and not processing_interrupted()
    assert queue.cancel(["a"], BY) == {"a": "already_finished"}
    assert finish(queue, task_id)


def test_a_clients_order_counts_more_than_the_servers(queue):
    put(queue, "a")
    _, task_id = take(queue)
    queue.stop(StopOrder(TIMEOUT))
    queue.stop(StopOrder(SHUTDOWN))
    assert queue.attempt_of(task_id).stop.reason == TIMEOUT
    queue.interrupt(BY)
    queue.interrupt(Actor("10.0.0.8", "POST /interrupt"))
    order = queue.attempt_of(task_id).settle()
    assert (order.reason, order.by) == (INTERRUPTED, BY)


def test_the_owner_is_told_of_a_cancelled_prompt(queue, server):
    put(queue, "a", client_id="busy")
    put(queue, "b", client_id="busy")
    put(queue, "c", client_id="idle")
    put(queue, "d", client_id=None)
    take(queue)
    server.events.clear()
    queue.wipe_queue(BY)
    told = [(event, data["prompt_id"], sid) for event, data, sid in server.events if event != "status"]
    # For the page, an interruption is the end of what it shows: a client with a running prompt does not get it.
    assert told == [
        ("job_cancelled", "b", "busy"),
        ("job_cancelled", "c", "idle"),
        ("execution_interrupted", "c", "idle"),
    ]
    assert server.of("execution_interrupted")[0]["executed"] == []


# --- putting back --------------------------------------------------------------------------------------------


def test_what_is_put_back_keeps_its_place(queue):
    put(queue, "abc")
    _, task_id = take(queue)
    attempt = queue.attempt_of(task_id)
    assert queue.put_back(task_id, SHUTDOWN, "the server stopped")
    assert order(queue) == "abc" and queue.running_ids() == [] and attempt.over
    assert not finish(queue, task_id) and queue.history == {}
    _, again = take(queue)
    assert queue.attempt_of(again).number == 2 and queue.attempt_of(again).causes == (SHUTDOWN,)
    assert finish(queue, again)
    job = queue.observer.find("a")
    assert [(a.number, a.result, a.reason) for a in job.attempts] == [(1, "put_back", SHUTDOWN), (2, "completed", None)]


@pytest.mark.parametrize("behind, expected", [(1, "bacd"), (2, "bcad"), (9, "bcda")])
def test_a_retry_goes_behind_some_that_wait(queue, behind, expected):
    put(queue, "a", 1)
    put(queue, "bcd", 2)
    _, task_id = take(queue)
    queue.put_back(task_id, TIMEOUT, behind=behind)
    assert order(queue) == expected


def test_a_retry_never_goes_forward(queue):
    put(queue, "a", 5)
    _, task_id = take(queue)
    put(queue, "bc", 1)
    queue.put_back(task_id, TIMEOUT, behind=1)
    assert order(queue) == "bca"
