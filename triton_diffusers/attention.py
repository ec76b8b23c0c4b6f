# SPDX-License-Identifier: Apache-2.0
"""Which attention backend an entry runs with, chosen only after it has run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.config import ServeConfig
from triton_diffusers.signature import Signature


@dataclass(frozen=True)
class Attempt:
    """A backend that was tried on a denoiser and not chosen, and why."""

    backend: str
    denoiser: str
    reason: str


@dataclass(frozen=True)
class AttentionChoice:
    """What was chosen: denoiser -> backend. Empty where nothing was asked for."""

    active: dict[str, str] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    warnings: tuple[str, ...] = ()


def check_attention(config: ServeConfig) -> None:
    """Raise ConfigError for a name that is refused or unknown."""


def choose_attention(
    pipeline: Any,
    config: ServeConfig,
    signature: Signature,
    call_kwargs: Mapping[str, Any],
    device: str,
) -> AttentionChoice:
    """Give every denoiser the first backend that works."""
    return AttentionChoice()
