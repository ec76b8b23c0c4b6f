# SPDX-License-Identifier: Apache-2.0
"""A pipeline ready to be called, and what loading it told."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.pipelines.isolation import Processors
from triton_diffusers.pipelines.signature import Signature
from triton_diffusers.previews.previews import Previews


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
    previews: Previews | None = None
    """Where the entry streams: what is known of its previews."""
    has_worked: list[bool] = field(default_factory=list)
    """Whether a call is known to work; empty until one has, or was tried."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the load-time options came to, as JSON: for the log and for `info`."""

    @cached_property
    def execution_device(self) -> Any:
        """Where the pipeline takes its inputs; it keeps that once it is loaded."""
        return self.pipeline._execution_device
