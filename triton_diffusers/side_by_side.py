# SPDX-License-Identifier: Apache-2.0
"""Whether calls of a pipeline may run side by side, as step batching has them."""

import inspect
from typing import Any

from triton_diffusers.pipelines.denoisers import denoisers
from triton_diffusers.running.stand_ins import pipelines_inside

CHANGES_DENOISER = ("set_attn_processor", "attn_processors", "enable_fuser")
"""Words of pipelines whose calls change modules that all calls share."""
PIPELINES = "diffusers.pipelines.pipeline_utils"
"""Where DiffusionPipeline itself is, which every call has."""


def why_not(pipeline: Any) -> str | None:
    """Return why calls of a pipeline must not run side by side, or None."""
    for part in (pipeline, *pipelines_inside(pipeline)):
        source = _own_source(type(part))
        if source is None:
            return "the source of its call cannot be read"
        if any(words in source for words in CHANGES_DENOISER):
            return "its call changes the attention layers of the denoiser that all calls share"
    if not any("." not in name for name in denoisers(pipeline)):
        return "it has no denoiser"
    return None


def _own_source(cls: type) -> str | None:
    """Return the source of what a pipeline class and those that it extends define themselves.

    Not that of diffusers' mixins, which offer what a call does not do; None where there is none.
    """
    from diffusers import DiffusionPipeline

    bases = [
        c for c in cls.__mro__ if issubclass(c, DiffusionPipeline) and c.__module__ != PIPELINES
    ]
    functions = [f for base in bases for f in vars(base).values() if inspect.isfunction(f)]
    try:
        return "".join(inspect.getsource(inspect.unwrap(function)) for function in functions)
    except (OSError, TypeError):
        return None
