# SPDX-License-Identifier: Apache-2.0
"""What the operator calls a model -> the entry's `model` parameter and its pipeline class."""

import dataclasses
import difflib
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.console import busy, warn
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, near_miss

if TYPE_CHECKING:
    from triton_diffusers.loading.plan import LoadPlan

HUB = "https://huggingface.co"
KNOWN_MODELS = {
    "Qwen/Qwen-Image": "QwenImagePipeline",
    "Tongyi-MAI/Z-Image-Turbo": "ZImagePipeline",
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": "WanImageToVideoPipeline",
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": "WanPipeline",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "StableDiffusionPipeline",
}
"""Models whose pipeline class is known without asking the hub."""


def model_parameter(model: str, entry: Path) -> str:
    """Return `model` as the entry names it: a hub id, or a folder that the server finds too.

    A folder inside the entry is written relative to it, so that the entry can be moved.
    """
    from triton_diffusers.pipelines.model_files import is_single_file

    folder = Path(model).expanduser()
    if not folder.is_dir() and not is_single_file(folder):
        if "/" not in model and not folder.exists() and (found := full_name(model)):
            warn(f"no folder '{model}' is here: it is taken to be the hub's {found}")
            return found
        _refuse_path(model, folder)
        return model
    return _as_entry_names(folder, entry)


def full_name(model: str) -> str | None:
    """Return the hub id of a model that is named without its owner, where the owner is known."""
    from triton_diffusers.pipelines.hub_names import hub_id
    from triton_diffusers.pipelines.model_files import SINGLE_FILE

    known = {name.partition("/")[2].lower(): name for name in KNOWN_MODELS}
    if model.lower() in known:
        return known[model.lower()]
    path = Path(model)
    mistyped = near_miss(model, [f.name for f in path.parent.iterdir()])
    return None if mistyped or path.suffix in SINGLE_FILE else hub_id(model)


def with_paths(value: Any, entry: Path, keys: Collection[str] = ()) -> Any:
    """Return an option's value with the files that it names as the entry names them.

    keys: those of JSON objects whose values are files.
    """
    if isinstance(value, list):
        return [with_paths(item, entry, keys) for item in value]
    if isinstance(value, dict):
        return value | {k: with_paths(v, entry, keys) for k, v in value.items() if k in keys}
    path = Path(value).expanduser() if isinstance(value, str) else None
    return _as_entry_names(path, entry) if path is not None and path.exists() else value


def _as_entry_names(path: Path, entry: Path) -> str:
    absolute = Path(os.path.abspath(path))
    root = Path(os.path.abspath(entry))
    return str(absolute.relative_to(root) if absolute.is_relative_to(root) else absolute)


def default_name(model: str) -> str:
    """Return the last part of a hub id, folder or single file in lower case."""
    from triton_diffusers.pipelines.model_files import is_single_file

    path = Path(os.path.abspath(Path(model).expanduser()))
    return (path.stem if is_single_file(path) else path.name).lower()


def plan_entry(config: ServeConfig, entry: Path) -> "LoadPlan":
    """Return the plan of an entry's load, without network where the model is known by name."""
    from triton_diffusers.loading.plan import plan_load
    from triton_diffusers.pipelines import model_files

    hint = ""
    model = model_files.find_model(config, entry)
    if isinstance(model, Path):
        if not model_files.is_single_file(model):
            _refuse_loose_files(model)
    elif config.pipeline_class is None and config.model in KNOWN_MODELS:
        config = dataclasses.replace(config, pipeline_class=KNOWN_MODELS[config.model])
    elif config.pipeline_class is None:
        with busy("asking the hub"):
            go_offline_unless_reachable()
        hint = near_known(config.model)
    with busy("importing diffusers"):
        try:
            return plan_load(config, entry, source=model)
        except ConfigError as error:
            raise ConfigError(f"{error}{hint}") from None


def near_known(model: str) -> str:
    """Return ". Did you mean 'x'?" for a hub id that resembles a known one in any case, or ""."""
    known = {name.lower(): name for name in KNOWN_MODELS}
    close = difflib.get_close_matches(model.lower(), known, n=1, cutoff=0.8)
    return f". Did you mean '{known[close[0]]}'?" if close else ""


def go_offline_unless_reachable(timeout_s: float = 5.0) -> None:
    """Set HF_HUB_OFFLINE when the hub does not answer: its library would retry for half a minute.

    To be called before huggingface_hub is imported, which reads the variable once.
    """
    if os.environ.get("HF_HUB_OFFLINE"):
        return
    request = urllib.request.Request(os.environ.get("HF_ENDPOINT") or HUB, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=timeout_s).close()
    except urllib.error.HTTPError:
        pass  # an answer all the same
    except (OSError, ValueError) as error:
        # certificates are the library's business: it has settings of its own for them
        if not isinstance(getattr(error, "reason", None), ssl.SSLError):
            os.environ["HF_HUB_OFFLINE"] = "1"


def diffusers_version() -> str:
    """Return the installed diffusers' version without importing it."""
    return metadata.version("diffusers")


def _refuse_loose_files(folder: Path) -> None:
    """Raise ConfigError naming the checkpoints of a folder that is no pipeline's."""
    from triton_diffusers.pipelines.model_files import INDEX, is_single_file

    files = sorted(f.name for f in folder.iterdir() if is_single_file(f))
    if files and not (folder / INDEX).is_file():
        more = f" (of {len(files)}: {', '.join(files[:5])})" if len(files) > 1 else ""
        raise ConfigError(
            f"model '{folder}' has no {INDEX}; name the checkpoint file{more} and its class: "
            f"{folder / files[0]} with --pipeline-class CLASS"
        )


def _refuse_path(model: str, folder: Path) -> None:
    from triton_diffusers.pipelines.model_files import SINGLE_FILE, is_single_file

    if folder.exists():
        raise ConfigError(
            f"model '{model}' is a file: give the folder that has model_index.json, or a "
            f"checkpoint that ends in {', '.join(SINGLE_FILE)}"
        )
    looks_local = model.startswith((".", "/", "~")) or folder.suffix in SINGLE_FILE
    if looks_local or model.count("/") != 1 or not all(model.split("/")):
        beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
        close = near_miss(folder.name, [f.name for f in beside if f.is_dir() or is_single_file(f)])
        raise ConfigError(
            f"model '{model}' does not exist: give a folder with model_index.json, a checkpoint "
            "file such as model.safetensors, or a hub id such as Qwen/Qwen-Image"
            + (close and f".{close}")
        )
