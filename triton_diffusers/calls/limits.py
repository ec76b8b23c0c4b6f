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
from dataclasses import dataclass, field
from typing import Any

from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import FRAME_COUNTS, STEPS, Kind
from triton_diffusers.errors import RequestError
from triton_diffusers.pipelines.signature import Signature

POSITIVE = re.compile(
    r"^(height|width|frames|video_length|batch_size|num_frames|max_sequence_length)$"
    r"|(^|_)num_inference_steps$|^num_\w+_per_prompt$"
)
NOT_NEGATIVE = re.compile(r"^(num|max)_|^(target_|original_)?(fps|size|frame_rate)$|^timesteps$")
MORE_STEPS = re.compile(rf"^\w+_{STEPS}$|^steps$")
INSTEAD_OF_STEPS = ("timesteps", "sigmas")
SECONDS = re.compile(r"(^|_)(in_s|duration|duration_s|seconds|secs)$")
USUAL_S = 60
"""Seconds of a sound whose length only the model knows."""
SCALE = "resolution_scale"
COPIES = ("layers", "ensemble_size")
"""Arguments that multiply the work of every output: layers to separate, members of an ensemble."""
SMALL_MEDIA = re.compile(r"(^|_)ip_adapter_")
"""Pictures of which a model takes a small copy, whatever their size."""
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
    Limit(SECONDS, "max_audio_s"),
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
class Workload:
    """What a call computes. What neither the request nor the signature tells is 1."""

    steps: int
    height: int
    width: int
    frames: int
    outputs: int
    sized_by: str | None = field(default=None, compare=False)
    """What gives height and width: "" numbers, else the input whose picture does; None: a guess."""
    seconds: float = field(default=1.0, compare=False)
    """Of sound."""

    @property
    def megapixel_steps(self) -> float:
        """Return the work as one number."""
        return math.prod((self.steps, self.height, self.width, self.frames, self.outputs)) / 1e6

    @property
    def of_a_step(self) -> float:
        """Return how much one step computes, to compare calls of one pipeline."""
        return self.megapixel_steps / self.steps * self.seconds


def check_area(work: Workload, config: ServeConfig, signature: Signature) -> None:
    """Raise RequestError for outputs that are too large, whatever their size comes from."""
    if work.sized_by is None or work.height * work.width <= config.max_pixels:
        return
    if not work.sized_by:
        _refuse_above(
            "'height' x 'width'", work.height * work.width, config.max_pixels, "max_pixels"
        )
    instead = ", or 'height' and 'width'" if "height" in signature.parameters else ""
    raise RequestError(
        f"input '{work.sized_by}': {signature.pipeline_class} makes {work.width} x {work.height} "
        f"pixels of it; at most {config.max_pixels} are accepted (max_pixels of the entry); send a "
        f"smaller picture{instead}"
    )


def check_work(work: Workload, config: ServeConfig) -> None:
    """Raise RequestError for a call that is too much in all."""
    amount = work.megapixel_steps
    if amount > config.max_work:
        raise RequestError(
            f"{amount:.0f} megapixel-steps in all ({work.steps} steps x {work.width} x "
            f"{work.height} pixels x {work.frames} frames x {work.outputs} outputs); at most "
            f"{config.max_work} are accepted (max_work of the entry); ask for less of one of them"
        )


def read_work(kwargs: Mapping[str, Any], signature: Signature, outputs: int | None) -> Workload:
    """Return what a call asks for: from its arguments, else from the defaults of `__call__`.

    kwargs: by the names of `__call__`. A size that is in neither is that of the largest picture or
    frame that was sent, unless the pipeline brings those to a size of its own: at least USUAL_SIZE
    where it takes sizes, else SMALL_SIZE where none was sent. Upscalers multiply it. Frames are at
    least those that were sent.
    outputs: None where only the pipeline knows: one for each picture.
    """
    given = {p.argument: p.default for p in signature.parameters.values()} | dict(kwargs)
    instead = [len(given[n]) for n in INSTEAD_OF_STEPS if isinstance(given.get(n), list | tuple)]
    steps = max(instead) if instead else _number(given.get(STEPS))
    steps += sum(_number(value) for name, value in given.items() if MORE_STEPS.search(name))
    height, width, sized_by = _size(given, kwargs, signature)
    media = list(_media(kwargs, signature))
    frames = max(
        1, *(m.frames for m in media), *(_number(given.get(name)) for name in FRAME_COUNTS)
    )
    copies = math.prod(max(1, _number(given.get(name))) for name in COPIES)
    pictures = [m.count for m in media if m.frames == 1]
    outputs = outputs or max(pictures, default=1)
    scale = signature.upscale * max(1.0, _float(given.get(SCALE)))
    height, width = math.ceil(height * scale), math.ceil(width * scale)
    lengths = [_float(value) or USUAL_S for name, value in given.items() if SECONDS.search(name)]
    seconds = max(1.0, *lengths) if lengths else 1.0
    return Workload(max(steps, 1), height, width, frames, outputs * copies, sized_by, seconds)


def _size(
    given: Mapping[str, Any], kwargs: Mapping[str, Any], signature: Signature
) -> tuple[int, int, str | None]:
    """Return height, width and what gives them, as `Work.sized_by` has it."""
    height, width = _number(given.get("height")), _number(given.get("width"))
    if height and width:
        return height, width, ""
    sizes: list[tuple[tuple[int, int], str | None]] = []
    if not signature.own_size:
        sizes = [((m.height, m.width), m.name) for m in _media(kwargs, signature)]
    if "height" in given or signature.own_size:
        sizes.append((USUAL_SIZE, None))  # edits resize small pictures to it
    (tallest, widest), sized_by = max(
        sizes, key=lambda size: math.prod(size[0]), default=(SMALL_SIZE, None)
    )
    return height or tallest, width or widest, sized_by


def _number(value: Any) -> int:
    """Return a number as a whole one, 0 for anything else."""
    return int(_float(value))


def _float(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else 0


@dataclass(frozen=True)
class _Media:
    """The pictures or the video of one input: the size of the largest, how many there are."""

    name: str
    height: int
    width: int
    count: int
    frames: int


def _media(kwargs: Mapping[str, Any], signature: Signature) -> Iterator[_Media]:
    """Return what was sent as pictures and video, but for what only an adapter looks at."""
    for p in signature.parameters.values():
        value = kwargs.get(p.argument)
        if p.kind not in (Kind.IMAGE, Kind.VIDEO) or value is None or SMALL_MEDIA.search(p.name):
            continue
        sizes, pictures = [], 0
        for each in _flat(value):
            if hasattr(each, "shape"):  # a video's tensor: [1, frames, channels, height, width]
                sizes.append((int(each.shape[-2]), int(each.shape[-1])))
                pictures += max(1, math.prod(each.shape[1:-2]) // 3)
            elif isinstance(getattr(each, "size", None), tuple):  # of Pillow: width first
                sizes.append((each.size[1], each.size[0]))
                pictures += 1
        if sizes:
            height, width = max(sizes, key=math.prod)
            count, frames = (1, pictures) if p.kind is Kind.VIDEO else (pictures, 1)
            yield _Media(p.name, height, width, count, frames)


def _flat(value: Any) -> list[Any]:
    """Return the pictures in nested lists, or the lone one."""
    return (
        [p for each in value for p in _flat(each)] if isinstance(value, list | tuple) else [value]
    )
