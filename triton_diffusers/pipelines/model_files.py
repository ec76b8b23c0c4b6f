# SPDX-License-Identifier: Apache-2.0
"""Where a model is: a folder, a single file, or a hub id; and its model_index.json."""

import json
import sys
from pathlib import Path
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.pipelines.hub_names import hub_id

INDEX = "model_index.json"
EXAMPLE_ID = "Qwen/Qwen-Image"
SINGLE_FILE = (".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin")
"""How the names of checkpoints end that from_single_file() reads."""


def find_model(config: ServeConfig, entry: Path) -> Path | str:
    """Return the pipeline's folder or its single file, or its hub id where `model` is no path.

    Raises ConfigError for a path that does not exist.
    """
    local = find_path("model", config.model, entry)
    if local is not None and is_single_file(local):
        return local
    if local is not None and local.is_dir():
        return _inside(local, config)
    if local is not None:
        raise ConfigError(
            f"model '{config.model}' is a file that no pipeline is loaded from; give a folder with "
            f"a {INDEX}, or a file that ends in {', '.join(SINGLE_FILE)}"
        )
    if is_path(config.model):
        meant = hub_id(config.model)
        raise ConfigError(
            f"model '{config.model}': no such folder ({entry / config.model}); set parameter "
            f"'model' to a folder with a {INDEX}, or to a hub id such as {meant or EXAMPLE_ID}"
        )
    return config.model


def find_path(option: str, given: str, entry: Path) -> Path | None:
    """Return the file or folder that an option names, relative to the entry, or None.

    Raises ConfigError where Triton's Python could not open it.
    """
    local = Path(given) if Path(given).is_absolute() else entry / given
    if sys.getfilesystemencoding() == "ascii" and not str(local).isascii():
        raise ConfigError(
            f"{option} '{given}': Triton's Python opens only paths of ASCII letters; move or link "
            "it to such a path"
        )
    return local if local.exists() else None


def is_path(given: str) -> bool:
    """Tell whether a name can only be a path: a hub id is OWNER/NAME."""
    return Path(given).is_absolute() or given.startswith((".", "~")) or given.count("/") != 1


def is_single_file(path: Path | str) -> bool:
    """Tell whether a pipeline is loaded from this file alone."""
    return isinstance(path, Path) and path.suffix in SINGLE_FILE and path.is_file()


def read_index(model: Path | str, config: ServeConfig) -> dict[str, Any]:
    """Read a model's model_index.json, from a folder, the hub cache or the hub.

    Raises ConfigError naming the ways out where it cannot be had.
    """
    path = model / INDEX if isinstance(model, Path) else _hub_index(model, config)
    if not path.is_file():
        raise ConfigError(
            f"model '{model}': no {INDEX} in that folder; it is no diffusers pipeline"
        )
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model '{model}': {INDEX} cannot be read ({error})") from None
    named = index.get("_class_name") if isinstance(index, dict) else None
    if not isinstance(named[-1] if isinstance(named, list) and named else named, str):
        raise ConfigError(f"model '{model}': {INDEX} names no pipeline class (_class_name)")
    return dict(index)


def component_classes(index: dict[str, Any]) -> dict[str, str]:
    """Return component -> class name of what a model_index.json lists."""
    return {
        name: str(value[1])
        for name, value in index.items()
        if isinstance(value, list) and len(value) == 2 and value[1] is not None
        if not name.startswith("_")
    }


def fetch_subfolder(model: str, config: ServeConfig) -> Path:
    """Download the part of a hub model that `subfolder` names; from_pretrained() cannot."""
    from huggingface_hub import snapshot_download

    pattern = f"{config.subfolder}/*"
    folder = snapshot_download(model, revision=config.revision, allow_patterns=[pattern])
    return _inside(Path(folder), config)


def _inside(folder: Path, config: ServeConfig) -> Path:
    if config.subfolder is None:
        return folder
    inside = folder / config.subfolder
    if not inside.is_dir() or not inside.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"parameter 'subfolder': model '{config.model}' has no folder '{config.subfolder}'"
        )
    return inside


def _hub_index(model: str, config: ServeConfig) -> Path:
    from huggingface_hub import hf_hub_download

    name = INDEX if config.subfolder is None else f"{config.subfolder}/{INDEX}"
    try:
        return Path(hf_hub_download(model, name, revision=config.revision, etag_timeout=5))
    except Exception as error:
        raise ConfigError(
            f"model '{model}' cannot be fetched from the hub ({type(error).__name__}) and is not "
            "in the offline cache; give a local folder, or fill the cache with: hf download "
            f"{model} (to write an entry without it: builder add-model --pipeline-class CLASS)"
        ) from None
