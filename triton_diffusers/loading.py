# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig` -> a pipeline on its device. Imports torch and diffusers inside its functions."""

import inspect
import json
import logging
import os
import re
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.call_kwargs import check_call_kwargs
from triton_diffusers.config import ServeConfig
from triton_diffusers.devices import check_device
from triton_diffusers.errors import ConfigError, one_line, unknown
from triton_diffusers.load_errors import dummy_backends, explain_load, install
from triton_diffusers.notices import quiet_loading
from triton_diffusers.progress import Processors, read_processors
from triton_diffusers.signature import Signature, read_signature

INDEX = "model_index.json"


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline ready to be called, and what is known about it."""

    pipeline: Any
    signature: Signature
    config: ServeConfig
    device: str
    dtype: str
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()
    call_kwargs: dict[str, Any] = field(default_factory=dict)
    """The entry's `diffusers_call_kwargs` without those that the pipeline does not take."""
    processors: Processors = ()


def import_diffusers() -> Any:
    """Import diffusers without the notices that its optional dependencies print."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in ("torchao", "torch.utils._pytree", "diffusers.quantizers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers
    return diffusers


def find_model(config: ServeConfig, entry: Path) -> Path | str:
    """Return the model's folder, or its hub id where `model` names no folder.

    Raises ConfigError for a path that does not exist.
    """
    given = config.model
    local = Path(given) if Path(given).is_absolute() else entry / given
    if sys.getfilesystemencoding() == "ascii" and not str(local).isascii():
        raise ConfigError(
            f"model '{given}': Triton's Python opens only paths of ASCII letters; move or link the "
            "model to such a path"
        )
    if local.is_dir():
        return local
    if Path(given).is_absolute() or given.startswith((".", "~")) or given.count("/") != 1:
        raise ConfigError(
            f"model '{given}': no such folder ({local}); set parameter 'model' to a folder with a "
            f"{INDEX}, or to a hub id such as Qwen/Qwen-Image"
        )
    return given


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


def _hub_index(model: str, config: ServeConfig) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, INDEX, revision=config.revision, etag_timeout=5))
    except Exception as error:
        raise ConfigError(
            f"model '{model}' cannot be fetched from the hub ({type(error).__name__}) and is not "
            "in the offline cache; give a local folder, or fill the cache with: hf download "
            f"{model} (to write an entry without it: builder add-model --pipeline-class CLASS)"
        ) from None


def find_pipeline_class(config: ServeConfig, entry: Path) -> type:
    """Return the pipeline class that an entry names, or that its model names.

    Raises ConfigError for a class that diffusers lacks.
    """
    name = config.pipeline_class
    if name is None:
        named = read_index(find_model(config, entry), config)["_class_name"]
        name = named[-1] if isinstance(named, list) else named
    return pipeline_class_named(name)


def pipeline_class_named(name: str) -> type:
    """Return a pipeline class of the installed diffusers. Raises ConfigError with the near miss."""
    diffusers = import_diffusers()
    try:
        cls = getattr(diffusers, name, None)
    except (ImportError, RuntimeError) as error:  # diffusers imports classes when asked for them
        raise ConfigError(
            f"pipeline class '{name}' cannot be imported: {one_line(error)}"
        ) from None
    if missing := dummy_backends(cls):
        raise ConfigError(
            f"pipeline class '{name}' needs what is not installed: {', '.join(missing)}; "
            + install(*missing)
        )
    if isinstance(cls, type) and issubclass(cls, diffusers.DiffusionPipeline):
        if "__call__" not in {n for base in cls.__mro__[:-1] for n in vars(base)}:
            raise ConfigError(
                f"pipeline class '{name}' cannot be called; name the model's own class with "
                "pipeline_class"
            )
        return cls
    if cls is not None:
        raise ConfigError(
            f"'{name}' of diffusers is no pipeline class; name one such as FluxPipeline with "
            "pipeline_class"
        )
    known = [n for n in dir(diffusers) if n.endswith("Pipeline")]
    close = unknown("pipeline class", name, f"diffusers {diffusers.__version__}", known)
    raise ConfigError(close.split(" Accepted:")[0] + " Name one with pipeline_class.")


def load_pipeline(config: ServeConfig, entry: Path, device: str) -> LoadedPipeline:
    """Load the pipeline of an entry. Raises ConfigError, in one line, for what the operator set."""
    diffusers = import_diffusers()
    import torch

    if config.cpu_threads is not None:
        torch.set_num_threads(config.cpu_threads)
    model = find_model(config, entry)
    cls = find_pipeline_class(config, entry)
    signature = read_signature(cls)
    check_options(config, cls.__name__)
    call_kwargs, notes = check_call_kwargs(config, signature)
    device = config.device or device
    check_device("device", device)
    check_device("generator_device", config.generator_device)
    kwargs = load_kwargs(config, cls, device)
    try:
        with quiet_loading():
            pipeline = cls.from_pretrained(str(model), **kwargs)  # type: ignore[attr-defined]
        if device != "cpu":
            pipeline.to(device)
    except Exception as error:
        raise ConfigError(explain_load(error, config)) from error
    _after_load(pipeline, config)
    pipeline.set_progress_bar_config(disable=True)
    return LoadedPipeline(
        pipeline=pipeline,
        signature=signature,
        config=config,
        device=device,
        dtype=str(kwargs.get("dtype", kwargs.get("torch_dtype"))).removeprefix("torch."),
        versions={"diffusers": diffusers.__version__, "torch": torch.__version__},
        warnings=tuple(notes),
        call_kwargs=call_kwargs,
        processors=read_processors(pipeline),
    )


def load_kwargs(config: ServeConfig, cls: type, device: str) -> dict[str, Any]:
    """Return the arguments of from_pretrained(): ours first, `diffusers_load_kwargs` win.

    Raises ConfigError for a name that from_pretrained() and the pipeline do not know (diffusers
    itself would drop it with a warning).
    """
    family = families.find(cls.__name__)
    given = dict(config.diffusers_load_kwargs or {})
    accepted, dtype_name = _accepted_load_kwargs(cls)
    for name, value in given.items():
        if name not in accepted:
            raise ConfigError(
                "diffusers_load_kwargs: " + unknown("argument", name, cls.__name__, accepted)
            )
        if value is None and name in _required_components(cls):
            raise ConfigError(
                f"diffusers_load_kwargs: {cls.__name__} cannot do without its component '{name}'; "
                "remove the null"
            )
    for spelling in ("dtype", "torch_dtype"):
        if spelling in given:
            given[dtype_name] = _dtypes(given.pop(spelling), device)
    ours: dict[str, Any] = {dtype_name: _dtypes(config.dtype, device)}
    ours |= {n: v for n in ("revision", "variant") if (v := getattr(config, n)) is not None}
    for name, value in (
        family.load_kwargs(config) if family and family.load_kwargs else {}
    ).items():
        if name not in accepted:
            raise ConfigError(f"parameter '{name}' has no effect on {cls.__name__}; remove it")
        ours[name] = value
    return {**ours, **given}


def _required_components(cls: Any) -> set[str]:
    expected, _ = cls._get_signature_keys(cls)
    return set(expected) - set(cls._optional_components)


def _accepted_load_kwargs(cls: Any) -> tuple[set[str], str]:
    """Return what from_pretrained() accepts, and its name for the dtype (it was renamed)."""
    source = inspect.getsource(cls.from_pretrained) + inspect.getsource(cls.download)
    popped = set(re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", source))
    expected, optional = cls._get_signature_keys(cls)
    return popped | set(expected) | set(optional), "dtype" if "dtype" in popped else "torch_dtype"


def _dtypes(value: Any, device: str) -> Any:
    """Turn the name of a dtype, or a name per component, into torch dtypes."""
    import torch

    if isinstance(value, dict):
        return {component: _dtypes(name, device) for component, name in value.items()}
    name = str(value).removeprefix("torch.")
    if name == "auto":
        name = "float32" if device.startswith("cpu") else "bfloat16"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"dtype '{value}' is not one of bfloat16, float16, float32")
    return dtype


def check_options(config: ServeConfig, pipeline_class: str) -> None:
    """Raise ConfigError for an option that only other families honour."""
    family = families.find(pipeline_class)
    for option, names in families.family_options().items():
        if getattr(config, option) is not None and (family is None or option not in family.options):
            raise ConfigError(
                f"parameter '{option}' has no effect on {pipeline_class}: only "
                f"{', '.join(names)} pipelines have it; remove it"
            )


def _after_load(pipeline: Any, config: ServeConfig) -> None:
    family = families.find(type(pipeline).__name__)
    if family and family.after_load:
        family.after_load(pipeline, config)
    for option, method in (
        ("vae_use_slicing", "enable_slicing"),
        ("vae_use_tiling", "enable_tiling"),
    ):
        if not getattr(config, option):
            continue
        enable = getattr(getattr(pipeline, "vae", None), method, None)
        if enable is None:
            raise ConfigError(
                f"parameter '{option}' has no effect on {type(pipeline).__name__}: its vae has no "
                f"{method}(); remove it"
            )
        enable()
