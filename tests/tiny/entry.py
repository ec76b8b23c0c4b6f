# SPDX-License-Identifier: Apache-2.0
"""What one tiny pipeline of the tests is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@dataclass(frozen=True)
class TinyPipeline:
    """A real diffusers class at tiny size.

    name: folder and entry name.
    build: the pipeline with seeded random weights.
    inputs: arguments of `__call__` for a quick call; nothing that a server adds itself. A
        sound is a float32 array; the pipelines themselves want it as a torch tensor.
    load_kwargs: what `from_pretrained` needs besides the folder; survives JSON.
    """

    name: str
    pipeline_class: str
    modality: str
    build: Callable[[], DiffusionPipeline]
    inputs: Callable[[], dict[str, Any]]
    load_kwargs: dict[str, Any] = field(default_factory=dict)


def describe(*what: Any) -> TinyPipeline:
    """A TinyPipeline: name, class and modality, constructor arguments, arguments of a call."""
    *words, components, inputs = what
    name, pipeline_class, modality = " ".join(words).split()

    def build() -> DiffusionPipeline:
        import diffusers

        return getattr(diffusers, pipeline_class)(**components())

    return TinyPipeline(name, pipeline_class, modality, build, inputs)


def make_parts(**parts: Any) -> dict[str, Any]:
    """Constructor arguments; functions and classes among them are called first."""
    made = (FunctionType, partial, type)
    return {name: part() if isinstance(part, made) else part for name, part in parts.items()}
