"""Deleting a job, with its files and no others."""

import os
import time

import pytest

import folder_paths
from jobs.deletion import JobIsQueued, delete_job
from jobs.retention import Retention, Rule


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """output, temp and input of this test, in a folder that has other files."""
    for name in ("output", "temp", "input"):
        (tmp_path / name / "sub").mkdir(parents=True)
        monkeypatch.setattr(folder_paths, f"{name}_directory", str(tmp_path / name))
    (tmp_path / "secret.txt").write_text("x")
    return tmp_path


def made(folder, name):
    path = folder / name
    path.write_text("picture")
    return path


def finish(life, prompt_id, files, cached=(), written=()):
    """A job that writes some files, and names files in its outputs."""
    life.put(prompt_id)
    _, task_id = life.take()
    for path in written:
        os.utime(path, (time.time(), time.time()))  # a file system has no finer clock than a few ms
    items = [{"filename": name, "subfolder": sub, "type": kind} for kind, sub, name in files]
    messages = [["execution_start", {"timestamp": 1}], ["execution_cached", {"nodes": list(cached)}]]
    messages.append(["execution_success", {"timestamp": 2}])
    life.queue.task_done(task_id, {"outputs": {"9": {"images": items}}, "meta": {}}, ("success", True, messages))


def test_its_files_go_and_others_stay(live, folders):
    life = live()
    mine = [made(folders / "output" / "sub", "a_1.png"), made(folders / "temp", "p_1.png")]
    others = [made(folders / "output", "a_1.png"), made(folders / "input", "in.png")]
    named = [("output", "sub", "a_1.png"), ("temp", "", "p_1.png"), ("input", "", "in.png")]
    finish(life, "a", named, written=[*mine, *others])
    answer = delete_job(life.ledger, "a", outputs=True)
    assert answer == {"deleted": "a", "files": ["output/sub/a_1.png", "temp/p_1.png"]}
    assert not any(path.exists() for path in mine) and all(path.exists() for path in others)
    assert life.state("a") is None and "a" not in life.queue.history
    life.crash()
    assert live().state("a") is None


def test_files_stay_unless_asked_for(live, folders):
    life = live()
    file = made(folders / "output", "a_1.png")
    finish(life, "a", [("output", "", "a_1.png")], written=[file])
    assert delete_job(life.ledger, "a") == {"deleted": "a", "files": []}
    assert file.exists() and life.state("a") is None


@pytest.mark.parametrize(
    "kind, sub, name",
    [
        ("output", "", "../secret.txt"),
        ("output", "..", "secret.txt"),
        ("output", "sub/../..", "secret.txt"),
        ("output", "", "{base}/secret.txt"),
        ("output", "{base}", "secret.txt"),
        ("output", "", "link.txt"),
        ("output", "linked", "secret.txt"),
        ("output", "", ""),
        ("output", "", "sub"),
        ("output", "", "a\0b"),
        ("", "", "secret.txt"),
        (None, None, None),
        ("output", 5, "secret.txt"),
    ],
)
def test_nothing_outside_is_touched(live, folders, kind, sub, name):
    life = live()
    (folders / "output" / "link.txt").symlink_to(folders / "secret.txt")
    (folders / "output" / "linked").symlink_to(folders)
    sub, name = (part.format(base=folders) if isinstance(part, str) else part for part in (sub, name))
    finish(life, "a", [(kind, sub, name)], written=[folders / "secret.txt", folders / "output" / "sub"])
    assert delete_job(life.ledger, "a", outputs=True)["files"] == []
    assert (folders / "secret.txt").exists() and (folders / "output" / "link.txt").is_symlink()
    assert (folders / "output" / "sub").is_dir()


def test_what_came_from_the_cache_was_made_by_another_job(live, folders):
    life = live()
    file = made(folders / "output", "a_1.png")
    finish(life, "a", [("output", "", "a_1.png")], written=[file])
    finish(life, "b", [("output", "", "a_1.png")], cached=["9"])
    assert delete_job(life.ledger, "b", outputs=True)["files"] == [] and file.exists()
    assert delete_job(life.ledger, "a", outputs=True)["files"] == ["output/a_1.png"] and not file.exists()


def test_a_name_that_came_into_use_again(live, folders):
    life = live()
    file = made(folders / "output", "a_1.png")
    finish(life, "a", [("output", "", "a_1.png")], written=[file])
    os.utime(file, (time.time() + 60, time.time() + 60))  # written by somebody later on
    assert delete_job(life.ledger, "a", outputs=True)["files"] == [] and file.exists()


@pytest.mark.parametrize("milliseconds", [2, 50, 1500])
def test_a_file_that_a_job_only_shows_is_not_its_own(live, folders, milliseconds):
    """The job before wrote it, or somebody did by hand, a moment before; or the next one, a moment after."""
    life = live()
    before, after = made(folders / "output", "before.png"), made(folders / "output", "after.png")
    mine = made(folders / "output", "mine.png")
    finish(life, "a", [("output", "", path.name) for path in (before, mine, after)], written=[mine])
    (attempt,) = life.ledger.find("a").attempts
    for path, at in ((before, attempt.started - milliseconds), (after, attempt.ended + milliseconds)):
        os.utime(path, (at / 1e3, at / 1e3))
    assert delete_job(life.ledger, "a", outputs=True)["files"] == ["output/mine.png"]
    assert before.exists() and after.exists() and not mine.exists()


def test_what_has_not_ended_is_not_deleted(live):
    life = live()
    life.put("a")
    life.put("b")
    life.take()
    for prompt_id in "ab":
        with pytest.raises(JobIsQueued, match=prompt_id):
            delete_job(life.ledger, prompt_id)
    assert delete_job(life.ledger, "unknown") is None
    assert [life.state(i) for i in "ab"] == ["in_progress", "pending"]


def test_a_job_cancelled_before_it_ran(live):
    life = live()
    life.put("a")
    life.queue.delete_queue_items(["a"])
    assert delete_job(life.ledger, "a", outputs=True) == {"deleted": "a", "files": []}
    assert life.state("a") is None


@pytest.fixture
def retried_meanwhile(live, monkeypatch):
    """A job, and what makes a method of something look at it, and somebody retry it before it goes on."""

    def prepare(thing, method, **options):
        life = live(**options)
        life.run("a", "failed")
        real = getattr(thing(life), method)

        def look(*arguments):
            found = real(*arguments)
            monkeypatch.undo()
            life.queue.run_again(life.ledger.entry("a"))
            return found

        monkeypatch.setattr(thing(life), method, look)
        return life

    return prepare


def still_waits(life, live):
    assert life.waiting() == ["a"] and life.state("a") == "pending"
    life.crash()
    again = live()
    assert again.waiting() == ["a"] and again.ledger.find("a").attempts[0].result == "failed"


def test_a_job_that_is_retried_while_it_is_deleted_is_not_lost(live, retried_meanwhile):
    life = retried_meanwhile(lambda life: life.ledger, "find")
    with pytest.raises(JobIsQueued):
        delete_job(life.ledger, "a")
    still_waits(life, live)


def test_a_job_that_is_deleted_while_somebody_looks_it_up_is_gone(live, monkeypatch):
    first = live()
    first.run("a", "failed")
    first.crash()
    life = live()  # which does not have it at hand
    store, real = life.ledger.store, life.ledger.store.job

    def look(prompt_id):
        found = real(prompt_id)
        monkeypatch.undo()
        life.ledger.forget([prompt_id])
        return found

    monkeypatch.setattr(store, "job", look)
    assert life.ledger.find("a") is None and life.ledger.remembered("a") is None


def test_a_job_that_is_retried_while_old_ones_are_cleared_away_is_not_lost(live, retried_meanwhile):
    life = retried_meanwhile(lambda life: life.ledger.store, "outdated", retention=Retention(Rule(count=0)))
    life.ledger.prune()
    still_waits(life, live)
