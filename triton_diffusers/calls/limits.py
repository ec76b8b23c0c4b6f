# SPDX-License-Identifier: Apache-2.0
"""Numbers of a request against what any pipeline can work with and what the entry allows.

The names are those of diffusers' pipelines; no pipeline is special. Without these limits one
request could keep the server busy for days or have the kernel end it for its memory.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.errors import RequestError

POSITIVE = re.compile(
    r"^(height|width|frames|video_length|batch_size|num_frames|max_sequence_length)$"
    r"|(^|_)num_inference_steps$|^num_\w+_per_prompt$"
)
NOT_NEGATIVE = re.compile(r"^(num|max)_|^(target_|original_)?(fps|size|frame_rate)$|^timesteps$")


@dataclass(frozen=True)
class Limit:
    """The most that parameters of some names may be."""

    names: re.Pattern[str]
    option: str
    of: Callable[[Any], float] = float
    """The option's value -> the limit."""
    told: str = ""
    """How the limit follows from the option, where it is not the option itself."""


LIMITS = (
    Limit(re.compile(r"(^|_)steps$"), "max_steps"),
    Limit(re.compile(r"(^|_)frames(_|$)|^video_length$|_frame_length$"), "max_frames"),
    Limit(re.compile(r"(^|_)batch_size$|^num_\w+_per_prompt$|^ensemble_size$"), "max_outputs"),
    Limit(re.compile(r"(_|^)(sequence_length|max_length|new_tokens)$"), "max_prompt_chars"),
    Limit(re.compile(r"^max_area$"), "max_pixels"),
    Limit(
        re.compile(r"(^|_)(height|width|resolution|size)$"),
        "max_pixels",
        lambda pixels: 4 * math.isqrt(pixels),
        "4 times the root of ",
    ),
    Limit(re.compile(r"(^|_)(in_s|duration|duration_s|seconds|secs)$"), "max_audio_s"),
)
"""The first whose pattern fits a name counts."""
LISTS_OF_STEPS = re.compile(r"(^|_)(timesteps|sigmas)$")


def check_ranges(sent: Mapping[str, Any], config: ServeConfig, thing: str = "input") -> None:
    """Raise RequestError for a number that is out of range; `thing` says what holds it."""
    for name, value in sent.items():
        if isinstance(value, list | tuple) and LISTS_OF_STEPS.search(name):
            _refuse_above(f"{thing} '{name}', elements", len(value), config.max_steps, "max_steps")
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check_number(name, number, config, thing)


def check_area(height: int, width: int, config: ServeConfig) -> None:
    """Raise RequestError for a picture that is too large."""
    _refuse_above("'height' x 'width'", height * width, config.max_pixels, "max_pixels")


def _check_number(name: str, number: float, config: ServeConfig, thing: str) -> None:
    for pattern, least in ((POSITIVE, 1), (NOT_NEGATIVE, 0)):
        if pattern.search(name) and number < least:
            raise RequestError(f"{thing} '{name}': {number}; send a number of at least {least}")
    limit = next((limit for limit in LIMITS if limit.names.search(name)), None)
    if limit is not None:
        most = limit.of(getattr(config, limit.option))
        _refuse_above(f"{thing} '{name}'", number, most, limit.told + limit.option)


def _refuse_above(what: str, number: float, most: float, origin: str) -> None:
    if number > most:
        raise RequestError(
            f"{what}: {number}; at most {most:.0f} is accepted ({origin} of the entry)"
        )
