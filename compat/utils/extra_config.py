"""Reading extra model paths files."""

from folder_paths import load_extra_model_paths as load_extra_path_config

__all__ = ["load_extra_path_config"]
