# SPDX-License-Identifier: Apache-2.0
"""What can be told about an entry's options before any weights load: at load and by `check`.

`check_options` asks the pipeline class alone; `check_early` looks into the model's folder, or
imports the libraries that quantize.
"""

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.attention.choice import check_attention
from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, unknown
from triton_diffusers.loading.arguments import OPTION as LOAD_KWARGS
from triton_diffusers.loading.arguments import check_single_file, load_kwargs
from triton_diffusers.loading.modules import check_memory_options
from triton_diffusers.loading.scheduler import check_scheduler
from triton_diffusers.loading.warmup import check_warmup
from triton_diffusers.lora.adapters import Adapter, check_lora, read_adapters
from triton_diffusers.pipelines import weight_files
from triton_diffusers.pipelines.classes import constructor_components
from triton_diffusers.pipelines.model_files import (
    component_classes,
    find_model,
    find_path,
    is_path,
    is_single_file,
    read_index,
)
from triton_diffusers.pipelines.signature import Signature
from triton_diffusers.placement.placement import choose_placement
from triton_diffusers.quantization.native import build_native
from triton_diffusers.quantization.plan import check_quantization
from triton_diffusers.quantization.request import present, read_request

DEVICE_MAPS = ("balanced", "cpu", "cuda")
LORA_FILE = "pytorch_lora_weights"
NOT_LORA = ("scheduler", "optimizer", "checkpoint")
"""Words in names of files that load_lora_weights() passes over."""


def check_options(
    config: ServeConfig, cls: Any, signature: Signature, entry: Path, device: str = "cpu"
) -> tuple[dict[str, Any], list[str]]:
    """Return the call kwargs that the pipeline takes, and warnings.

    Raises ConfigError, in one line, for what would be refused or have no effect.
    """
    model = find_model(config, entry)
    single_file = is_single_file(model)
    if isinstance(model, Path) and not single_file and config.revision is not None:
        raise ConfigError(
            f"parameter 'revision' has no effect on the folder '{config.model}': remove it, or "
            "name the hub model"
        )
    _check_families(config, cls.__name__)
    _check_batching(config, signature)
    if single_file:
        check_single_file(config, cls)
    else:
        check_needed_components(config, cls.__name__, components_of_model(config, cls, entry))
    load_kwargs(config, cls, device, single_file)
    choose_placement(config)
    check_memory_options(config)
    check_attention(config)
    check_scheduler(config)
    check_lora(config, entry, cls)
    call_kwargs, notes = check_call_kwargs(config, signature)
    check_warmup(config, signature, call_kwargs)
    if config.is_quantized:
        components = components_of_model(config, cls, entry)
        notes += check_quantization(config, components, cls.__name__)
    return call_kwargs, notes


def components_of_model(config: ServeConfig, cls: type, entry: Path) -> dict[str, str]:
    """Return component -> class, from a local model_index.json, else from the constructor."""
    model = find_model(config, entry)
    if isinstance(model, Path) and model.is_dir():
        return component_classes(read_index(model, config)) or constructor_components(cls)
    return constructor_components(cls)


def check_needed_components(
    config: ServeConfig, pipeline_class: str, components: Collection[str]
) -> None:
    """Raise ConfigError for an option whose component a model does not have."""
    family = families.find(pipeline_class)
    for option, component in family.option_needs.items() if family else ():
        if getattr(config, option) is not None and component not in components:
            raise ConfigError(
                f"parameter '{option}' has no effect on '{config.model}': it has no {component}; "
                "remove it"
            )
    for option in ("vae_use_slicing", "vae_use_tiling"):
        if getattr(config, option) and "vae" not in components:
            raise ConfigError(
                f"parameter '{option}' has no effect on {pipeline_class}: it has no vae; remove it"
            )


def _check_batching(config: ServeConfig, signature: Signature) -> None:
    """Raise ConfigError where nothing can be batched, and for bounds of batches without any."""
    if config.request_batching and config.step_batching:
        raise ConfigError(
            "parameters 'request_batching' and 'step_batching' cannot be used together: both join "
            "requests; choose one"
        )
    if config.request_batching and not (
        "prompt" in signature.parameters and "generator" in signature.reserved
    ):
        raise ConfigError(
            f"parameter 'request_batching' cannot be used with {signature.pipeline_class}: its "
            "calls take no prompts with a generator for each"
        )
    ways = {
        "max_in_flight": ("step_batching",),
        "max_batch": ("request_batching", "step_batching"),
    }
    for name, needed in ways.items():
        is_set = getattr(config, name) != getattr(ServeConfig, name)
        if is_set and not any(getattr(config, way) for way in needed):
            raise ConfigError(
                f"parameter '{name}' has no effect without {' or '.join(needed)}: remove it, or "
                f"set {needed[-1]} to true"
            )


def _check_families(config: ServeConfig, pipeline_class: str) -> None:
    """Raise ConfigError for an option that only other families honour."""
    family = families.find(pipeline_class)
    for option, names in families.family_options().items():
        if getattr(config, option) is None:
            continue
        if family is None or option not in family.options:
            raise ConfigError(
                f"parameter '{option}' has no effect on {pipeline_class}: only "
                f"{', '.join(names)} pipelines have it; remove it"
            )
    if config.scheduler is not None and config.flow_shift is not None:
        raise ConfigError(
            "parameters 'scheduler' and 'flow_shift' both replace the scheduler: give the shift as "
            'config of the scheduler, {"class": NAME, "flow_shift": X}'
        )


def check_early(config: ServeConfig, cls: Any, entry: Path) -> list[str]:
    """Return warnings. Raises ConfigError, in one line, for what would not load on any device.

    config: `lifted`, and passed by `check_options`.
    """
    notes: list[str] = []
    model = find_model(config, entry)
    _check_device_map(config)
    if is_single_file(model):
        _check_file_config(config, entry)
    elif isinstance(model, Path):
        notes += _check_components(config, cls, model)
        _check_variant(config, model)
    for adapter in read_adapters(config):
        _check_adapter(adapter, entry)
    if config.is_quantized:
        _check_quantization(config, cls, entry)
    return notes


def _check_device_map(config: ServeConfig) -> None:
    from diffusers.pipelines import pipeline_utils

    # diffusers lists the device that this machine has; the entry may be for another one
    accepted = {*DEVICE_MAPS, *getattr(pipeline_utils, "SUPPORTED_DEVICE_MAP", ())}
    if config.device_map is not None and config.device_map not in accepted:
        raise ConfigError(unknown("device_map", config.device_map, "diffusers", accepted))


def _check_file_config(config: ServeConfig, entry: Path) -> None:
    """Check the folder that configures a single file's components."""
    given = (config.diffusers_load_kwargs or {}).get("config")
    if not isinstance(given, str):
        return
    folder = find_path("config", given, entry)
    if folder is None and is_path(given):
        raise ConfigError(
            f"{LOAD_KWARGS}: config '{given}' does not exist ({entry / given}); give a folder with "
            "a model_index.json, or a hub id"
        )
    if folder is not None and not (folder / "model_index.json").is_file():
        raise ConfigError(
            f"{LOAD_KWARGS}: config '{given}' has no model_index.json; give the folder of a "
            "pipeline of that kind"
        )


def _check_components(config: ServeConfig, cls: Any, model: Path) -> list[str]:
    """Check model_index.json against the class; warn of components that the class leaves out."""
    index = read_index(model, config)
    named = index["_class_name"]
    own = named[-1] if isinstance(named, list) else named
    expected, optional = cls._get_signature_keys(cls)
    given = config.diffusers_load_kwargs or {}
    there = {n for n, value in index.items() if value not in (None, [None, None])} | given.keys()
    missing = sorted(set(expected) - set(cls._optional_components) - there)
    way_out = (
        f"model_index.json names {own}: remove pipeline_class"
        if own != cls.__name__
        else "copy or download the model again, or set pipeline_class to a class that fits it"
    )
    if missing:
        raise ConfigError(
            f"model '{config.model}' has no {', '.join(missing)}, which {cls.__name__} cannot do "
            f"without; {way_out}"
        )
    unused = sorted(component_classes(index).keys() - set(expected) - set(optional))
    if unused and own != cls.__name__:
        return [f"{cls.__name__} does not use {', '.join(unused)} of the model; {way_out}?"]
    return []


def _check_variant(config: ServeConfig, model: Path) -> None:
    there = weight_files.variants(model)
    if config.variant is None or config.variant in there:
        return
    if not any(weight_files.WEIGHT_FILE.fullmatch(f.name) for f in model.glob("*/*")):
        return  # no weights yet: nothing can be told
    raise ConfigError(
        f"parameter 'variant': model '{config.model}' has no files such as "
        f"model.{config.variant}.safetensors; "
        + (f"it has: {', '.join(sorted(there))}" if there else "it has no variants: remove it")
    )


def _check_adapter(adapter: Adapter, entry: Path) -> None:
    """Check that a local folder leaves no doubt which file is the adapter."""
    folder = find_path("lora", adapter.path, entry)
    if folder is None or not folder.is_dir():
        return
    files = _lora_files(folder)
    where = f"parameter 'lora': '{adapter.path}'"
    if adapter.weight_name is not None:
        if not (folder / adapter.weight_name).is_file():
            raise ConfigError(
                "parameter 'lora': "
                + unknown("weight_name", adapter.weight_name, f"'{adapter.path}'", files)
            )
    elif not files:
        raise ConfigError(f"{where} holds no .safetensors or .bin file; name the adapter's file")
    elif len(files) > 1:
        raise ConfigError(
            f"{where} holds several files: {', '.join(files)}; say which one: "
            f'{{"path": "{adapter.path}", "weight_name": "{files[0]}"}}'
        )


def _lora_files(folder: Path) -> list[str]:
    """Return the files of which load_lora_weights() would take the first, in no certain order.

    Source: diffusers.loaders.lora_base._best_guess_weight_name.
    """
    for suffix in (".safetensors", ".bin"):
        names = sorted(f.name for f in folder.glob(f"*{suffix}"))
        names = [name for name in names if not any(word in name for word in NOT_LORA)]
        if names:
            return [name for name in names if name.endswith(LORA_FILE + suffix)] or names
    return []


def _check_quantization(config: ServeConfig, cls: Any, entry: Path) -> None:
    """Make the quantization config, as loading does: its classes, arguments and packages."""
    components = present(config, components_of_model(config, cls, entry))
    request = read_request(config, components, cls.__name__)
    if request is None or (request.method and importlib.util.find_spec("torchao") is None):
        return  # check_options() has told of the missing package
    try:
        build_native(request.form, components)
    except ConfigError as error:
        raise ConfigError(f"{request.where}: {error}") from None
