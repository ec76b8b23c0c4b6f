# SPDX-License-Identifier: Apache-2.0
"""What options change about a pipeline: one ordered table, checked before the load, applied in it.

A new load-time option is a row here, or part of one.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_diffusers.attention.choice import check_attention, choose_attention
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading import checks
from triton_diffusers.loading.arguments import QUANTIZATION, check_dtypes
from triton_diffusers.loading.modules import (
    cast_layerwise,
    check_memory_options,
    compile_denoisers,
    enable_vae_options,
    use_channels_last,
)
from triton_diffusers.loading.plan import Loading, LoadPlan
from triton_diffusers.loading.progress import moving_progress
from triton_diffusers.loading.scheduler import check_scheduler, replace_scheduler
from triton_diffusers.loading.warmup import check_warmup, first_arguments, read_warmup, warm_up
from triton_diffusers.lora.adapters import check_lora, load_lora, read_adapters
from triton_diffusers.pipelines.isolation import why_not_beside
from triton_diffusers.placement.placement import check_placement, place
from triton_diffusers.quantization.plan import verify_quantization

Facts = dict[str, Any]


@dataclass(frozen=True)
class Feature:
    """One of the things that options change. What is wrong with them is a ConfigError."""

    check: Callable[[LoadPlan], list[str] | None] = lambda plan: None
    """plan -> warnings."""
    apply: Callable[[Any, LoadPlan, Loading], Facts] = lambda pipeline, plan, loading: {}
    """(pipeline, plan, loading) -> what it came to."""
    alone: Callable[[ServeConfig, str], object] = lambda config, device: None
    """(config, device or ""): what is wrong whatever the pipeline is; imports no diffusers."""
    arguments: Callable[[LoadPlan], dict[str, Any]] = lambda plan: {}
    """plan -> arguments of from_pretrained(); those that the entry itself gives win."""
    placed: bool = False
    """Whether it is applied to the pipeline on its device, rather than before."""


def check_alone(config: ServeConfig, instance: str = "") -> None:
    """Raise ConfigError for options that are wrong whatever the pipeline is; imports no diffusers.

    instance: its device, where it is known.
    """
    for feature in FEATURES:
        feature.alone(config, config.device or instance)


def check(plan: LoadPlan) -> list[str]:
    """Return warnings. Raises ConfigError, in one line, for what would not load or has no effect.

    What `check_alone` tells is not told again.
    """
    found = [note for feature in FEATURES for note in feature.check(plan) or ()]
    return [*plan.given_twice, *found]


def arguments(plan: LoadPlan) -> dict[str, Any]:
    """Return the arguments that a pipeline is loaded with."""
    found: dict[str, Any] = {}
    for feature in FEATURES:
        found |= feature.arguments(plan)
    return found | plan.load_kwargs


def apply(pipeline: Any, plan: LoadPlan, loading: Loading, *, placed: bool) -> None:
    """Change a pipeline, up to placing it or after that."""
    for feature in FEATURES:
        if feature.placed == placed:
            loading.facts |= feature.apply(pipeline, plan, loading)


def _quantize(plan: LoadPlan) -> dict[str, Any]:
    found = plan.quantization
    if found is None:
        return {}
    on_gpu = {"device_map": "cuda"} if found.on_gpu else {}  # the current one: see use_device
    return {QUANTIZATION: found.config, **on_gpu}


def _verify_quantization(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    if plan.quantization is None:
        return {}
    held = verify_quantization(pipeline, plan.quantization).items()
    loading.warnings += plan.quantization.warnings
    sizes = {n: {"bytes_before": before, "bytes": after} for n, (before, after) in held}
    return {"quantization": {"method": plan.quantization.method, **sizes}}


def _apply_family(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    there = [n for n, component in pipeline.components.items() if component is not None]
    checks.check_needed_components(plan, there)
    check_dtypes(pipeline, plan.config)
    if plan.family and plan.family.after_load:
        plan.family.after_load(pipeline, plan.config)
    return {}


def _check_lora(plan: LoadPlan) -> None:
    check_lora(plan.config, plan.entry, plan.cls)


def _load_lora(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    layers = load_lora(pipeline, plan.config, plan.entry, loading.warnings)
    return {"lora_layers": layers} if layers else {}


def _place(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    total = loading.facts.get("load", {}).get("bytes", 0)
    with moving_progress(loading.log, plan.device, total):
        return {"placement": place(pipeline, plan.placement, plan.config, plan.device)}


def _choose_attention(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    config = plan.config
    probed_with = plan.call_kwargs[0] | first_arguments(config)
    choice = choose_attention(pipeline, config, plan.signature, probed_with, plan.device)
    loading.warnings += choice.warnings
    attempts = [
        {n: v for n, v in dataclasses.asdict(a).items() if v is not None} for a in choice.attempts
    ]
    tried = {"attention_attempts": attempts} if attempts else {}
    return {"attention_backend": choice.active, **tried}


def _let_side_by_side(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    if plan.config.step_batching and (reason := why_not_beside(pipeline)):
        name = type(pipeline).__name__
        raise ConfigError(f"parameter 'step_batching' cannot be used with {name}: {reason}")
    return {}


def _check_warmup(plan: LoadPlan) -> None:
    check_warmup(plan.config, plan.signature, plan.call_kwargs[0])


def _warm_up(pipeline: Any, plan: LoadPlan, loading: Loading) -> Facts:
    defaults, log, previews = plan.call_kwargs[0], loading.log, loading.previews
    notes = warm_up(pipeline, plan.config, plan.signature, defaults, log, previews)
    loading.warnings += notes
    return {}


FEATURES = (
    Feature(
        alone=lambda config, device: checks.check_short_quantization(config),
        check=checks.check_quantization_config,
        arguments=_quantize,
        apply=_verify_quantization,
    ),
    Feature(checks.check_families, _apply_family),
    Feature(lambda plan: check_scheduler(plan.config), replace_scheduler),
    Feature(_check_lora, _load_lora, alone=lambda config, device: read_adapters(config)),
    Feature(apply=cast_layerwise, alone=lambda config, device: check_memory_options(config)),
    Feature(apply=use_channels_last),
    Feature(apply=enable_vae_options),
    Feature(checks.check_device_map, _place, alone=check_placement),
    Feature(lambda plan: check_attention(plan.config), _choose_attention, placed=True),
    Feature(apply=compile_denoisers, placed=True),
    Feature(checks.check_batching, _let_side_by_side, placed=True),
    Feature(_check_warmup, _warm_up, alone=lambda config, device: read_warmup(config), placed=True),
    Feature(checks.check_source),
    Feature(checks.check_arguments),
    Feature(checks.check_components),
    Feature(checks.check_variant),
)
"""In the order in which they are applied."""
