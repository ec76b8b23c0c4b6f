# SPDX-License-Identifier: Apache-2.0
"""What can be told about an entry's options before any weights load: at load and by `check`."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.attention.choice import check_attention
from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.arguments import check_single_file, load_kwargs
from triton_diffusers.loading.modules import check_memory_options
from triton_diffusers.loading.scheduler import check_scheduler
from triton_diffusers.loading.warmup import check_warmup
from triton_diffusers.lora.adapters import check_lora
from triton_diffusers.pipelines.classes import constructor_components
from triton_diffusers.pipelines.model_files import (
    component_classes,
    find_model,
    is_single_file,
    read_index,
)
from triton_diffusers.pipelines.signature import Signature
from triton_diffusers.placement.placement import choose_placement
from triton_diffusers.quantization.plan import check_quantization


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
