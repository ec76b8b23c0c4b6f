# SPDX-License-Identifier: Apache-2.0
"""What is known of a load before any weights are read: found once, for the checks and the load."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from triton_diffusers.attention.choice import check_environment
from triton_diffusers.calls.defaults import check_call_kwargs
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.loading.arguments import load_kwargs
from triton_diffusers.pipelines.classes import constructor_components, find_pipeline_class
from triton_diffusers.pipelines.model_files import (
    component_classes,
    find_model,
    is_single_file,
    read_index,
)
from triton_diffusers.pipelines.signature import Signature, read_signature
from triton_diffusers.placement.placement import Placement, choose_placement


@dataclass(frozen=True)
class LoadPlan:
    """An entry's options, and what its model and its pipeline class say of them."""

    config: ServeConfig
    """`lifted`."""
    entry: Path
    source: Path | str
    """The model's folder or single file, or its hub id."""
    index: dict[str, Any] | None
    """model_index.json of a folder."""
    cls: Any
    signature: Signature
    device: str
    """Where the pipeline runs; empty where the entry leaves that to the server."""
    given_twice: tuple[str, ...] = ()
    """Warnings of options that `diffusers_load_kwargs` sets to something else."""

    @property
    def single_file(self) -> bool:
        """Whether the pipeline is loaded from one file alone."""
        return is_single_file(self.source)

    @cached_property
    def components(self) -> dict[str, str]:
        """Component -> class, of model_index.json, else of the constructor; none left out."""
        found = component_classes(self.index or {}) or constructor_components(self.cls)
        return present(self.config, found)

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

    def fetched(self, folder: Path) -> "LoadPlan":
        """Return the plan of a hub model whose files are in a folder now."""
        return dataclasses.replace(self, source=folder, index=read_index(folder, self.config))


def plan_load(
    written: ServeConfig, entry: Path, instance: str = "", source: Path | str | None = None
) -> LoadPlan:
    """Return the plan of an entry's load. Checks no options: see checks.py.

    instance: the device of the instance, where it is known. source: what `find_model` has found.
    Raises ConfigError for a model or a class that is not to be had.
    """
    config = written.lifted()
    source = find_model(config, entry) if source is None else source
    is_folder = isinstance(source, Path) and not is_single_file(source)
    index = read_index(source, config) if is_folder else None
    check_environment()
    cls = find_pipeline_class(config, entry, source, index)
    return LoadPlan(
        config=config,
        entry=entry,
        source=source,
        index=index,
        cls=cls,
        signature=read_signature(cls),
        device=config.device or ("cuda" if is_mapped(config) and instance else instance),
        given_twice=tuple(written.given_twice()),
    )


def is_mapped(config: ServeConfig) -> bool:
    """Tell whether `device_map` takes the pipeline to GPUs, whichever instance loads it."""
    return config.device_map not in (None, "cpu")


def present(config: ServeConfig, components: Mapping[str, str]) -> dict[str, str]:
    """Return the components that the pipeline will have: an entry may leave out optional ones."""
    left_out = {n for n, value in (config.diffusers_load_kwargs or {}).items() if value is None}
    return {n: cls for n, cls in components.items() if cls and n not in left_out}
