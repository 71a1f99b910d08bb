"""Folders within limits of age and size."""

import os
import time

import pytest

from gateway import file_retention
from gateway.file_retention import Janitor, Limits, trim

HOUR = 3600


@pytest.fixture
def folder(tmp_path):
    """Files a … e of 100 bytes, written 1 … 5 hours ago, c in a folder below."""
    (tmp_path / "sub").mkdir()
    for hours, name in enumerate(("a", "b", "sub/c", "d", "e"), 1):
        write(tmp_path / name, hours)
    return tmp_path


def write(path, hours: float, size: int = 100) -> None:
    path.write_bytes(bytes(size))
    moment = time.time() - hours * HOUR
    os.utime(path, (moment, moment))


def left(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "text, limits",
    [
        ("30d", Limits(age=30 * 86_400)),
        ("12h", Limits(age=12 * HOUR)),
        ("1.5GB", Limits(size=1.5e9)),
        ("2w,500mb", Limits(age=1_209_600, size=500e6)),
        ("1TB, 90m", Limits(age=5400, size=1e12)),
    ],
)
def test_spellings(text, limits):
    assert Limits.read(text) == limits


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1x", "1d,", "1d;2GB", "lots"])
def test_other_spellings_are_refused(text, capsys):
    from comfy import cli_args

    with pytest.raises(ValueError, match="is no age"):
        Limits.read(text)
    with pytest.raises(SystemExit):
        cli_args.parser.parse_args(["--keep-output=" + text])
    assert "--keep-output" in capsys.readouterr().err


@pytest.mark.parametrize(
    "limits, kept",
    [
        (Limits(), ["a", "b", "d", "e", "sub/c"]),
        (Limits(age=3.5 * HOUR), ["a", "b", "sub/c"]),
        (Limits(size=250), ["a", "b"]),
        (Limits(size=500), ["a", "b", "d", "e", "sub/c"]),
        (Limits(age=4.5 * HOUR, size=399), ["a", "b", "sub/c"]),
        (Limits(age=0), []),
        (Limits(size=0), []),
    ],
)
def test_the_oldest_go(folder, limits, kept):
    gone = []
    assert trim(str(folder), limits, gone.append) == 5 - len(kept) == len(gone)
    assert left(folder) == kept and (folder / "sub").is_dir()


def test_new_hidden_and_linked_files_stay(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    write(outside / "x", 9)
    write(folder / ".mark", 9)
    write(folder / "new", 0, 10_000)
    (folder / "link").symlink_to(outside / "x")
    (folder / "linked").symlink_to(outside)
    trim(str(folder), Limits(age=0, size=0))
    assert set(os.listdir(folder)) == {".mark", "new", "link", "linked", "sub"} and (outside / "x").exists()


def test_a_file_that_cannot_be_deleted_does_not_stop_the_rest(folder, monkeypatch):
    remove = os.remove

    def reluctant(path):
        if path.endswith("e"):
            raise PermissionError(13, "Permission denied")
        remove(path)

    monkeypatch.setattr(os, "remove", reluctant)
    assert trim(str(folder), Limits(age=2.5 * HOUR)) == 2 and left(folder) == ["a", "b", "e"]


def test_the_janitor_looks_at_once_and_again_until_it_stops(folder, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(file_retention, "EVERY", 0.01)
    gone = []
    janitor = Janitor({str(folder): Limits(size=250), str(folder / "none"): Limits(age=1)}, gone.append)
    janitor.start()
    deadline = time.monotonic() + 10
    while left(folder) != ["a", "b"] and time.monotonic() < deadline:
        time.sleep(0.01)
    aside = tmp_path_factory.mktemp("aside") / "f"
    write(aside, 6)
    aside.rename(folder / "f")  # it must not be seen before it is old
    while (folder / "f").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    janitor.stop()
    assert left(folder) == ["a", "b"] and len(gone) == 4
