"""The queue: order, deletion, history, flags."""

import json
import threading

import pytest
from engine_kit import wait_for

from comfy.interrupt import interrupt_current_processing, processing_interrupted
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue


@pytest.fixture
def queue(server):
    return PromptQueue(server)


def item(number, prompt_id, prompt=None, **extra):
    return (number, prompt_id, prompt or {}, extra, ["1"], {"api_key_comfy_org": "secret"})


def take(queue):
    entry, task_id = queue.get(0)
    return entry.prompt_id, task_id


def finish(queue, task_id):
    queue.task_done(task_id, {"outputs": {}, "meta": {}}, ExecutionStatus("success", True, []))


def run_all(queue):
    order = []
    while (task := queue.get(0)) is not None:
        order.append(task[0].prompt_id)
        finish(queue, task[1])
    return order


def test_lower_numbers_run_first(queue):
    for number, prompt_id in ((3, "c"), (-1, "front"), (0.5, "a"), (1, "b")):
        queue.put(item(number, prompt_id))
    assert run_all(queue) == ["front", "a", "b", "c"]


def test_equal_numbers_run_in_the_order_of_arrival(queue):
    ids = ["z", "b", "a", "y"]
    for prompt_id in ids:
        queue.put(item(5, prompt_id))
    assert [entry.prompt_id for entry in queue.get_current_queue()[1]] == ids
    assert run_all(queue) == ids


def test_same_id_and_number_twice(queue):
    queue.put(item(1, "a", {"1": {}}))
    queue.put(item(1, "a", {"2": {}}))
    assert run_all(queue) == ["a", "a"]
    assert list(queue.history["a"]["prompt"][2]) == ["2"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_must_be_finite(queue, number):
    with pytest.raises(ValueError, match="finite"):
        queue.put(item(number, "a"))
    assert queue.get_tasks_remaining() == 0


def test_get_waits_until_something_comes(queue):
    got = []
    thread = threading.Thread(target=lambda: got.append(queue.get(20)))
    thread.start()
    queue.put(item(1, "a"))
    thread.join(20)
    assert got[0][0].prompt_id == "a"


def test_get_gives_up(queue):
    assert queue.get(0.01) is None


def test_taking_clears_the_interrupt_flag(queue):
    interrupt_current_processing()
    queue.put(item(1, "a"))
    queue.get(0)
    assert not processing_interrupted()


def test_delete_by_id(queue):
    for prompt_id in "abcb":
        queue.put(item(1, prompt_id))
    assert queue.delete_queue_items(["b", "unknown"]) == {"b"}
    assert not queue.knows("b")
    assert run_all(queue) == ["a", "c"]


def test_delete_does_not_touch_the_running_prompt(queue):
    queue.put(item(1, "a"))
    take(queue)
    assert queue.delete_queue_items(["a"]) == set()
    assert queue.running_ids() == ["a"]


def test_delete_by_function_takes_the_first(queue):
    for prompt_id in "abc":
        queue.put(item(1, prompt_id))
    assert queue.delete_queue_item(lambda entry: entry[1] in "bc")
    assert not queue.delete_queue_item(lambda entry: entry[1] == "x")
    assert run_all(queue) == ["a", "c"]


def test_many_deletions_leave_no_rubbish(queue):
    for number in range(1000):
        queue.put(item(number, str(number)))
    queue.delete_queue_items([str(number) for number in range(990)])
    assert len(queue._line._heap) < 100
    assert len(run_all(queue)) == 10


def test_wipe_keeps_what_runs(queue):
    for prompt_id in "abc":
        queue.put(item(1, prompt_id))
    take(queue)
    queue.wipe_queue()
    assert queue.get_tasks_remaining() == 1
    queue.put(item(1, "b"))
    assert take(queue)[0] == "b"


def test_status_is_announced_with_the_right_count(queue, server):
    queue.put(item(1, "a"))
    queue.put(item(2, "b"))
    _, task_id = take(queue)
    queue.delete_queue_items(["b"])
    finish(queue, task_id)
    assert server.of("status") == [1, 2, 2, 1, 0]


def test_listing_shows_five_elements_and_no_secret(queue):
    queue.put(item(1, "a", {"1": {"x": float("nan")}}))
    queue.put(item(2, "b"))
    take(queue)
    shown = json.loads(queue.queue_json())
    assert [len(entry) for entry in (*shown["queue_running"], *shown["queue_pending"])] == [5, 5]
    assert shown["queue_running"][0] == [1, "a", {"1": {"x": None}}, {}, ["1"]]
    assert b"secret" not in queue.queue_json()


def test_listing_is_not_changed_by_who_changes_the_prompt(queue):
    prompt = {"1": {"inputs": {"a": 1}}}
    queue.put(item(1, "a", prompt))
    _, task_id = take(queue)
    prompt["1"]["inputs"]["a"] = 2
    finish(queue, task_id)
    assert json.loads(queue.history_json("a"))["a"]["prompt"][2] == {"1": {"inputs": {"a": 1}}}


def test_finishing_is_one_step(queue):
    """Whoever looks finds a prompt either running or in the history."""
    queue.put(item(1, "a"))
    _, task_id = take(queue)
    seen = []

    def look():
        while not seen or seen[-1] != (False, True):
            with queue.mutex:
                seen.append((queue.knows("a"), "a" in queue.history))

    thread = threading.Thread(target=look)
    thread.start()
    wait_for(lambda: seen)
    finish(queue, task_id)
    thread.join(20)
    assert set(seen) == {(True, False), (False, True)}


def test_history_entry(queue):
    queue.put(item(1, "a", {"1": {}}, create_time=5))
    _, task_id = take(queue)
    messages = [["execution_start", {"prompt_id": "a"}]]
    queue.task_done(task_id, {"outputs": {"1": {"x": [1]}}, "meta": {}}, ExecutionStatus("error", False, messages))
    assert queue.get_history("a") == {
        "a": {
            "prompt": [1, "a", {"1": {}}, {"create_time": 5}, ["1"]],
            "outputs": {"1": {"x": [1]}},
            "status": {"status_str": "error", "completed": False, "messages": messages},
            "meta": {},
        }
    }
    assert json.loads(queue.history_json("a")) == queue.get_history("a")
    assert queue.get_history("b") == {} and queue.history_json("b") == b"{}"


@pytest.mark.parametrize(
    "max_items, offset, expected",
    [
        (None, -1, "abcde"),
        (2, -1, "de"),
        (50, -1, "abcde"),
        (0, -1, ""),
        (2, 0, "ab"),
        (2, 3, "de"),
        (None, 3, "de"),
        (None, 50, ""),
    ],
)
def test_history_window(queue, max_items, offset, expected):
    for prompt_id in "abcde":
        queue.put(item(1, prompt_id))
    run_all(queue)
    assert "".join(queue.get_history(max_items=max_items, offset=offset)) == expected
    assert "".join(json.loads(queue.history_json(max_items=max_items, offset=offset))) == expected


def test_history_is_bounded_and_the_oldest_go(queue):
    queue.history.limit = 3
    for number in range(5):
        queue.put(item(number, str(number)))
    run_all(queue)
    assert list(queue.history) == ["2", "3", "4"]
    queue.delete_history_item("3")
    queue.delete_history_item("unknown")
    assert list(queue.history) == ["2", "4"]
    queue.wipe_history()
    assert queue.history == {}


def test_running_an_id_again_makes_it_the_newest(queue):
    for prompt_id in "aba":
        queue.put(item(1, prompt_id))
    run_all(queue)
    assert list(queue.history) == ["b", "a"]


def test_map_function(queue):
    queue.put(item(1, "a"))
    run_all(queue)
    assert queue.get_history(map_function=lambda entry: entry["prompt"][1]) == {"a": "a"}


def test_flags_wake_an_idle_worker_and_are_read_once(queue):
    queue.set_flag("free_memory", True)
    assert queue.get(20) is None
    assert queue.get_flags(reset=False) == {"free_memory": True}
    assert queue.get_flags() == {"free_memory": True}
    assert queue.get_flags() == {}


def test_huge_numbers_in_a_prompt(queue):
    queue.put(item(1, "a", {"1": {"inputs": {"x": 10**30}}}))
    assert json.loads(queue.queue_json())["queue_pending"][0][2]["1"]["inputs"]["x"] == 10**30
