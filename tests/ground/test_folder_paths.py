"""folder_paths: the only module that resolves user paths."""

import argparse
import os
import time

import pytest

import folder_paths as fp
from comfy.cli_args import finish, parser


def configured(base, *flags: str) -> argparse.Namespace:
    namespace = finish(parser.parse_args(["--base-directory", str(base), *flags]), parser)
    fp.configure(namespace)
    return namespace


@pytest.fixture(autouse=True)
def base(tmp_path):
    configured(tmp_path)
    fp.create_folders()
    yield tmp_path
    fp.configure()


ESCAPES = [
    "../x",
    "a/../../x",
    "/etc/passwd",
    "..",
    "C:\\x",
    "\\\\host\\share",
    "a\0b",
    "sub/../../output2/x",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_no_name_leads_out(base, name):
    with pytest.raises(fp.PathOutsideFolder):
        fp.safe_join(str(base / "input"), name)
    with pytest.raises(fp.PathOutsideFolder):
        fp.get_annotated_filepath(name)
    assert not fp.exists_annotated_filepath(name)
    assert fp.get_full_path("checkpoints", name) is None
    with pytest.raises(fp.PathOutsideFolder):
        fp.get_save_image_path(name, str(base / "output"))


def test_neighbour_with_the_same_beginning_is_outside(base):
    (base / "output2").mkdir()
    assert not fp.is_within(str(base / "output2"), str(base / "output"))


def test_link_out_of_the_output_folder_is_refused_for_saving(base):
    (base / "elsewhere").mkdir()
    os.symlink(base / "elsewhere", base / "output" / "link")
    with pytest.raises(fp.PathOutsideFolder):
        fp.get_save_image_path("link/x", str(base / "output"))


@pytest.mark.parametrize(
    ("text", "name", "folder"),
    [
        ("a.png", "a.png", None),
        ("a.png [input]", "a.png", "input"),
        ("sub/a b.png [output]", "sub/a b.png", "output"),
        ("a.png [temp]", "a.png", "temp"),
        ("a.png [other]", "a.png [other]", None),
        ("[input]", "", "input"),
    ],
)
def test_annotations(base, text, name, folder):
    assert fp.annotated_filepath(text) == (name, str(base / folder) if folder else None)


def test_counter_follows_the_highest_number(base):
    out = base / "output"
    for name in ("X_00001_.png", "X_00007_.png", "X_9_.webp", "Xy_00044_.png", "X_00012.png", "X__.png"):
        (out / name).touch()
    assert fp.get_save_image_path("X", str(out)) == (str(out), "X", 13, "", "X"), "sounds have no line at the end"


def test_tokens_and_subfolders(base):
    folder, name, counter, subfolder, prefix = fp.get_save_image_path(
        "%width%x%height%/%year%/p", str(base / "output"), 64, 32
    )
    assert (name, counter) == ("p", 1)
    assert subfolder.startswith("64x32/20")
    assert folder == str(base / "output" / subfolder) and os.path.isdir(folder)
    assert prefix == f"{subfolder}/p"


def test_lists_follow_changes(base):
    loras = base / "models" / "loras"
    assert fp.get_filename_list("loras") == []
    (loras / "b.safetensors").touch()
    assert fp.get_filename_list("loras") == ["b.safetensors"]
    (loras / "sub").mkdir()
    (loras / "sub" / "a.PT").touch()
    (loras / "note.txt").touch()
    assert fp.get_filename_list("loras") == ["b.safetensors", "sub/a.PT"]
    (loras / "b.safetensors").unlink()
    assert fp.get_filename_list("loras") == ["sub/a.PT"]


def test_old_names_and_edited_dictionary(base):
    assert fp.get_folder_paths("unet") == fp.get_folder_paths("diffusion_models")
    fp.folder_names_and_paths["mine"] = ([str(base / "mine")], {".xyz"})
    (base / "mine").mkdir()
    (base / "mine" / "a.xyz").touch()
    assert fp.get_filename_list("mine") == ["a.xyz"]
    assert fp.get_full_path("mine", "a.xyz") == str(base / "mine" / "a.xyz")
    with pytest.raises(KeyError):
        fp.get_filename_list("never-heard-of")


def test_link_loops_end(base):
    loras = base / "models" / "loras"
    os.symlink(loras, loras / "again")
    (loras / "a.pt").touch()
    assert fp.get_filename_list("loras") == ["a.pt"]


def test_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"'none\.ckpt'.*checkpoints"):
        fp.get_full_path_or_raise("checkpoints", "none.ckpt")


def test_extra_paths(base):
    (base / "more" / "ck").mkdir(parents=True)
    (base / "more" / "ck" / "z.ckpt").touch()
    yaml = base / "paths.yaml"
    yaml.write_text(
        "label:\n  base_path: more\n  is_default: true\n  checkpoints: ck\n  unet: |\n    one\n    two\n  novel: n\n"
    )
    fp.load_extra_model_paths(str(yaml))
    assert fp.get_folder_paths("checkpoints")[0] == str(base / "more" / "ck")
    assert fp.get_filename_list("checkpoints") == ["z.ckpt"]
    assert str(base / "more" / "two") in fp.get_folder_paths("diffusion_models")
    assert fp.get_folder_paths("novel") == [str(base / "more" / "n")]


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "a: text"])
def test_bad_extra_paths_name_the_file(base, text):
    yaml = base / "bad.yaml"
    yaml.write_text(text)
    with pytest.raises(fp.ExtraPathsError, match=r"bad\.yaml"):
        fp.load_extra_model_paths(str(yaml))


def test_folder_flags(tmp_path):
    (tmp_path / "u").mkdir()
    configured(tmp_path, "--temp-directory", str(tmp_path / "t"), "--user-directory", str(tmp_path / "u"))
    assert fp.get_temp_directory() == str(tmp_path / "t" / "temp")
    assert fp.get_user_directory() == str(tmp_path / "u")
    assert fp.get_public_user_directory("__system") is None
    assert fp.get_public_user_directory("../x") is None
    assert fp.get_public_user_directory("default") == str(tmp_path / "u" / "default")


def test_content_types():
    files = ["a.png", "b.WEBP", "c.mp4", "d.flac", "e.txt", "f.glb"]
    assert fp.filter_files_content_types(files, ["image"]) == ["a.png", "b.WEBP"]
    assert fp.filter_files_content_types(files, ["video", "audio"]) == ["c.mp4", "d.flac"]
    assert fp.filter_files_content_types(files, ["model"]) == ["f.glb"]


def settle(folder):
    """Make a folder look as if it had been left alone for a while."""
    long_ago = time.time() - 3600
    os.utime(folder, (long_ago, long_ago))


def test_top_files_are_current(tmp_path):
    (tmp_path / "b.png").touch()
    (tmp_path / "a.latent").touch()
    (tmp_path / "folder.png").mkdir()
    settle(tmp_path)
    assert fp.get_top_files(str(tmp_path), "image") == ["b.png"]
    assert fp.get_top_files(str(tmp_path), ".latent") == ["a.latent"]
    fp.get_top_files(str(tmp_path), "image").append("changed by the caller")
    (tmp_path / "a.png").touch()
    assert fp.get_top_files(str(tmp_path), "image") == ["a.png", "b.png"]
    (tmp_path / "b.png").unlink()
    assert fp.get_top_files(str(tmp_path), "image") == ["a.png"]
    assert fp.get_top_files(str(tmp_path / "none"), "image") == []


def test_files_beside_links_in_a_circle_are_listed(tmp_path):
    (tmp_path / "a.png").write_text("")
    (tmp_path / "one.png").symlink_to("two.png")
    (tmp_path / "two.png").symlink_to("one.png")
    (tmp_path / "gone.png").symlink_to("nothing.png")
    assert fp.get_top_files(str(tmp_path), "image") == ["a.png"]


def test_an_unchanged_folder_is_listed_once(tmp_path, monkeypatch):
    (tmp_path / "a.png").touch()
    settle(tmp_path)
    assert fp.get_top_files(str(tmp_path), "image") == ["a.png"]
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail(f"{path} is listed again"))
    assert fp.get_top_files(str(tmp_path), "image") == ["a.png"]


def test_a_folder_with_links_is_listed_each_time(tmp_path):
    target = tmp_path / "elsewhere"
    target.touch()
    folder = tmp_path / "with links"
    folder.mkdir()
    (folder / "a.png").symlink_to(target)
    settle(folder)
    assert fp.get_top_files(str(folder), "image") == ["a.png"]
    target.unlink()
    assert fp.get_top_files(str(folder), "image") == []
