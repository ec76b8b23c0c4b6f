# SPDX-License-Identifier: Apache-2.0
"""What one group of pipelines needs differently: one file per family, found by listing the folder.

A family file defines `FAMILY = Family(...)`, and declares the options that only it has as a
dataclass of `option(...)` (option.py). Nothing else has to be edited.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Family:
    """The differences, as values. Every field but the first two is optional."""

    name: str
    pipelines: tuple[str, ...]
    """Class names; a trailing `*` stands for any ending."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Wire name -> name in `__call__`."""
    declares: type | None = None
    """A frozen dataclass: the options of ServeConfig that only this family honours."""
    option_needs: Mapping[str, str] = field(default_factory=dict)
    """Option -> the component without which it has no effect."""
    check: Callable[[Any], None] | None = None
    """ServeConfig -> nothing; raises ConfigError for what the family's options do not go with."""
    replaced: Callable[[Any], Mapping[str, str]] | None = None
    """ServeConfig -> component -> what `after_load` puts in its place, for `builder inspect`."""
    load_kwargs: Callable[[Any], dict[str, Any]] | None = None
    """ServeConfig -> further arguments of from_pretrained()."""
    after_load: Callable[[Any, Any], None] | None = None
    """(pipeline, ServeConfig): change the loaded pipeline."""
    file_mode: str = "RGB"
    """The mode that picture files are decoded to; `load_image` of diffusers gives RGB."""
    video_tensor: Callable[[str, list[Any]], Any] | None = None
    """(parameter, PIL frames) -> the tensor, where a video parameter takes nothing but tensors."""
    fps: float | None = None
    """How fast an encoded video plays when the pipeline does not say."""
    upscale: int = 1
    """How many times higher and wider than what goes in an output is."""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of what it declares."""
        return tuple(f.name for f in fields(self.declares)) if self.declares else ()

    def covers(self, pipeline_class: str) -> bool:
        """Tell whether a pipeline class belongs to this family."""
        return any(
            pipeline_class.startswith(p[:-1]) if p.endswith("*") else pipeline_class == p
            for p in self.pipelines
        )


@functools.cache
def all_families() -> tuple[Family, ...]:
    """Return every family of this folder. Raises RuntimeError when two have the same name."""
    modules = [info.name for info in pkgutil.iter_modules(__path__) if info.name != "option"]
    found = tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in modules)
    names = [family.name for family in found]
    if len(set(names)) != len(names):
        raise RuntimeError(f"two families have one name: {sorted(names)}")
    return found


def find(pipeline_class: str) -> Family | None:
    """Return the family of a pipeline class, if it has one."""
    return next((f for f in all_families() if f.covers(pipeline_class)), None)


def declared_options() -> tuple[type, ...]:
    """Return the dataclasses of options that families declare, each once."""
    return tuple(dict.fromkeys(f.declares for f in all_families() if f.declares))


def family_options() -> dict[str, tuple[str, ...]]:
    """Return option name -> names of the families that honour it."""
    names = {option for family in all_families() for option in family.options}
    return {n: tuple(f.name for f in all_families() if n in f.options) for n in sorted(names)}
