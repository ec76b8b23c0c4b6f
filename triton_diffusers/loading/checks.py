# SPDX-License-Identifier: Apache-2.0
"""What can be told about an entry's options before any weights load: at load and by `check`.

The table of features.py, which has those of other packages too, runs them all.
"""

import importlib.util
from collections.abc import Collection
from pathlib import Path

from triton_diffusers import families
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError, unknown
from triton_diffusers.loading.arguments import OPTION as LOAD_KWARGS
from triton_diffusers.loading.arguments import QUANTIZATION, check_single_file, needed_always
from triton_diffusers.loading.plan import LoadPlan
from triton_diffusers.pipelines import weight_files
from triton_diffusers.pipelines.model_files import component_classes, find_path, is_path
from triton_diffusers.quantization.methods import read_method
from triton_diffusers.quantization.native import build_native
from triton_diffusers.quantization.plan import check_quantization
from triton_diffusers.quantization.request import read_quantization

DEVICE_MAPS = ("balanced", "cpu", "cuda")


def check_short_quantization(config: ServeConfig) -> None:
    """Raise ConfigError for a method that there is not."""
    given = config.quantization_config
    if (config.diffusers_load_kwargs or {}).get(QUANTIZATION) is not None:
        return  # it wins, with a warning
    if isinstance(given, str) or (isinstance(given, dict) and "method" in given):
        try:
            read_method(given)
        except ConfigError as error:
            raise ConfigError(f"parameter 'quantization_config': {error}") from None


def check_needed_components(plan: LoadPlan, components: Collection[str]) -> None:
    """Raise ConfigError for an option whose component a model does not have."""
    config = plan.config
    for option, component in plan.family.option_needs.items() if plan.family else ():
        if getattr(config, option) is not None and component not in components:
            raise ConfigError(
                f"parameter '{option}' has no effect on '{config.model}': it has no {component}; "
                "remove it"
            )
    for option in ("vae_use_slicing", "vae_use_tiling"):
        if getattr(config, option) and "vae" not in components:
            raise ConfigError(
                f"parameter '{option}' has no effect on {plan.cls.__name__}: it has no vae; "
                "remove it"
            )


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
    config, family = plan.config, plan.family
    for option, names in families.family_options().items():
        if getattr(config, option) == getattr(ServeConfig, option):
            continue
        if family is None or option not in family.options:
            raise ConfigError(
                f"parameter '{option}' has no effect on {plan.cls.__name__}: only "
                f"{', '.join(names)} pipelines have it; remove it"
            )
    if family and family.check:
        family.check(config)


def check_source(plan: LoadPlan) -> None:
    """Raise ConfigError for options that the model's parts, or its single file, cannot honour."""
    if plan.single_file:
        check_single_file(plan.config, plan.cls)
        _check_file_config(plan)
        return
    if isinstance(plan.source, Path) and plan.config.revision is not None:
        raise ConfigError(
            f"parameter 'revision' has no effect on the folder '{plan.config.model}': remove it, "
            "or name the hub model"
        )
    check_needed_components(plan, plan.components)


def check_arguments(plan: LoadPlan) -> list[str]:
    """Check the arguments of the load and of every call."""
    _ = plan.load_kwargs  # they are checked where they are made
    return plan.call_kwargs[1]


def check_device_map(plan: LoadPlan) -> None:
    """Raise ConfigError for a map that diffusers does not know."""
    from diffusers.pipelines import pipeline_utils

    config = plan.config
    # diffusers lists the device that this machine has; the entry may be for another one
    accepted = {*DEVICE_MAPS, *getattr(pipeline_utils, "SUPPORTED_DEVICE_MAP", ())}
    if config.device_map is not None and config.device_map not in accepted:
        raise ConfigError(unknown("device_map", config.device_map, "diffusers", accepted))


def _check_file_config(plan: LoadPlan) -> None:
    """Check the folder that configures a single file's components."""
    entry = plan.entry
    given = (plan.config.diffusers_load_kwargs or {}).get("config")
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


def check_components(plan: LoadPlan) -> list[str]:
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


def check_variant(plan: LoadPlan) -> None:
    """Raise ConfigError for a variant of which a folder has no file."""
    config, model = plan.config, plan.source
    if not isinstance(model, Path) or plan.single_file:
        return
    if config.variant is None:
        if needed := sorted(weight_files.only_variants(model, plan.components)):
            raise ConfigError(
                f"model '{config.model}' has weights of variant {' or '.join(needed)} only: set "
                f"variant to {' or '.join(needed)}"
            )
        return
    there = weight_files.variants(model)
    if config.variant in there:
        return
    if not any(weight_files.WEIGHT_FILE.fullmatch(f.name) for f in model.glob("*/*")):
        return  # no weights yet: nothing can be told
    raise ConfigError(
        f"parameter 'variant': model '{config.model}' has no files such as "
        f"model.{config.variant}.safetensors; "
        + (f"it has: {', '.join(sorted(there))}" if there else "it has no variants: remove it")
    )


def check_quantization_config(plan: LoadPlan) -> list[str]:
    """Make the quantization config, as loading does: its classes, arguments and packages."""
    asked = plan.config, plan.components, plan.cls.__name__
    notes, request = check_quantization(*asked), read_quantization(*asked)
    if request is None or (request.method and importlib.util.find_spec("torchao") is None):
        return notes  # which tell of the missing package
    try:
        build_native(request.form, plan.components)
    except ConfigError as error:
        raise ConfigError(f"{request.where}: {error}") from None
    return notes
