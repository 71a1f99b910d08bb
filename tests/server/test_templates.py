"""The template and docs packages, served from wherever they are installed (http-api.md section 11)."""

import sys

import pytest


@pytest.fixture
def packages(tmp_path_factory, monkeypatch):
    """Installed packages with a template, a thumbnail and a help page; importing them would fail."""
    site = tmp_path_factory.mktemp("site")
    for name in (
        "comfyui_workflow_templates_json/templates/index.json",
        "comfyui_workflow_templates_media_image/templates/t-1.webp",
        "comfyui_embedded_docs/docs/KSampler/en.md",
    ):
        path = site / name
        path.parent.mkdir(parents=True)
        path.write_text("{}" if name.endswith(".json") else name)
        (site / name.split("/")[0] / "__init__.py").write_text("raise ImportError('not to be imported')")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site


async def test_files_of_the_packages(packages, start):
    running = await start(ready=False)
    assert (await running.get("/templates/index.json"))[0] == 200
    status, body, headers = await running.get("/templates/t-1.webp")
    assert status == 200 and headers["Content-Type"] == "image/webp" and body.endswith(b"t-1.webp")
    assert (await running.get("/docs/KSampler/en.md"))[0] == 200
    assert (await running.get("/templates/none.json"))[:2] == (404, b"")
    assert (await running.get("/docs/KSampler"))[0] == 404


async def test_packages_that_are_not_installed(running):
    assert (await running.get("/templates/none.json"))[:2] == (404, b"")
    assert (await running.get("/docs/KSampler/en.md"))[:2] == (404, b"")
