# SPDX-License-Identifier: Apache-2.0
"""Numbers of a request against what any pipeline can work with and what the entry allows.

The names are those of diffusers' pipelines; no pipeline is special. Without these limits one
request could keep the server busy for days or have the kernel end it for its memory. Each number
has a limit of its own; so has their product, the work of a call in megapixel-steps: steps x
megapixels x frames x outputs.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import FRAME_COUNTS, MEDIA, STEPS, Kind
from triton_diffusers.errors import RequestError
from triton_diffusers.pipelines.signature import Signature

POSITIVE = re.compile(
    r"^(height|width|frames|video_length|batch_size|num_frames|max_sequence_length)$"
    r"|(^|_)num_inference_steps$|^num_\w+_per_prompt$"
)
NOT_NEGATIVE = re.compile(r"^(num|max)_|^(target_|original_)?(fps|size|frame_rate)$|^timesteps$")
MORE_STEPS = re.compile(rf"^\w+_{STEPS}$|^steps$")
INSTEAD_OF_STEPS = ("timesteps", "sigmas")
COPIES = ("layers", "ensemble_size")
"""Arguments that multiply the work of every output: layers to separate, members of an ensemble."""
USUAL_SIZE, SMALL_SIZE = (1024, 1024), (256, 256)
"""Height and width that only the model knows: where the pipeline takes sizes, and where not."""


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


@dataclass(frozen=True)
class Work:
    """What a call asks for. What neither the request nor the signature tells is 1."""

    steps: int
    height: int
    width: int
    frames: int
    outputs: int

    @property
    def megapixel_steps(self) -> float:
        """Return the work as one number."""
        return math.prod((self.steps, self.height, self.width, self.frames, self.outputs)) / 1e6


def check_work(work: Work, config: ServeConfig) -> None:
    """Raise RequestError for a call that is too much in all."""
    amount = work.megapixel_steps
    if amount > config.max_work:
        raise RequestError(
            f"{amount:.0f} megapixel-steps in all ({work.steps} steps x {work.width} x "
            f"{work.height} pixels x {work.frames} frames x {work.outputs} outputs); at most "
            f"{config.max_work} are accepted (max_work of the entry); ask for less of one of them"
        )


def read_work(kwargs: Mapping[str, Any], signature: Signature, outputs: int | None) -> Work:
    """Return what a call asks for: from its arguments, else from the defaults of `__call__`.

    kwargs: by the names of `__call__`. A size that is in neither is that of the largest picture or
    frame that was sent, at least USUAL_SIZE where the pipeline takes sizes, else SMALL_SIZE where
    none was sent; frames are at least those that were sent.
    outputs: None where only the pipeline knows.
    """
    given = {p.argument: p.default for p in signature.parameters.values()} | dict(kwargs)
    instead = [len(given[n]) for n in INSTEAD_OF_STEPS if isinstance(given.get(n), list | tuple)]
    steps = max(instead) if instead else _number(given.get(STEPS))
    steps += sum(_number(value) for name, value in given.items() if MORE_STEPS.search(name))
    height, width = _number(given.get("height")), _number(given.get("width"))
    if not (height and width):
        sizes = list(_sizes(kwargs, signature))
        if "height" in given:
            sizes.append(USUAL_SIZE)  # edits resize small pictures to it
        tallest, widest = max(sizes, key=math.prod, default=SMALL_SIZE)
        height, width = height or tallest, width or widest
    videos = [
        len(_flat(kwargs[p.argument]))
        for p in signature.parameters.values()
        if p.kind is Kind.VIDEO and isinstance(kwargs.get(p.argument), list | tuple)
    ]
    frames = max(1, *videos, *(_number(given.get(name)) for name in FRAME_COUNTS))
    copies = math.prod(max(1, _number(given.get(name))) for name in COPIES)
    return Work(max(steps, 1), height, width, frames, (outputs or 1) * copies)


def _number(value: Any) -> int:
    """Return a number as a whole one, 0 for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number else 0


def _flat(value: Any) -> list[Any]:
    """Return the pictures in nested lists, or the lone one."""
    return (
        [p for each in value for p in _flat(each)] if isinstance(value, list | tuple) else [value]
    )


def _sizes(kwargs: Mapping[str, Any], signature: Signature) -> Iterator[tuple[int, int]]:
    """Return height and width of every picture and frame that was sent."""
    for p in signature.parameters.values():
        value = kwargs.get(p.argument) if p.kind in MEDIA else None
        for picture in _flat(value):
            size = getattr(picture, "size", None)
            if isinstance(size, tuple) and len(size) == 2:  # of Pillow: width first
                yield size[1], size[0]
