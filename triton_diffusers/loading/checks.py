# SPDX-License-Identifier: Apache-2.0
"""What can be told about an entry's options before any weights load: at load and by `check`.

Those of single features are in features.py, which runs them all.
"""

import importlib.util
from collections.abc import Callable, Collection
from pathlib import Path

from triton_diffusers import families
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, unknown
from triton_diffusers.loading.arguments import OPTION as LOAD_KWARGS
from triton_diffusers.loading.arguments import QUANTIZATION, check_single_file, needed_always
from triton_diffusers.loading.modules import check_memory_options
from triton_diffusers.loading.plan import LoadPlan
from triton_diffusers.loading.warmup import check_warmup, read_warmup
from triton_diffusers.lora.adapters import read_adapters
from triton_diffusers.pipelines import weight_files
from triton_diffusers.pipelines.model_files import component_classes, find_path, is_path
from triton_diffusers.placement.placement import check_placement
from triton_diffusers.quantization.methods import read_method
from triton_diffusers.quantization.native import build_native
from triton_diffusers.quantization.plan import check_quantization
from triton_diffusers.quantization.request import read_request

DEVICE_MAPS = ("balanced", "cpu", "cuda")


def check_alone(config: ServeConfig, instance: str = "") -> None:
    """Raise ConfigError for options that are wrong whatever the pipeline is; imports no diffusers.

    instance: its device, where it is known.
    """
    check_placement(config, config.device or instance)
    check_memory_options(config)
    read_warmup(config)
    read_adapters(config)
    given = config.quantization_config
    if (config.diffusers_load_kwargs or {}).get(QUANTIZATION) is not None:
        return  # it wins, with a warning
    if isinstance(given, str) or (isinstance(given, dict) and "method" in given):
        try:
            read_method(given)
        except ConfigError as error:
            raise ConfigError(f"parameter 'quantization_config': {error}") from None


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


def _check_revision(plan: LoadPlan) -> list[str]:
    is_folder = isinstance(plan.source, Path) and not plan.single_file
    if is_folder and plan.config.revision is not None:
        raise ConfigError(
            f"parameter 'revision' has no effect on the folder '{plan.config.model}': remove it, "
            "or name the hub model"
        )
    return []


def check_batching(plan: LoadPlan) -> None:
    """Raise ConfigError where nothing can be batched, and for bounds of batches without any."""
    config, signature = plan.config, plan.signature
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


def check_families(plan: LoadPlan) -> None:
    """Raise ConfigError for an option that only other families honour."""
    config, pipeline_class = plan.config, plan.cls.__name__
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


def _check_source(plan: LoadPlan) -> list[str]:
    """Raise ConfigError for options that the model's parts, or its single file, cannot honour."""
    if plan.single_file:
        check_single_file(plan.config, plan.cls)
    else:
        check_needed_components(plan.config, plan.cls.__name__, plan.components)
    return []


def _check_arguments(plan: LoadPlan) -> list[str]:
    """Check the arguments of the load and of every call."""
    _ = plan.load_kwargs  # they are checked where they are made
    check_warmup(plan.config, plan.signature, plan.call_kwargs[0])
    return plan.call_kwargs[1]


def _check_device_map(plan: LoadPlan) -> list[str]:
    from diffusers.pipelines import pipeline_utils

    config = plan.config
    # diffusers lists the device that this machine has; the entry may be for another one
    accepted = {*DEVICE_MAPS, *getattr(pipeline_utils, "SUPPORTED_DEVICE_MAP", ())}
    if config.device_map is not None and config.device_map not in accepted:
        raise ConfigError(unknown("device_map", config.device_map, "diffusers", accepted))
    return []


def _check_file_config(plan: LoadPlan) -> list[str]:
    """Check the folder that configures a single file's components."""
    config, entry = plan.config, plan.entry
    if not plan.single_file:
        return []
    given = (config.diffusers_load_kwargs or {}).get("config")
    if not isinstance(given, str):
        return []
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
    return []


def _check_components(plan: LoadPlan) -> list[str]:
    """Check model_index.json against the class; warn of components that the class leaves out."""
    config, cls, index = plan.config, plan.cls, plan.index
    if index is None:
        return []
    named = index["_class_name"]
    own = named[-1] if isinstance(named, list) else named
    expected, optional = cls._get_signature_keys(cls)
    given = config.diffusers_load_kwargs or {}
    needed = needed_always(cls)
    there = {n for n, v in index.items() if v not in (None, [None, None]) or n not in needed}
    there |= given.keys()
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


def _check_variant(plan: LoadPlan) -> list[str]:
    config, model = plan.config, plan.source
    if config.variant is None or not isinstance(model, Path) or plan.single_file:
        return []
    there = weight_files.variants(model)
    if config.variant in there:
        return []
    if not any(weight_files.WEIGHT_FILE.fullmatch(f.name) for f in model.glob("*/*")):
        return []  # no weights yet: nothing can be told
    raise ConfigError(
        f"parameter 'variant': model '{config.model}' has no files such as "
        f"model.{config.variant}.safetensors; "
        + (f"it has: {', '.join(sorted(there))}" if there else "it has no variants: remove it")
    )


def _check_quantization(plan: LoadPlan) -> list[str]:
    return check_quantization(plan.config, plan.components, plan.cls.__name__)


def _build_quantization(plan: LoadPlan) -> list[str]:
    """Make the quantization config, as loading does: its classes, arguments and packages."""
    request = read_request(plan.config, plan.components, plan.cls.__name__)
    if request is None or (request.method and importlib.util.find_spec("torchao") is None):
        return []  # check_quantization() has told of the missing package
    try:
        build_native(request.form, plan.components)
    except ConfigError as error:
        raise ConfigError(f"{request.where}: {error}") from None
    return []


CHECKS: tuple[Callable[[LoadPlan], list[str]], ...] = (
    _check_revision,
    _check_source,
    _check_arguments,
    _check_quantization,
    _check_device_map,
    _check_file_config,
    _check_components,
    _check_variant,
    _build_quantization,
)
"""(plan) -> warnings; each raises ConfigError."""
