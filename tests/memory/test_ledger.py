"""The ledger from a file on disk to GET /memory."""

import pytest
import torch

import comfy.model_management
import comfy.sd
import folder_paths
from comfy import ledger
from comfy.ledger import Counters, totals
from comfy.weights import source_of
from tests.memory.conftest import PAPER
from tests.networks.checkpoints import write


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoints" / "old"
    folder.mkdir(parents=True)
    monkeypatch.setitem(
        folder_paths.folder_names_and_paths, "checkpoints", ([str(tmp_path / "checkpoints")], {".safetensors"})
    )
    return write(folder / "small.safetensors")


def entry(report: dict, device: torch.device) -> dict:
    return next(found for found in report["devices"] if found["device"] == str(device))


def test_from_the_file_to_the_report(device, checkpoint):
    before = totals()
    options = {"load_device": PAPER, "offload_device": torch.device("cpu")}
    model, clip, vae, _ = comfy.sd.load_checkpoint_guess_config(checkpoint, model_options=options)
    read = totals() - before
    assert read.disk_reads == 1 and read.disk_bytes > 100_000
    assert {m.weights_file for m in (model.model, clip.cond_stage_model, vae.first_stage_model)} == {checkpoint}
    comfy.model_management.load_models_gpu([model])
    comfy.model_management.load_models_gpu([model])
    comfy.model_management.unload_all_models("a test")
    comfy.model_management.load_models_gpu([model])
    found = entry(ledger.report(), PAPER)
    shown = next(m for m in found["models"] if m["file"] == "old/small.safetensors")
    assert shown["name"] == "BaseModel (UNetModel)"
    assert shown["bytes"] == shown["loaded_bytes"] == model.model_size()
    assert (shown["loads"], shown["evictions"], shown["evicted_by"]) == (2, 1, "a test")
    assert [(e["event"], e["by"]) for e in found["events"] if e["file"] == shown["file"]][-3:] == [
        ("load", None),
        ("evict", "a test"),
        ("load", None),
    ]
    assert found["total"] == device.size and found["loaded_bytes"] >= shown["bytes"]


def test_who_evicted_whom(device, unet):
    from torch import nn

    import comfy.ops
    from comfy.model_patcher import ModelPatcher

    class Guest(nn.Sequential):
        pass

    guest = ModelPatcher(Guest(comfy.ops.manual_cast.Linear(256, 256)), PAPER, torch.device("cpu"))
    comfy.model_management.load_models_gpu([unet])
    device.size = device.used
    comfy.model_management.load_models_gpu([guest], memory_required=device.size * 0.9)
    assert ledger.ledger_of(PAPER).record(unet.model).evicted_by == "Guest"


def test_a_prompt_with_the_same_files_reads_and_moves_nothing(device, checkpoint, tmp_path):
    """What the second of two equal prompts does: its loader is cached, its model is there."""
    options = {"load_device": PAPER, "offload_device": torch.device("cpu")}
    model, *_ = comfy.sd.load_checkpoint_guess_config(checkpoint, model_options=options)
    comfy.model_management.load_models_gpu([model])
    before = totals()
    comfy.model_management.load_models_gpu([model.clone()])
    assert totals() - before == Counters()


def test_tensors_know_their_file(checkpoint):
    sd = comfy.utils.load_torch_file(checkpoint)
    assert source_of(sd.values()) == checkpoint and source_of([torch.zeros(1)]) is None


def test_the_report_has_the_promised_shape(device, unet):
    import jsonschema

    from gateway.openapi_schemas import SCHEMAS

    comfy.model_management.load_models_gpu([unet])
    jsonschema.validate(ledger.report(), SCHEMAS["Memory"])
