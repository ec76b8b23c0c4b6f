# SPDX-License-Identifier: Apache-2.0
"""The arguments of from_pretrained() or from_single_file(): ours first, the entry's own win."""

import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.config.declared import DTYPES
from triton_diffusers.config.options import ServeConfig, named
from triton_diffusers.errors import ConfigError, unknown
from triton_diffusers.pipelines.model_files import find_path

OPTION = "diffusers_load_kwargs"
QUANTIZATION = "quantization_config"


def load_kwargs(
    config: ServeConfig, cls: Any, device: str, single_file: bool = False
) -> dict[str, Any]:
    """Return the arguments of the method that loads; `diffusers_load_kwargs` win over ours.

    Raises ConfigError for a name that neither the method nor the pipeline knows (diffusers itself
    would drop it with a warning), and for a component that is not one. Quantization is left out.
    """
    given = dict(config.diffusers_load_kwargs or {})
    accepted = _accepted(cls, single_file)
    _check_given(given, accepted, cls)
    given.pop(QUANTIZATION, None)
    dtype_name = "dtype" if "dtype" in accepted else "torch_dtype"
    ours: dict[str, Any] = {dtype_name: _dtypes(config.dtype, device, cls)}
    if single_file and isinstance(config.dtype, dict):
        raise ConfigError("parameter 'dtype': a single file is loaded with one type; name one")
    ours |= {
        n: v for n in named("argument", "same") if (v := getattr(config, n)) not in (None, False)
    }
    if config.use_safetensors is False:
        ours["use_safetensors"] = False
    ours |= _of_family(config, cls, accepted)
    return {**ours, **given}


def check_single_file(config: ServeConfig, cls: Any) -> None:
    """Raise ConfigError for a class that loads no single file, and for options without effect."""
    if not hasattr(cls, "from_single_file"):
        raise ConfigError(
            f"model '{config.model}': {cls.__name__} loads no single file; give a folder with a "
            "model_index.json"
        )
    for name in named("of_file", False):
        is_set = config.is_quantized if name == QUANTIZATION else getattr(config, name)
        if is_set not in (None, False):
            raise ConfigError(
                f"parameter '{name}' has no effect on a single file; remove it, or give the "
                "model's folder"
            )


def check_dtypes(pipeline: Any, config: ServeConfig) -> None:
    """Raise ConfigError for a type given to a component that has no weights."""
    for name in config.dtype if isinstance(config.dtype, dict) else ():
        if name != "default" and not hasattr(getattr(pipeline, name, None), "parameters"):
            raise ConfigError(
                f"parameter 'dtype': component '{name}' of {type(pipeline).__name__} has no "
                "weights; remove it"
            )


def dtype_of(kwargs: dict[str, Any]) -> Callable[[str], Any]:
    """Return a function: component -> the torch.dtype that these arguments load it with."""
    import torch

    given = kwargs.get("dtype", kwargs.get("torch_dtype"))

    def of(component: str) -> Any:
        name = component.partition(".")[0]
        return (
            given.get(name, given.get("default", torch.float32))
            if isinstance(given, dict)
            else given
        )

    return of


def dtype_names(kwargs: dict[str, Any]) -> str | dict[str, str]:
    """Return the names of the types that these arguments load with."""
    given = kwargs.get("dtype", kwargs.get("torch_dtype"))
    if isinstance(given, dict):
        return {component: str(dtype)[6:] for component, dtype in given.items()}
    return str(given).removeprefix("torch.")


def load_single_file(cls: Any, file: str, kwargs: dict[str, Any], entry: Path) -> Any:
    """Call from_single_file(). `config`, a folder that configures it, is relative to the entry."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    given = kwargs.get("config")
    if given is not None and not isinstance(given, str):
        raise ConfigError(f"{OPTION}: config {given!r} is neither a folder nor a hub id")
    if given is not None and (folder := find_path(OPTION, given, entry)):
        kwargs = kwargs | {"config": str(folder)}
    try:
        return cls.from_single_file(file, **kwargs)
    except (LocalEntryNotFoundError, HfHubHTTPError) as error:
        raise ConfigError(
            f"model '{file}' is a single file, and the hub, which has the configuration of its "
            f"components, cannot be reached ({type(error).__name__}): name a folder with them in "
            f'{OPTION}: {{"config": FOLDER}}'
        ) from None


def components_of(cls: Any) -> tuple[str, ...]:
    """Return the names of a pipeline class's components."""
    expected, _ = cls._get_signature_keys(cls)
    return tuple(sorted(expected))


def _check_given(given: dict[str, Any], accepted: frozenset[str], cls: Any) -> None:
    required = set(components_of(cls)) - set(cls._optional_components)
    for name, value in given.items():
        if name not in accepted:
            raise ConfigError(f"{OPTION}: " + unknown("argument", name, cls.__name__, accepted))
        if value is None and name in required:
            raise ConfigError(
                f"{OPTION}: {cls.__name__} cannot do without its component '{name}'; remove the "
                "null"
            )


def _of_family(config: ServeConfig, cls: Any, accepted: frozenset[str]) -> dict[str, Any]:
    family = families.find(cls.__name__)
    extra = family.load_kwargs(config) if family and family.load_kwargs else {}
    for name in extra:
        if name not in accepted:
            raise ConfigError(f"parameter '{name}' has no effect on {cls.__name__}; remove it")
    return extra


@functools.cache
def _accepted(cls: Any, single_file: bool) -> frozenset[str]:
    """Return the names that the loading method takes from its keyword arguments."""
    methods = [cls.from_single_file] if single_file else [cls.from_pretrained, cls.download]
    source = "".join(inspect.getsource(method) for method in methods)
    popped = set(re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", source))
    expected, optional = cls._get_signature_keys(cls)
    return frozenset(popped | set(expected) | set(optional))


def _dtypes(value: Any, device: str, cls: Any) -> Any:
    """Turn the name of a dtype, or a name per component, into torch dtypes."""
    import torch

    if isinstance(value, dict):
        accepted = ("default", *components_of(cls))
        for component in value:
            if component not in accepted:
                raise ConfigError(
                    "parameter 'dtype': " + unknown("component", component, cls.__name__, accepted)
                )
        named = {"default": "auto"} | value
        return {component: _dtypes(name, device, cls) for component, name in named.items()}
    name = str(value).removeprefix("torch.")
    if name == "auto":
        name = "float32" if device.startswith("cpu") else "bfloat16"
    if name not in DTYPES:
        raise ConfigError(f"dtype '{value}' is not one of {', '.join(DTYPES)}")
    return getattr(torch, name)
