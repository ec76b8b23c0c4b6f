# SPDX-License-Identifier: Apache-2.0
"""What options change about a pipeline: one ordered table, checked before the load, applied in it.

A new load-time option is a row here. Placement and warm-up, which tell the log, are in load.py.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_diffusers import families
from triton_diffusers.attention.choice import check_attention, choose_attention
from triton_diffusers.errors import ConfigError
from triton_diffusers.loading.arguments import check_dtypes
from triton_diffusers.loading.checks import (
    CHECKS,
    check_batching,
    check_families,
    check_needed_components,
)
from triton_diffusers.loading.modules import (
    cast_layerwise,
    compile_denoisers,
    enable_vae_options,
    use_channels_last,
)
from triton_diffusers.loading.plan import LoadPlan
from triton_diffusers.loading.scheduler import check_scheduler, replace_scheduler
from triton_diffusers.loading.warmup import first_arguments
from triton_diffusers.lora.adapters import check_lora, load_lora
from triton_diffusers.pipelines.isolation import why_not_beside

Facts = dict[str, Any]


@dataclass(frozen=True)
class Feature:
    """One of the things that options change. What is wrong with them is a ConfigError."""

    apply: Callable[[Any, LoadPlan, list[str]], Facts]
    """(pipeline, plan, warnings to add to) -> what it came to."""
    check: Callable[[LoadPlan], None] = lambda plan: None
    placed: bool = False
    """Whether it is applied to the pipeline on its device, rather than before."""


def check(plan: LoadPlan) -> list[str]:
    """Return warnings. Raises ConfigError, in one line, for what would not load or has no effect.

    What `check_alone` tells is not told again.
    """
    for feature in FEATURES:
        feature.check(plan)
    return [*plan.given_twice, *(note for row in CHECKS for note in row(plan))]


def apply(pipeline: Any, plan: LoadPlan, notes: list[str], *, placed: bool) -> Facts:
    """Change a pipeline before or after it is placed; add warnings to `notes`."""
    facts: Facts = {}
    for feature in FEATURES:
        if feature.placed == placed:
            facts |= feature.apply(pipeline, plan, notes)
    return facts


def _apply_family(pipeline: Any, plan: LoadPlan, notes: list[str]) -> Facts:
    name = type(pipeline).__name__
    there = [n for n, component in pipeline.components.items() if component is not None]
    check_needed_components(plan.config, name, there)
    check_dtypes(pipeline, plan.config)
    family = families.find(name)
    if family and family.after_load:
        family.after_load(pipeline, plan.config)
    return {}


def _check_lora(plan: LoadPlan) -> None:
    check_lora(plan.config, plan.entry, plan.cls)


def _load_lora(pipeline: Any, plan: LoadPlan, notes: list[str]) -> Facts:
    layers = load_lora(pipeline, plan.config, plan.entry, notes)
    return {"lora_layers": layers} if layers else {}


def _choose_attention(pipeline: Any, plan: LoadPlan, notes: list[str]) -> Facts:
    config = plan.config
    probed_with = plan.call_kwargs[0] | first_arguments(config)
    choice = choose_attention(pipeline, config, plan.signature, probed_with, plan.device)
    notes += choice.warnings
    attempts = [
        {n: v for n, v in dataclasses.asdict(a).items() if v is not None} for a in choice.attempts
    ]
    tried = {"attention_attempts": attempts} if attempts else {}
    return {"attention_backend": choice.active, **tried}


def _let_side_by_side(pipeline: Any, plan: LoadPlan, notes: list[str]) -> Facts:
    if plan.config.step_batching and (reason := why_not_beside(pipeline)):
        name = type(pipeline).__name__
        raise ConfigError(f"parameter 'step_batching' cannot be used with {name}: {reason}")
    return {}


FEATURES = (
    Feature(_apply_family, check_families),
    Feature(replace_scheduler, lambda plan: check_scheduler(plan.config)),
    Feature(_load_lora, _check_lora),
    Feature(cast_layerwise),
    Feature(use_channels_last),
    Feature(enable_vae_options),
    Feature(_choose_attention, lambda plan: check_attention(plan.config), placed=True),
    Feature(compile_denoisers, placed=True),
    Feature(_let_side_by_side, check_batching, placed=True),
)
"""In the order in which they are applied."""
