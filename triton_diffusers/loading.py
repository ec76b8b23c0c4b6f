# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig` -> a pipeline on its device. Imports torch and diffusers inside its functions."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.attention import choose_attention
from triton_diffusers.compilation import compile_denoisers
from triton_diffusers.config import ServeConfig
from triton_diffusers.devices import check_device, use_device
from triton_diffusers.errors import ConfigError
from triton_diffusers.load_errors import explain_load
from triton_diffusers.load_kwargs import (
    QUANTIZATION,
    dtype_names,
    dtype_of,
    load_kwargs,
    load_single_file,
)
from triton_diffusers.lora import load_lora
from triton_diffusers.memory_options import cast_layerwise, enable_vae_options, use_channels_last
from triton_diffusers.model_files import (
    component_classes,
    fetch_subfolder,
    find_model,
    is_single_file,
    read_index,
)
from triton_diffusers.notices import quiet_loading
from triton_diffusers.option_checks import check_options, is_quantized
from triton_diffusers.pipeline_classes import find_pipeline_class, import_diffusers
from triton_diffusers.placement import check_placement, place
from triton_diffusers.progress import Processors, read_processors
from triton_diffusers.quantization import plan_quantization, verify_quantization
from triton_diffusers.schedulers import replace_scheduler
from triton_diffusers.signature import Signature, read_signature
from triton_diffusers.warmup import first_arguments, warm_up

Log = Callable[[str], None]


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline ready to be called, and what is known about it."""

    pipeline: Any
    signature: Signature
    config: ServeConfig
    device: str
    dtype: str | dict[str, str]
    versions: dict[str, str]
    warnings: tuple[str, ...] = ()
    call_kwargs: dict[str, Any] = field(default_factory=dict)
    """The entry's `diffusers_call_kwargs` without those that the pipeline does not take."""
    processors: Processors = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """What the load-time options came to, as JSON: for the log and for `info`."""


def load_pipeline(
    config: ServeConfig, entry: Path, device: str, log: Log = lambda text: None
) -> LoadedPipeline:
    """Load the pipeline of an entry and change it as its options say.

    device: the instance's. log: gets progress, a line at a time. Raises ConfigError, in one line,
    for what the operator set and for what does not load.
    """
    diffusers = import_diffusers()
    import torch

    if config.cpu_threads is not None:
        torch.set_num_threads(config.cpu_threads)
    cls = find_pipeline_class(config, entry)
    signature = read_signature(cls)
    device = _device(config, device)
    call_kwargs, notes = check_options(config, cls, signature, entry, device)
    facts: dict[str, Any] = {}
    kwargs = load_kwargs(config, cls, device, is_single_file(find_model(config, entry)))
    pipeline = _load(config, entry, cls, device, kwargs, facts, notes)
    probed_with = call_kwargs | first_arguments(config)
    attention = choose_attention(pipeline, config, signature, probed_with, device)
    facts["attention_backend"] = attention.active
    if attention.attempts:
        facts["attention_attempts"] = [dataclasses.asdict(a) for a in attention.attempts]
    notes += attention.warnings
    if compiled := compile_denoisers(pipeline, config):
        facts["compiled"] = compiled
    notes += warm_up(pipeline, config, signature, call_kwargs, log)
    return LoadedPipeline(
        pipeline=pipeline,
        signature=signature,
        config=config,
        device=device,
        dtype=dtype_names(kwargs),
        versions={"diffusers": diffusers.__version__, "torch": torch.__version__},
        warnings=tuple(notes),
        call_kwargs=call_kwargs,
        processors=read_processors(pipeline),
        facts=facts,
    )


def _device(config: ServeConfig, instance: str) -> str:
    """Return the device to run on: the entry's, else the instance's. Checks that it is there."""
    mapped = config.device_map not in (None, "cpu")
    device = config.device or ("cuda" if mapped else instance)
    check_device("device_map" if mapped else "device", device)
    check_device("generator_device", config.generator_device)
    check_placement(config, device)
    use_device(device)
    return device


def _load(
    config: ServeConfig,
    entry: Path,
    cls: Any,
    device: str,
    kwargs: dict[str, Any],
    facts: dict[str, Any],
    notes: list[str],
) -> Any:
    """Load the weights, change the pipeline and place it; tell what was done in `facts`."""
    problem = ""
    try:
        with quiet_loading():
            plan = _plan_quantization(config, entry, cls, device)
            extra = {} if plan is None else {QUANTIZATION: plan.config}
            if plan is not None and plan.on_gpu and config.device_map is None:
                extra["device_map"] = "cuda"  # the current one: see use_device
            pipeline = _from_pretrained(config, entry, cls, kwargs | extra)
            if plan is not None:
                facts["quantization"] = {"method": plan.method} | {
                    name: {"bytes_before": before, "bytes": after}
                    for name, (before, after) in verify_quantization(pipeline, plan).items()
                }
                notes += plan.warnings
            notes += _change(pipeline, config, entry, kwargs, facts)
            facts["placement"] = place(pipeline, check_placement(config, device), config, device)
            pipeline.set_progress_bar_config(disable=True)
            return pipeline
    except ConfigError as error:
        problem = str(error)
    except Exception as error:
        problem = explain_load(error, config)
    # raised here: the traceback of the failure would keep what was loaded in memory
    raise ConfigError(problem)


def _plan_quantization(config: ServeConfig, entry: Path, cls: Any, device: str) -> Any:
    if not is_quantized(config):
        return None
    model = find_model(config, entry)
    components = component_classes(read_index(model, config))
    return plan_quantization(config, components, cls.__name__, device)


def _from_pretrained(config: ServeConfig, entry: Path, cls: Any, kwargs: dict[str, Any]) -> Any:
    model = find_model(config, entry)
    if is_single_file(model):
        return load_single_file(cls, str(model), kwargs, entry)
    if not isinstance(model, Path) and config.subfolder is not None:
        model = fetch_subfolder(model, config)
    return cls.from_pretrained(str(model), **kwargs)


def _change(
    pipeline: Any, config: ServeConfig, entry: Path, kwargs: dict[str, Any], facts: dict[str, Any]
) -> list[str]:
    """Apply the options that change a loaded pipeline before it is placed; return warnings."""
    family = families.find(type(pipeline).__name__)
    if family and family.after_load:
        family.after_load(pipeline, config)
    notes = replace_scheduler(pipeline, config)
    if layers := load_lora(pipeline, config, entry, notes):
        facts["lora_layers"] = layers
    if cast := cast_layerwise(pipeline, config, dtype_of(kwargs)):
        facts["layerwise_casting"] = cast
    if changed := use_channels_last(pipeline, config):
        facts["channels_last"] = changed
    enable_vae_options(pipeline, config)
    return notes
