"""The jobs view of queue and history."""

import pytest

from comfy_execution import jobs


def entry(prompt_id="a", number=1, outputs=None, status="success", messages=(), **extra):
    start = ["execution_start", {"prompt_id": prompt_id, "timestamp": 100}]
    return {
        "prompt": [number, prompt_id, {"1": {}}, extra, ["1"]],
        "outputs": outputs or {},
        "status": {"status_str": status, "completed": status == "success", "messages": [start, *messages]},
        "meta": {},
    }


def test_finished_job():
    error = {"exception_type": "ValueError", "timestamp": 250}
    failed = entry(status="error", messages=[["execution_error", error]], create_time=50,
                   extra_pnginfo={"workflow": {"id": "w"}})  # fmt: skip
    assert jobs.finished_job(failed) == {
        "id": "a", "status": "failed", "priority": 1, "create_time": 50, "execution_start_time": 100,
        "execution_end_time": 250, "execution_error": error, "outputs_count": 0, "previewable_outputs_count": 0,
        "workflow_id": "w",
    }  # fmt: skip
    stopped = entry(status="error", messages=[["execution_interrupted", {"timestamp": 5}]])
    assert jobs.finished_job(stopped)["status"] == "cancelled" and "execution_error" not in jobs.finished_job(stopped)
    detailed = jobs.finished_job(entry(), detailed=True)
    assert detailed["workflow"] == {"prompt": {"1": {}}, "extra_data": {}} and detailed["outputs"] == {}
    assert detailed["execution_status"]["status_str"] == "success"


def test_queued_job():
    job = jobs.queued_job((3, "a", {}, {"create_time": 9}, ["1"], {}), jobs.PENDING)
    assert job == {"id": "a", "status": "pending", "priority": 3, "create_time": 9, "outputs_count": 0,
                   "previewable_outputs_count": 0}  # fmt: skip


@pytest.mark.parametrize(
    "extra", [{"extra_pnginfo": None}, {"extra_pnginfo": {"workflow": None}}, {"extra_pnginfo": 5}]
)
def test_odd_extra_data(extra):
    assert "workflow_id" not in jobs.finished_job(entry(**extra))


FILE = {"filename": "a.png", "subfolder": "", "type": "temp"}
SAVED = {"filename": "b.png", "subfolder": "s", "type": "output"}


@pytest.mark.parametrize(
    "ui, count, previewable, preview",
    [
        ({"images": [FILE, SAVED], "animated": [False]}, 2, 2, {**SAVED, "nodeId": "1", "mediaType": "images"}),
        ({"images": [FILE]}, 1, 1, {**FILE, "nodeId": "1", "mediaType": "images"}),
        ({"latents": [SAVED]}, 1, 0, None),
        ({"gifs": [{**SAVED, "format": "video/mp4"}]}, 1, 1,
         {**SAVED, "format": "video/mp4", "nodeId": "1", "mediaType": "gifs"}),
        ({"result": ["m.GLB", None, "plain"]}, 1, 1,
         {"filename": "m.GLB", "type": "output", "subfolder": "", "mediaType": "3d", "nodeId": "1"}),
        ({"text": ["hello"]}, 0, 0, {"content": "hello", "nodeId": "1", "mediaType": "text"}),
        ({"text": ["x" * 2000]}, 0, 0, {"content": "x" * 1024, "truncated": True, "nodeId": "1", "mediaType": "text"}),
        ({"files": [{"filename": "n.md"}], "text": ["t"]}, 1, 1,
         {"filename": "n.md", "nodeId": "1", "mediaType": "files"}),
        ({"odd": 5, "other": {"a": 1}}, 0, 0, None),
    ],
)  # fmt: skip
def test_summaries(ui, count, previewable, preview):
    assert jobs.summarize({"1": ui}) == (count, previewable, preview)


def test_normalized_outputs():
    assert jobs.normalize_outputs({"1": {"result": ["m.glb", None, "x"], "animated": [True], "n": 5}}) == {
        "1": {"result": [{"filename": "m.glb", "type": "output", "subfolder": "", "mediaType": "3d"}, "x"],
              "animated": [True], "n": 5}
    }  # fmt: skip
