# SPDX-License-Identifier: Apache-2.0
"""What is known of a load before any weights are read: found once, for the checks and the load."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from triton_diffusers import families
from triton_diffusers.attention.choice import check_environment
from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.families import Family
from triton_diffusers.loading.arguments import load_kwargs
from triton_diffusers.loading.progress import Log
from triton_diffusers.pipelines.classes import (
    constructor_components,
    find_pipeline_class,
    is_named_by_model,
)
from triton_diffusers.pipelines.model_files import (
    component_classes,
    find_model,
    is_single_file,
    read_index,
)
from triton_diffusers.pipelines.signature import Signature, read_signature
from triton_diffusers.placement.placement import Placement, choose_placement
from triton_diffusers.previews.previews import Previews
from triton_diffusers.quantization.plan import Quantization, plan_quantization


@dataclass(frozen=True)
class LoadPlan:
    """An entry's options, and what its model and its pipeline class say of them."""

    config: ServeConfig
    """`lifted`."""
    entry: Path
    source: Path | str
    """The model's folder or single file, or its hub id."""
    index: dict[str, Any] | None
    """model_index.json of a folder; of a hub model where it names the class."""
    cls: Any
    signature: Signature
    family: Family | None
    components: Mapping[str, str]
    """Component -> class, of model_index.json, else of the constructor; none left out."""
    device: str
    """Where the pipeline runs; empty where the entry leaves that to the server."""
    devices: Mapping[str, str]
    """Option -> the device that it comes to; empty as `device` is."""
    given_twice: tuple[str, ...] = ()
    """Warnings of options that `diffusers_load_kwargs` sets to something else."""

    @property
    def single_file(self) -> bool:
        """Whether the pipeline is loaded from one file alone."""
        return is_single_file(self.source)

    @cached_property
    def load_kwargs(self) -> dict[str, Any]:
        """The arguments of the method that loads. Raises ConfigError as `load_kwargs` does."""
        return load_kwargs(self.config, self.cls, self.device or "cpu", self.single_file)

    @cached_property
    def call_kwargs(self) -> tuple[dict[str, Any], list[str]]:
        """The entry's call kwargs that the pipeline takes, and warnings of the others."""
        return check_call_kwargs(self.config, self.signature)

    @cached_property
    def placement(self) -> Placement | None:
        """Where the weights live; `check_alone` tells whether the device can."""
        return choose_placement(self.config)

    @cached_property
    def quantization(self) -> Quantization | None:
        """What is quantized in the load. Raises ConfigError where the device cannot."""
        return plan_quantization(self.config, self.components, self.cls.__name__, self.device)

    def fetched(self, folder: Path) -> "LoadPlan":
        """Return the plan of a hub model whose files are in a folder now."""
        if self.index is not None:
            return dataclasses.replace(self, source=folder)
        index = read_index(folder, self.config)
        components = present(self.config, _listed(self.cls, index))
        return dataclasses.replace(self, source=folder, index=index, components=components)


@dataclass
class Loading:
    """What a load by a plan has to tell, while it goes on."""

    log: Log
    """Gets progress, a line at a time."""
    previews: Previews | None = None
    """Learn from the calls of the warm-up."""
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """For the log and for `info`."""


def plan_load(
    written: ServeConfig, entry: Path, instance: str = "", source: Path | str | None = None
) -> LoadPlan:
    """Return the plan of an entry's load. Checks no options: see checks.py.

    instance: the device of the instance, where it is known. source: what `find_model` has found.
    Raises ConfigError for a model or a class that is not to be had.
    """
    config = written.lifted()
    source = find_model(config, entry) if source is None else source
    check_environment()
    has_index = not is_single_file(source)
    if isinstance(source, str):
        has_index = is_named_by_model(config)  # the hub is asked for no more than is needed
    index = read_index(source, config) if has_index else None
    cls = find_pipeline_class(config, entry, source, index)
    is_mapped = config.device_map not in (None, "cpu")  # to GPUs, whichever instance loads it
    device = config.device or ("cuda" if is_mapped and instance else instance)
    return LoadPlan(
        config=config,
        entry=entry,
        source=source,
        index=index,
        cls=cls,
        signature=read_signature(cls),
        family=families.find(cls.__name__),
        components=present(config, _listed(cls, index)),
        device=device,
        devices={
            "device_map" if is_mapped else "device": device,
            "generator_device": config.generator_device,
        },
        given_twice=tuple(written.given_twice()),
    )


def _listed(cls: Any, index: dict[str, Any] | None) -> dict[str, str]:
    return component_classes(index or {}) or constructor_components(cls)


def present(config: ServeConfig, components: Mapping[str, str]) -> dict[str, str]:
    """Return the components that the pipeline will have: an entry may leave out optional ones."""
    left_out = {n for n, value in (config.diffusers_load_kwargs or {}).items() if value is None}
    return {n: cls for n, cls in components.items() if cls and n not in left_out}
