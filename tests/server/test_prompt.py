"""POST /prompt: what is refused, and how (http-api.md section 2, reference-quirks.md)."""

import asyncio
import json
import uuid

import pytest

from routes.prompt_body import is_canonical_uuid, new_prompt_id


def text_prompt(text="x", **inputs):
    return {"1": {"class_type": "Text", "inputs": {"text": text, **inputs}}}


def good(**changes) -> bytes:
    return json.dumps({"prompt": text_prompt(), **changes}).encode()


BAD_BODIES = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"\xff\xfe\x00", "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b"null", "invalid_request"),
    (b"5", "invalid_request"),
    (b'"x"', "invalid_request"),
    (b"[]", "no_prompt"),
    (b"{}", "no_prompt"),
    (b'{"prompt": null}', "invalid_prompt"),
    (b'{"prompt": []}', "invalid_prompt"),
    (b'{"prompt": "x"}', "invalid_prompt"),
    (b'{"prompt": {"1": 5}}', "invalid_prompt"),
    (b'{"prompt": {"1": [1]}}', "invalid_prompt"),
    (b'{"prompt": {"1": {"class_type": "Text", "inputs": []}}}', "invalid_prompt"),
    (b'{"prompt": {"1": {"class_type": "Text", "inputs": {}, "_meta": 5}}}', "invalid_prompt"),
    (b'{"prompt": {"1": {"class_type": ["Text"], "inputs": {}}}}', "missing_node_type"),
    (b'{"prompt": {"nodes": [], "links": [], "version": 0.4}}', "invalid_prompt"),
    (good(number="abc"), "invalid_number"),
    (good(number=None), "invalid_number"),
    (good(number=[1]), "invalid_number"),
    (good(number=float("nan")), "invalid_number"),
    (good(number=float("inf")), "invalid_number"),
    (good(number=10**400), "invalid_number"),
    (good(extra_data={"timeout": 10**400}), "invalid_timeout"),
    (b'{"prompt": {"1": {"class_type": %s}}}' % (b"[" * 300 + b"]" * 300), "invalid_json"),
    (good(extra_data=None), "invalid_extra_data"),
    (good(extra_data=[]), "invalid_extra_data"),
    (good(extra_data="x"), "invalid_extra_data"),
    (good(extra_data={"extra_pnginfo": 5}), "invalid_extra_data"),
    (good(client_id=["x"]), "invalid_client_id"),
    (good(client_id={}), "invalid_client_id"),
    (good(client_id=5), "invalid_client_id"),
    (good(extra_data={"client_id": ["x"]}), "invalid_client_id"),
    (good(partial_execution_targets="12"), "invalid_targets"),
    (good(partial_execution_targets=[1]), "invalid_targets"),
    (good(prompt_id=str(uuid.UUID(int=1)).upper() + "X"), "invalid_prompt_id"),
]


@pytest.mark.parametrize("body, kind", BAD_BODIES)
async def test_bad_bodies_are_refused_in_the_documented_shape(running, body, kind):
    status, answer, _ = await running.post("/prompt", data=body)
    assert status == 400
    assert set(answer) == {"error", "node_errors"} and answer["node_errors"] == {}
    assert set(answer["error"]) == {"type", "message", "details", "extra_info"}
    assert answer["error"]["type"] == kind
    assert running.server.prompt_queue.get_tasks_remaining() == 0


async def test_editor_format_is_named_as_such(running):
    _, answer, _ = await running.post("/prompt", json={"prompt": {"nodes": [], "links": []}})
    assert "API format" in answer["error"]["message"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream"]
)
async def test_content_type_does_not_matter(running, content_type):
    status, _, _ = await running.post("/prompt", data=good(), headers={"Content-Type": content_type})
    assert status == 200


async def test_byte_order_mark_passes(running):
    assert (await running.post("/prompt", data=b"\xef\xbb\xbf" + good()))[0] == 200


async def test_accepted_prompt_counts_before_the_answer(running):
    status, answer, _ = await running.post("/prompt", data=good(client_id="me"))
    assert status == 200 and answer["number"] == 0 and answer["node_errors"] == {}
    assert (await running.get("/prompt"))[1] == {"exec_info": {"queue_remaining": 1}}
    ((number, prompt_id, graph, extra, outputs),) = (await running.get("/queue"))[1]["queue_pending"]
    assert (number, prompt_id, graph, outputs) == (0, answer["prompt_id"], text_prompt(), ["1"])
    assert extra["client_id"] == "me" and "create_time" in extra


async def test_nan_in_extra_data_becomes_null_in_every_answer(running):
    await running.post("/prompt", data=good(extra_data={"x": float("nan")}))
    assert (await running.get("/queue"))[1]["queue_pending"][0][3]["x"] is None


@pytest.mark.parametrize("pnginfo", [None, {"workflow": None}, {"workflow": {"id": "w"}}, {"workflow": []}])
async def test_odd_workflow_info_breaks_no_listing(running, pnginfo):
    assert (await running.post("/prompt", data=good(extra_data={"extra_pnginfo": pnginfo})))[0] == 200
    status, answer, _ = await running.get("/api/jobs")
    assert status == 200 and len(answer["jobs"]) == 1
    assert (await running.get("/api/jobs/" + answer["jobs"][0]["id"]))[0] == 200


async def test_the_same_body_twice_is_one_prompt(running):
    ident = str(uuid.uuid4())
    first = await running.post("/prompt", data=good(prompt_id=ident))
    again = await running.post("/prompt", data=good(prompt_id=ident))
    assert again[:2] == first[:2] and first[0] == 200
    assert len(running.server.prompt_queue.queue) == 1


async def test_another_body_with_the_id_of_a_queued_prompt_is_a_conflict(running):
    ident = str(uuid.uuid4())
    assert (await running.post("/prompt", data=good(prompt_id=ident, number=1)))[0] == 200
    status, answer, _ = await running.post("/prompt", data=good(prompt_id=ident, number=2))
    assert status == 409 and answer["error"]["type"] == "prompt_id_conflict" and ident in answer["error"]["message"]
    assert [entry.number for entry in running.server.prompt_queue.queue] == [1]


async def test_secrets_are_in_no_answer(running):
    secrets = {"auth_token_comfy_org": "hush-1", "api_key_comfy_org": "hush-2"}
    await running.post("/prompt", data=good(extra_data={**secrets, "kept": 1}))
    for path in ("/queue", "/api/jobs"):
        assert "hush" not in json.dumps((await running.get(path))[1])
    entry, task = running.server.prompt_queue.get()
    assert entry.secrets == secrets
    running.server.prompt_queue.finish(task, {"outputs": {}, "meta": {}}, ("success", True, []))
    history = (await running.get("/history"))[1]
    assert "hush" not in json.dumps(history) and history[entry.prompt_id]["prompt"][3]["kept"] == 1


async def test_private_keys_reach_nodes_and_are_in_no_answer(start, flags):
    flags(private_extra_data=["*_key", "Token*"])
    running = await start()
    extra = {"OPENAI_KEY": "secret1", "token_x": "secret2", "note": "shown", "preview_method": "none"}
    request = {"prompt": text_prompt(), "extra_data": extra, "client_id": "c"}
    assert (await running.post("/prompt", json=request))[0] == 200
    (entry,) = running.server.prompt_queue.queue
    assert entry.secrets == {"OPENAI_KEY": "secret1", "token_x": "secret2"}
    assert entry.extra_data.keys() == {"note", "preview_method", "client_id", "create_time"}
    for path in ("/queue", "/api/jobs", f"/api/jobs/{entry.prompt_id}"):
        body = str((await running.get(path))[1])
        assert "secret" not in body and entry.prompt_id in body
    flags(private_extra_data=["*"])
    await running.post("/prompt", json=request)
    assert running.server.prompt_queue.queue[-1].extra_data.keys() == {"preview_method", "client_id", "create_time"}


async def test_a_prompt_may_run_once_its_id_has_been_told(running, monkeypatch):
    stored = asyncio.Event()
    monkeypatch.setattr(running.server.jobs, "stored", stored.wait)
    posting = asyncio.create_task(running.post("/prompt", json={"prompt": text_prompt()}))
    while not running.server.prompt_queue.queue:
        await asyncio.sleep(0.005)
    (entry,) = running.server.prompt_queue.queue
    await asyncio.sleep(0.05)
    assert not entry.answered.is_set() and not posting.done()
    stored.set()
    assert (await posting)[0] == 200 and entry.answered.is_set()


def test_made_up_ids_are_uuids_and_differ():
    ids = [new_prompt_id() for _ in range(2000)]
    assert len(set(ids)) == 2000 and all(is_canonical_uuid(ident) for ident in ids)
    assert {uuid.UUID(ident).version for ident in ids} == {4}


async def test_failing_prompt_handlers_are_skipped(running):
    def broken(body):
        raise RuntimeError("no")

    def rename(body):
        body["prompt"]["1"]["inputs"]["text"] = "changed"
        return body

    running.server.add_on_prompt_handler(broken)
    running.server.add_on_prompt_handler(lambda body: None)
    running.server.add_on_prompt_handler(rename)
    await running.post("/prompt", data=good())
    assert (await running.get("/queue"))[1]["queue_pending"][0][2]["1"]["inputs"]["text"] == "changed"


async def test_replaced_class_needs_no_meta_and_keeps_inputs_without_a_mapping(running):
    from gateway.node_replacements import Replacement

    running.server.node_replace_manager.register(Replacement("Text", "Old Text"))
    status, _answer, _ = await running.post(
        "/prompt", json={"prompt": {"1": {"class_type": "Old Text", "inputs": {"text": "x"}}}}
    )
    assert status == 200
    assert (await running.get("/queue"))[1]["queue_pending"][0][2]["1"]["class_type"] == "Text"


async def test_replacement_renames_inputs_and_moves_outputs():
    from gateway.node_replacements import NodeReplaceManager, Replacement

    manager = NodeReplaceManager()
    manager.register(
        Replacement(
            "New",
            "Old",
            input_mapping=[{"new_id": "b", "old_id": "a"}, {"new_id": "mode", "set_value": "fast"}],
            output_mapping=[{"old_idx": 0, "new_idx": 2}],
        )
    )
    prompt = {
        "1": {"class_type": "Old", "inputs": {"a": 5, "dropped": 1}},
        "2": {"class_type": "Text", "inputs": {"text": ["1", 0], "other": ["1", 1], "list": [1, 2, 3]}},
    }
    manager.apply_replacements(prompt, {"New", "Text"})
    assert prompt["1"] == {"class_type": "New", "inputs": {"b": 5, "mode": "fast"}}
    assert prompt["2"]["inputs"] == {"text": ["1", 2], "other": ["1", 1], "list": [1, 2, 3]}


async def test_installed_or_unreplaceable_classes_are_left_alone():
    from gateway.node_replacements import NodeReplaceManager

    manager = NodeReplaceManager()
    prompt = {"1": {"class_type": "ImageBatch", "inputs": {}}, "2": {"class_type": "Unknown", "inputs": {}}}
    manager.apply_replacements(prompt, {"ImageBatch", "BatchImagesNode"})
    assert [n["class_type"] for n in prompt.values()] == ["ImageBatch", "Unknown"]
    manager.apply_replacements(prompt, set())
    assert [n["class_type"] for n in prompt.values()] == ["ImageBatch", "Unknown"]


async def test_refused_prompt_burns_a_number_only(running):
    await running.post("/prompt", json={"prompt": {}})
    assert (await running.post("/prompt", data=good()))[1]["number"] == 1
    assert (await running.post("/prompt", data=good(front=True)))[1]["number"] == -2
    assert (await running.post("/prompt", data=good(number="6.5")))[1]["number"] == 6.5
    assert (await running.post("/prompt", data=good()))[1]["number"] == 3


async def test_body_over_the_limit(start, flags):
    flags(max_upload_size=0.001)
    running = await start()
    assert (await running.post("/prompt", data=b" " * 2000))[0] == 413


async def test_forcing_is_checked_and_kept_with_the_prompt(running):
    for force, kept in ((True, True), (["1"], ["1"]), (False, None), (None, None), ([], None)):
        status, answer, _ = await running.post("/prompt", json={"prompt": text_prompt(), "force": force})
        assert status == 200
        (entry,) = [e for e in running.server.prompt_queue.queue if e.prompt_id == answer["prompt_id"]]
        assert entry.extra_data.get("force") == kept
    for force in ("yes", 1, {}, [1], ["nope"]):
        status, answer, _ = await running.post("/prompt", json={"prompt": text_prompt(), "force": force})
        assert status == 400 and answer["error"]["type"] == "invalid_force"


def raising(prompt_id, prompt, targets):
    raise RuntimeError("no time")


@pytest.mark.parametrize(
    "replacement",
    [
        raising,
        lambda prompt: None,
        lambda *args: None,
        lambda *args: (True, None),
        lambda *args: (True, None, 5, {}),
        5,
    ],
)
async def test_a_pack_that_replaces_the_check_by_something_unfit(running, monkeypatch, replacement):
    import execution

    monkeypatch.setattr(execution, "validate_prompt", replacement)
    status, answer, _ = await running.post("/prompt", json={"prompt": text_prompt()})
    assert status == 400 and answer["error"]["type"] == "validation_failed" and answer["node_errors"] == {}
    assert answer["error"]["message"] and (await running.get("/prompt"))[1]["exec_info"]["queue_remaining"] == 0


async def test_a_pack_may_replace_the_check_by_a_plain_function(running, monkeypatch):
    import execution

    monkeypatch.setattr(execution, "validate_prompt", lambda prompt_id, prompt, targets: (True, None, ["1"], {}))
    assert (await running.post("/prompt", json={"prompt": text_prompt()}))[0] == 200


async def test_a_full_queue_refuses_until_there_is_room(start, flags):
    flags(max_queue=2)
    running = await start()
    ids = [(await running.post("/prompt", json={"prompt": text_prompt()}))[1]["prompt_id"] for _ in range(2)]
    status, answer, headers = await running.post("/prompt", json={"prompt": text_prompt()})
    assert status == 429 and int(headers["Retry-After"]) > 0
    assert answer["error"]["type"] == "queue_full" and answer["node_errors"] == {}
    await running.post("/queue", json={"delete": ids[:1]})
    assert (await running.post("/prompt", json={"prompt": text_prompt()}))[0] == 200
    running.server.prompt_queue.get()
    assert (await running.post("/prompt", json={"prompt": text_prompt()}))[0] == 200


async def test_a_full_queue_still_answers_a_body_that_it_knows(running, flags):
    flags(max_queue=1)
    known = good(prompt_id=str(uuid.uuid4()))
    first = await running.post("/prompt", data=known)
    assert first[0] == 200 and (await running.post("/prompt", data=good()))[0] == 429
    assert (await running.post("/prompt", data=known))[:2] == first[:2]


async def test_a_queue_of_large_prompts_refuses_by_size(start, flags):
    flags(max_queue_size=0.1)
    running = await start()
    body = {"prompt": text_prompt("x" * 60_000)}
    assert (await running.post("/prompt", json=body))[0] == 200
    assert (await running.post("/prompt", json=body))[0] == 429
    assert (await running.post("/prompt", json={"prompt": text_prompt()}))[0] == 200
    await running.post("/queue", json={"clear": True})
    assert running.server.prompt_queue.get_pending() == (0, 0)
    assert (await running.post("/prompt", json=body))[0] == 200


async def test_without_limits_the_queue_takes_everything(running):
    for _ in range(300):
        assert (await running.post("/prompt", json={"prompt": text_prompt("x" * 1000)}))[0] == 200
    waiting, size = running.server.prompt_queue.get_pending()
    assert waiting == 300 and size > 300_000
