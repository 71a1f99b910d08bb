"""Where models, inputs, outputs, previews and users' data live; the only module that resolves user paths.

The public names are the ecosystem's: custom node packs import them and even edit `folder_names_and_paths`.
Layout and flags: spec/cli.md "Folders and data"; lists: spec/http-api.md section 7. Imports no torch.
"""

from __future__ import annotations

import errno
import logging
import mimetypes
import os
import re
import threading
import time
from collections.abc import Iterable
from typing import Literal

from comfy.cli_args import args

supported_pt_extensions: set[str] = {".ckpt", ".pt", ".pt2", ".bin", ".pth", ".safetensors", ".pkl", ".sft"}

# Folder name -> (search folders, file extensions; an empty set admits every file).
folder_names_and_paths: dict[str, tuple[list[str], set[str]]] = {}

# Old folder names that prompts and path files still use.
LEGACY_FOLDER_NAMES = {"unet": "diffusion_models", "clip": "text_encoders"}

# Model folders with the sub-folders of the models directory that they read, first one first.
MODEL_FOLDERS: dict[str, tuple[str, ...]] = {
    "checkpoints": ("checkpoints",),
    "configs": ("configs",),
    "loras": ("loras",),
    "vae": ("vae",),
    "text_encoders": ("text_encoders", "clip"),
    "diffusion_models": ("unet", "diffusion_models"),
    "clip_vision": ("clip_vision",),
    "style_models": ("style_models",),
    "embeddings": ("embeddings",),
    "diffusers": ("diffusers",),
    "vae_approx": ("vae_approx",),
    "controlnet": ("controlnet", "t2i_adapter"),
    "gligen": ("gligen",),
    "upscale_models": ("upscale_models",),
    "latent_upscale_models": ("latent_upscale_models",),
    "custom_nodes": (),
    "datasets": (),
    "hypernetworks": ("hypernetworks",),
    "photomaker": ("photomaker",),
    "classifiers": ("classifiers",),
    "model_patches": ("model_patches",),
    "audio_encoders": ("audio_encoders",),
    "background_removal": ("background_removal",),
    "frame_interpolation": ("frame_interpolation",),
    "geometry_estimation": ("geometry_estimation",),
    "optical_flow": ("optical_flow",),
    "detection": ("detection",),
}
FOLDER_EXTENSIONS: dict[str, set[str]] = {
    "configs": {".yaml"},
    "diffusers": {"folder"},
    "custom_nodes": set(),
    "datasets": set(),
    "classifiers": {""},
}
# These folders of the output directory are searched too, so that a saved model can be loaded at once.
OUTPUT_MODEL_FOLDERS = {
    "checkpoints": "checkpoints",
    "clip": "text_encoders",
    "vae": "vae",
    "diffusion_models": "diffusion_models",
    "loras": "loras",
}


class PathOutsideFolder(ValueError):
    """A name given by a user leads out of the folder it belongs to."""

    def __init__(self, name: str, folder: str):
        super().__init__(f"{name!r} leads out of the {folder} folder")
        self.name = name
        self.folder = folder


def is_within(path: str, folder: str) -> bool:
    """Whether `path`, with symbolic links followed, is `folder` or lies below it."""
    real_path, real_folder = os.path.realpath(path), os.path.realpath(folder)
    return real_path == real_folder or real_path.startswith(real_folder.rstrip(os.sep) + os.sep)


def is_lexically_within(path: str, folder: str) -> bool:
    """As `is_within` without following links: a link that an operator put there may lead away."""
    absolute, folder = os.path.abspath(path), os.path.abspath(folder)
    return absolute == folder or absolute.startswith(folder.rstrip(os.sep) + os.sep)


def stays_inside(path: str, folder: str) -> bool:
    """Whether a file below `folder` may be used: symbolic links must not lead out, unless `--follow-links` is given."""
    return args.follow_links or is_within(path, folder)


def safe_join(folder: str, *names: str, label: str = "") -> str:
    """Join user-given relative names below `folder`.

    Raises PathOutsideFolder for absolute names, `..` that leaves the folder, NUL bytes and drive letters.
    """
    for name in names:
        if "\0" in name or os.path.isabs(name) or re.match(r"^[A-Za-z]:[\\/]", name) or name.startswith("\\"):
            raise PathOutsideFolder(name, label or os.path.basename(folder))
    path = os.path.abspath(os.path.join(folder, *names))
    if not is_lexically_within(path, folder):
        raise PathOutsideFolder(os.path.join(*names), label or os.path.basename(folder))
    return path


# --- the base folders -----------------------------------------------------------------------------

program_path = os.path.dirname(os.path.realpath(__file__))
base_path = ""
models_dir = ""
input_directory = ""
output_directory = ""
temp_directory = ""
user_directory = ""


def configure(namespace=args) -> None:
    """Set every folder from the command line's flags (spec/cli.md). Creates nothing."""
    global base_path, models_dir, input_directory, output_directory, temp_directory, user_directory
    base_path = os.path.abspath(namespace.base_directory or program_path)
    models_dir = namespace.models_directory or os.path.join(base_path, "models")
    input_directory = os.path.abspath(namespace.input_directory or os.path.join(base_path, "input"))
    output_directory = os.path.abspath(namespace.output_directory or os.path.join(base_path, "output"))
    temp_directory = os.path.join(os.path.abspath(namespace.temp_directory or base_path), "temp")
    user_directory = os.path.abspath(namespace.user_directory or os.path.join(base_path, "user"))
    folder_names_and_paths.clear()
    for name, subfolders in MODEL_FOLDERS.items():
        paths = [os.path.join(models_dir, s) for s in subfolders] or [os.path.join(base_path, name)]
        folder_names_and_paths[name] = (paths, set(FOLDER_EXTENSIONS.get(name, supported_pt_extensions)))
    for subfolder, name in OUTPUT_MODEL_FOLDERS.items():
        add_model_folder_path(name, os.path.join(output_directory, subfolder))


def create_folders() -> None:
    """Make the folders a server needs; one that cannot be made is logged, not fatal."""
    wanted = [input_directory, output_directory, user_directory]
    wanted += [
        p
        for name, (paths, _) in folder_names_and_paths.items()
        if name in MODEL_FOLDERS
        for p in paths
        if is_lexically_within(p, models_dir)
    ]
    wanted += folder_names_and_paths["custom_nodes"][0][:1]
    for path in wanted:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            logging.warning("cannot create the folder %s: %s", path, error)


def get_output_directory() -> str:
    """Where results are saved."""
    return output_directory


def get_input_directory() -> str:
    """Where uploads are stored and inputs are read."""
    return input_directory


def get_temp_directory() -> str:
    """Where previews go; emptied at start and exit."""
    return temp_directory


def get_user_directory() -> str:
    """The parent of all users' settings and data."""
    return user_directory


def set_output_directory(path: str) -> None:
    """Save results elsewhere."""
    global output_directory
    output_directory = path


def set_input_directory(path: str) -> None:
    """Read inputs elsewhere."""
    global input_directory
    input_directory = path


def set_temp_directory(path: str) -> None:
    """Put previews elsewhere."""
    global temp_directory
    temp_directory = path


def set_user_directory(path: str) -> None:
    """Keep users' data elsewhere."""
    global user_directory
    user_directory = path


def get_directory_by_type(type_name: str) -> str | None:
    """The folder for `input`, `output` or `temp`; None for another name."""
    return {"output": output_directory, "input": input_directory, "temp": temp_directory}.get(type_name)


SYSTEM_USER_PREFIX = "__"  # user names reserved for the server itself; never reachable over HTTP


def get_public_user_directory(user_id: str) -> str | None:
    """The folder of a user that HTTP may reach; None for empty, reserved or escaping names."""
    if not user_id or user_id.startswith(SYSTEM_USER_PREFIX):
        return None
    try:
        return safe_join(user_directory, user_id, label="user")
    except PathOutsideFolder:
        return None


def get_system_user_directory(name: str = "system") -> str:
    """A folder below the user directory for the server's own state, out of HTTP's reach."""
    if not re.fullmatch(r"[A-Za-z0-9_]+", name) or name.startswith("_"):
        raise ValueError(f"{name!r} is not a name for a system folder")
    return os.path.join(user_directory, SYSTEM_USER_PREFIX + name)


# --- annotated names ------------------------------------------------------------------------------

_ANNOTATION = re.compile(r"^(?P<name>.*?)\s*\[(?P<type>input|output|temp)\]$", re.DOTALL)


def annotated_filepath(name: str) -> tuple[str, str | None]:
    """Split `"a.png [output]"` into the bare name and the folder it names (None without an annotation)."""
    match = _ANNOTATION.match(name)
    if match is None:
        return name, None
    return match["name"], get_directory_by_type(match["type"])


def get_annotated_filepath(name: str, default_dir: str | None = None) -> str:
    """The full path of an annotated name; without annotation below `default_dir`, or the input folder.

    Raises PathOutsideFolder if the name leaves its folder.
    """
    bare, folder = annotated_filepath(name)
    root = folder or default_dir or input_directory
    path = safe_join(root, bare)
    if not stays_inside(path, root):
        raise PathOutsideFolder(bare, os.path.basename(root))
    return path


def exists_annotated_filepath(name: str) -> bool:
    """Whether the file exists inside its folder; False, too, for a name that leads out of it."""
    try:
        return os.path.exists(get_annotated_filepath(name))
    except PathOutsideFolder:
        return False


# --- model folders --------------------------------------------------------------------------------


def map_legacy(folder_name: str) -> str:
    """Today's name of a folder that had another one (`unet`, `clip`)."""
    return LEGACY_FOLDER_NAMES.get(folder_name, folder_name)


def add_model_folder_path(folder_name: str, full_folder_path: str, is_default: bool = False) -> None:
    """Search one more folder; `is_default` puts it first. New folder names admit every extension."""
    folder_name = map_legacy(folder_name)
    paths, _ = folder_names_and_paths.setdefault(folder_name, ([], set()))
    if full_folder_path in paths:
        if is_default and paths[0] != full_folder_path:
            paths.remove(full_folder_path)
            paths.insert(0, full_folder_path)
        return
    paths.insert(0 if is_default else len(paths), full_folder_path)


def get_folder_paths(folder_name: str) -> list[str]:
    """The folders searched for that kind of file. Raises KeyError for an unknown name."""
    return list(folder_names_and_paths[map_legacy(folder_name)][0])


def recursive_search(directory: str, excluded_dir_names: list[str] | None = None) -> tuple[list[str], dict[str, float]]:
    """All files below `directory` as relative paths, and every folder's modification time.

    Symbolic links are followed; a link that leads back to a folder already on the way down is not.
    """
    if not os.path.isdir(directory):
        return [], {}
    excluded = set(excluded_dir_names or [])
    files: list[str] = []
    folders: dict[str, float] = {}
    stack = [(directory, "", frozenset([os.path.realpath(directory)]))]
    while stack:
        path, relative, above = stack.pop()
        try:
            folders[path] = os.path.getmtime(path)
            entries = sorted(os.scandir(path), key=lambda e: e.name)
        except OSError as error:
            logging.warning("cannot list %s: %s", path, error)
            continue
        for entry in entries:
            name = os.path.join(relative, entry.name)
            if not is_folder(entry):
                files.append(name)
            elif entry.name not in excluded:
                real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                if real not in above:
                    stack.append((entry.path, name, above | {real}))
    return files, folders


def filter_files_extensions(files: Iterable[str], extensions: Iterable[str]) -> list[str]:
    """The sorted names with one of these extensions (lower case, with dot); an empty set admits all."""
    wanted = set(extensions)
    return sorted(f for f in files if not wanted or os.path.splitext(f)[-1].lower() in wanted or "folder" in wanted)


class _ListingCache:
    """File lists of model folders, valid while no folder below has changed."""

    def __init__(self):
        self._lock = threading.Lock()
        self._lists: dict[str, tuple[tuple, list[str], dict[str, float], float]] = {}

    def get(self, folder_name: str) -> list[str]:
        paths, extensions = folder_names_and_paths[folder_name]
        key = (tuple(paths), frozenset(extensions))
        with self._lock:
            cached = self._lists.get(folder_name)
        if cached is not None and cached[0] == key and self._fresh(paths, cached[2], cached[3]):
            return cached[1]
        files: set[str] = set()
        folders: dict[str, float] = {}
        for path in paths:
            found, times = recursive_search(path, excluded_dir_names=[".git"])
            files.update(filter_files_extensions(found, extensions))
            folders.update(times)
        names = sorted(files)
        with self._lock:
            self._lists[folder_name] = (key, names, folders, time.time())
        return names

    @staticmethod
    def _fresh(paths: list[str], folders: dict[str, float], listed_at: float) -> bool:
        try:
            for folder, modified in folders.items():
                current = os.path.getmtime(folder)
                # A folder changed within the clock's granularity of the listing may change again unseen.
                if current != modified or listed_at - modified < 1.0:
                    return False
        except OSError:
            return False
        return all(path in folders or not os.path.isdir(path) for path in paths)


_listings = _ListingCache()


def get_filename_list(folder_name: str) -> list[str]:
    """Sorted relative names of the files in a model folder's search paths. Raises KeyError if unknown."""
    return list(_listings.get(map_legacy(folder_name)))


def get_full_path(folder_name: str, filename: str) -> str | None:
    """The first existing file of that relative name in the folder's search paths, or None.

    A name that leads out of a search path finds nothing.
    """
    folder_name = map_legacy(folder_name)
    if folder_name not in folder_names_and_paths:
        return None
    for folder in folder_names_and_paths[folder_name][0]:
        try:
            path = safe_join(folder, filename, label=folder_name)
        except PathOutsideFolder:
            return None
        if os.path.isfile(path):
            return path
        if os.path.islink(path):
            logging.warning("%s is a link whose target is missing; skipped", path)
    return None


def get_full_path_or_raise(folder_name: str, filename: str) -> str:
    """As `get_full_path`; raises FileNotFoundError naming the folder and the file."""
    path = get_full_path(folder_name, filename)
    if path is None:
        raise FileNotFoundError(f"no file {filename!r} in the {map_legacy(folder_name)} folders")
    return path


def get_relative_path(full_path: str) -> tuple[str, str] | None:
    """The (folder name, relative name) of a file below one of the model folders, or None."""
    for name, (paths, _) in folder_names_and_paths.items():
        for folder in paths:
            if is_lexically_within(full_path, folder) and os.path.abspath(full_path) != os.path.abspath(folder):
                return name, os.path.relpath(full_path, folder)
    return None


def get_input_subfolders() -> list[str]:
    """Sorted relative paths of the folders below the input folder."""
    _, folders = recursive_search(input_directory)
    return sorted(os.path.relpath(f, input_directory) for f in folders if f != input_directory)


# Types by extension that the system's table often lacks; nodes offer files by these.
_CONTENT_TYPES = {
    ".webp": "image", ".avif": "image", ".jxl": "image", ".flac": "audio", ".opus": "audio", ".m4a": "audio",
    ".mkv": "video", ".webm": "video", ".mov": "video", ".m4v": "video",
    ".gltf": "model", ".glb": "model", ".obj": "model", ".fbx": "model", ".stl": "model", ".usdz": "model",
    ".ply": "model", ".splat": "model", ".spz": "model", ".ksplat": "model",
}  # fmt: skip


def filter_files_content_types(
    files: list[str], content_types: list[Literal["image", "video", "audio", "model"]]
) -> list[str]:
    """The names whose extension stands for one of these kinds of content, in the given order."""
    kinds: dict[str, str] = {}  # by extension: folders hold thousands of files and few extensions
    found = []
    for name in files:
        extension = os.path.splitext(name)[-1].lower()
        kind = kinds.get(extension)
        if kind is None or extension in mimetypes.encodings_map:  # `a.svg.gz`: the extension before it counts, too
            kind = _CONTENT_TYPES.get(extension) or (mimetypes.guess_type(name)[0] or "").split("/")[0]
            kinds[extension] = kind
        if kind in content_types:
            found.append(name)
    return found


def is_file(entry: os.DirEntry) -> bool:
    """Whether a folder's entry is a file or a link to one. A link that leads in a circle is none, and no error."""
    try:
        return entry.is_file()
    except OSError:
        return False


def is_folder(entry: os.DirEntry) -> bool:
    """Whether a folder's entry is a folder or a link to one. As `is_file`."""
    try:
        return entry.is_dir()
    except OSError:
        return False


SLOW_LISTING_SECONDS = 0.01


class _TopFilesCache:
    """File names at the top of folders, by kind; valid while the folder has not changed."""

    def __init__(self):
        self._lists: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self._slow: set[tuple[str, str]] = set()  # those whose last listing took long

    def would_take_long(self) -> bool:
        """Whether a folder that takes long to list would have to be listed again."""
        return any(self._listed(folder, kind) is None for folder, kind in list(self._slow))

    def _listed(self, folder: str, kind: str) -> list[str] | None:
        """The files as they were listed, if nothing can have changed since."""
        cached = self._lists.get((folder, kind))
        return cached[1] if cached is not None and cached[0] == os.stat(folder).st_mtime_ns else None

    def get(self, folder: str, kind: str) -> list[str]:
        started = time.monotonic()
        try:
            cached = self._listed(folder, kind)
            if cached is not None:
                return cached
            modified = os.stat(folder).st_mtime_ns
            asked_at = time.time_ns()
            with os.scandir(folder) as entries:
                found = list(entries)
            names = [entry.name for entry in found if is_file(entry)]
        except OSError:
            return []
        of_kind = filter_files_extensions if kind.startswith(".") else filter_files_content_types
        names = sorted(of_kind(names, [kind]))
        # A folder changed within the clock's granularity of the listing may change again unseen, and what a link
        # leads to may come and go without any change of the folder.
        if asked_at - modified > 1_000_000_000 and not any(entry.is_symlink() for entry in found):
            self._lists[folder, kind] = (modified, names)
        if time.monotonic() - started >= SLOW_LISTING_SECONDS:
            self._slow.add((folder, kind))
        else:
            self._slow.discard((folder, kind))
        return names


_top_files = _TopFilesCache()


def get_top_files(folder: str, kind: str) -> list[str]:
    """Sorted names of the files of a kind that lie in a folder itself; empty if it cannot be listed.

    kind: "image", "video", "audio" or "model", or an extension with its dot.
    """
    return list(_top_files.get(folder, kind))


def listing_would_take_long() -> bool:
    """Whether asking nodes for their inputs now lists a folder so full that no event loop should wait for it."""
    try:
        return _top_files.would_take_long()
    except OSError:  # a folder has gone, so there is nothing to list
        return False


# --- saving ---------------------------------------------------------------------------------------


DEEPEST_FOLDER = 200  # levels; what lists and deletes folders goes down them level by level


def make_folders(path: str) -> None:
    """Create a folder that a client has named, and those it lies in. Raises OSError, also for absurdly deep ones."""
    if os.path.normpath(path).count(os.sep) > DEEPEST_FOLDER:
        raise OSError(errno.ENAMETOOLONG, "too many folders inside each other", path)
    os.makedirs(path, exist_ok=True)


LONGEST_PREFIX = 220  # bytes; file systems allow 255, and numbers and extensions follow


def get_save_image_path(
    filename_prefix: str, output_dir: str, image_width: int = 0, image_height: int = 0
) -> tuple[str, str, int, str, str]:
    """Where the next files of a prefix go: (folder, base name, counter, subfolder, prefix less tokens).

    The counter is one above the highest `<base>_<number>_…` or `<base>_<number>.…` in the folder, which is created.
    Tokens: %width% %height% (pixels) %year% %month% %day% %hour% %minute% %second%.
    Raises PathOutsideFolder if the prefix leaves `output_dir`, ValueError if a part of it is too long for a file name.
    """
    now = time.localtime()
    tokens = {
        "%width%": str(image_width), "%height%": str(image_height), "%year%": str(now.tm_year),
        "%month%": f"{now.tm_mon:02d}", "%day%": f"{now.tm_mday:02d}", "%hour%": f"{now.tm_hour:02d}",
        "%minute%": f"{now.tm_min:02d}", "%second%": f"{now.tm_sec:02d}",
    }  # fmt: skip
    for token, text in tokens.items():
        filename_prefix = filename_prefix.replace(token, text)
    normal = os.path.normpath(filename_prefix)
    # An empty prefix names the folder itself: its files are called `._00001_`.
    target = os.path.join(output_dir, ".") if normal == "." else safe_join(output_dir, normal, label="output")
    if not stays_inside(os.path.dirname(target), output_dir):
        raise PathOutsideFolder(filename_prefix, "output")
    longest = max(normal.split(os.sep), key=lambda part: len(os.fsencode(part)))
    if len(os.fsencode(longest)) > LONGEST_PREFIX:
        told = f"{longest[:40]!r}… has {len(os.fsencode(longest))} bytes, {LONGEST_PREFIX} are the most"
        raise ValueError(f"the filename prefix is too long: {told}")
    folder, filename = os.path.dirname(target), os.path.basename(target)
    subfolder = os.path.dirname(os.path.normpath(filename_prefix))
    make_folders(folder)
    numbered = re.compile(re.escape(os.path.normcase(filename)) + r"_(\d+)[_.]")
    counter = 1
    with os.scandir(folder) as entries:
        for entry in entries:
            match = numbered.match(os.path.normcase(entry.name))
            if match:
                counter = max(counter, int(match[1]) + 1)
    return folder, filename, counter, subfolder, filename_prefix


# --- extra_model_paths.yaml -----------------------------------------------------------------------


class ExtraPathsError(ValueError):
    """An extra model paths file cannot be read or does not have the expected shape."""


def load_extra_model_paths(yaml_path: str) -> None:
    """Add the folders of an extra model paths file (spec/cli.md "Extra paths YAML").

    Raises ExtraPathsError naming the file and what is wrong with it.
    """
    import yaml

    try:
        with open(yaml_path, encoding="utf-8") as stream:
            config = yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExtraPathsError(f"cannot read the extra model paths file {yaml_path}: {error}") from error
    if config is None:
        return
    if not isinstance(config, dict):
        raise ExtraPathsError(f"{yaml_path}: expected labels with folders, found {type(config).__name__}")
    here = os.path.dirname(os.path.abspath(yaml_path))
    for label, section in config.items():
        if section is None:
            continue
        if not isinstance(section, dict):
            raise ExtraPathsError(f"{yaml_path}: {label!r} must map folder names to paths")
        section = dict(section)
        root = section.pop("base_path", None)
        is_default = bool(section.pop("is_default", False))
        root = os.path.join(here, os.path.expandvars(os.path.expanduser(str(root)))) if root else here
        for name, value in section.items():
            lines = value if isinstance(value, list) else str(value or "").split("\n")
            for line in lines:
                if str(line).strip():
                    path = os.path.expandvars(os.path.expanduser(str(line).strip()))
                    add_model_folder_path(str(name), os.path.normpath(os.path.join(root, path)), is_default)


configure()
