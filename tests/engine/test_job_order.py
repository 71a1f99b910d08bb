"""The jobs view kept in order: it must say what sorting everything anew would say."""

import json
import random

import pytest

from comfy_execution import jobs
from comfy_execution.job_order import JobOrder, page
from comfy_execution.prompt_queue import ExecutionStatus, PromptQueue

STATES = ("completed", "failed", "cancelled")


class Server:
    def queue_updated(self):
        pass


@pytest.fixture
def queue():
    return PromptQueue(Server())


def submit(queue, number, created, prompt_id=None):
    prompt_id = prompt_id or f"p{number}"
    queue.put((number, prompt_id, {}, {"create_time": created}, ["1"], {}))


def end(queue, task_id, state):
    events = {"completed": "execution_success", "failed": "execution_error", "cancelled": "execution_interrupted"}
    status = ExecutionStatus("success" if state == "completed" else "error", True, [(events[state], {})])
    queue.task_done(task_id, {"outputs": {}, "meta": {}}, status)


def listed(queue, states=jobs.JobStatus.ALL, descending=True, offset=0, limit=None):
    found, total = queue.jobs_by_creation(states, descending, offset, limit)
    return jobs.shown(found), total


def sorted_anew(queue, **arguments):
    return jobs.list_jobs(*queue.get_current_queue(), queue.get_history(), **arguments)


def test_it_agrees_with_sorting_everything(queue):
    dice = random.Random(5)
    times = random.Random(6).sample(range(1000), 300)
    running = []
    for step, created in enumerate(times):
        submit(queue, dice.randrange(-50, 50), created, f"p{dice.randrange(200)}")
        if dice.random() < 0.7:
            running.append(queue.get()[1])
        if running and dice.random() < 0.9:
            end(queue, running.pop(dice.randrange(len(running))), dice.choice(STATES))
        if dice.random() < 0.1:
            queue.delete_queue_items([f"p{dice.randrange(200)}"])
        if dice.random() < 0.1:
            queue.delete_history_item(f"p{dice.randrange(200)}")
        if step in (100, 200):
            (queue.wipe_queue if step == 100 else queue.wipe_history)()
        if step % 10:
            continue
        for states in (jobs.JobStatus.ALL, ("pending", "in_progress"), STATES, ("failed",)):
            for descending in (True, False):
                offset, limit = dice.randrange(5), dice.choice([None, 1, 7, 500])
                wanted = sorted_anew(queue, statuses=states, descending=descending, offset=offset, limit=limit)
                assert listed(queue, states, descending, offset, limit) == wanted


def test_a_prompt_that_runs_again_is_one_job(queue):
    for created in (1, 2):
        submit(queue, 0, created, "same")
        end(queue, queue.get()[1], "completed")
    found, total = listed(queue)
    assert total == 1 and [job["create_time"] for job in found] == [2]


def test_the_oldest_make_room(queue, monkeypatch):
    monkeypatch.setattr("comfy_execution.prompt_queue.MAXIMUM_HISTORY_SIZE", 3)
    for number in range(5):
        submit(queue, number, number)
        end(queue, queue.get()[1], "completed")
    assert [job["id"] for job in listed(queue)[0]] == ["p4", "p3", "p2"]


def test_a_history_changed_by_hand(queue):
    submit(queue, 1, 1)
    end(queue, queue.get()[1], "completed")
    submit(queue, 2, 2)
    end(queue, queue.get()[1], "failed")
    del queue.history["p1"]
    assert [job["id"] for job in listed(queue)[0]] == ["p2"]
    queue.history = {}
    assert listed(queue) == ([], 0)


@pytest.mark.parametrize("created", [None, "yesterday", float("nan"), [1]])
def test_what_is_no_time_comes_first(created):
    order = JobOrder()
    order.add("a", 5, "pending", "a")
    order.add("b", created, "pending", "b")
    found, total = page([order], ("pending",), False, 0, None)
    assert ([entry for _, entry in found], total) == (["b", "a"], 2)


def test_equal_times():
    first, second = JobOrder(), JobOrder()
    for name in ("a", "b"):
        first.add(name, 1, "pending", name)
        second.add(name, 1, "completed", name.upper())
    states = ("pending", "completed")
    assert [entry for _, entry in page([first, second], states, False, 0, None)[0]] == ["a", "b", "A", "B"]
    assert [entry for _, entry in page([first, second], states, True, 0, 3)[0]] == ["B", "A", "b"]


def test_the_listing_follows_every_change(queue):
    def listing():
        found = json.loads(queue.queue_json())
        assert queue.queue_json() is queue.queue_json(), "made once"
        return [[item[1] for item in found[key]] for key in ("queue_running", "queue_pending")]

    assert listing() == [[], []]
    for number in range(4):
        submit(queue, number, number)
        assert listing()[1] == [f"p{n}" for n in range(number + 1)]
    _, task_id = queue.get()
    assert listing() == [["p0"], ["p1", "p2", "p3"]]
    queue.delete_queue_items(["p2"])
    assert listing() == [["p0"], ["p1", "p3"]]
    queue.delete_queue_item(lambda entry: entry.prompt_id == "p1")
    assert listing() == [["p0"], ["p3"]]
    end(queue, task_id, "completed")
    assert listing() == [[], ["p3"]]
    queue.wipe_queue()
    assert listing() == [[], []]
