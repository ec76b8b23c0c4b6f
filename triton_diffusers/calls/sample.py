# SPDX-License-Identifier: Apache-2.0
"""A made-up minimal call of any pipeline, from its signature alone: for probing and warm-up."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np

from triton_diffusers.calls import values
from triton_diffusers.config.options import ServeConfig
from triton_diffusers.contract import FRAME_COUNTS, MEDIA, Kind, is_reserved, reserved_hint
from triton_diffusers.errors import ConfigError, RequestError, one_line, unknown
from triton_diffusers.media.pixels import Array
from triton_diffusers.pipelines.signature import Parameter, Signature

T = TypeVar("T")

PROMPT = "a lighthouse at dusk"
STEPS = re.compile(r"(^|_)num_inference_steps$|^steps$")
FEW_STEPS = 2
SIDES = (128, 256, 64, 32, None)
"""Heights and widths to try, None for the pipeline's own. A model that is small, or that knows
few positions, takes one of the smaller ones."""
OWN_SIDE, FRAMES, SAMPLES = 512, 9, 16000
"""Made-up media: pixels where the pipeline's own size holds, frames (4n+1, 8n+1), sound."""
SECONDS = ("audio_end_in_s", "audio_length_in_s", "audio_duration", "audio_duration_s")
SMALL: Mapping[str, Any] = {
    **dict.fromkeys(FRAME_COUNTS, FRAMES),
    "processing_resolution": 0,  # that of the picture
    **dict.fromkeys(SECONDS, 1.0),
}
SAME_FAILURES, SAME_SIDES = 6, 3
"""How often one and the same exception is met, and at how many sizes, before no more are tried."""
BINNING = "use_resolution_binning"
"""Pipelines with it enlarge small sizes to those that they were trained on."""
NEEDED = re.compile(
    r"^((init_|original_|control_|cond_|mask_|input_)?(images?|video)|mask|control_mask|"
    r"conditioning_frames|controls|(src_)?audio)$"
)
"""Media that pipelines declare as optional and mostly cannot do without."""
ADAPTER = re.compile("ip_adapter")
"""Media of parts that only a further model brings."""


class Media(IntEnum):
    """Which media a made-up call sends: each sends those before it too."""

    REQUIRED = 0
    NEEDED = 1
    EVERY = 2


@dataclass(frozen=True)
class Sample:
    """Which made-up call: `first_that_works` tries several."""

    side: int | None = SIDES[0]
    """Height and width; None leaves every size to the pipeline."""
    media: Media = Media.REQUIRED
    copies: int = 1
    """Of each picture; a pipeline with two controlnets wants two."""


def sample_kwargs(
    signature: Signature,
    call_kwargs: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    sample: Sample | None = None,
) -> dict[str, Any]:
    """Return arguments of `__call__`, by its own names.

    Made-up values first, then the entry's `call_kwargs` (but for the steps, which stay few), then
    `overrides`. Raises ConfigError for an override that the pipeline does not take.
    """
    sample, overrides = sample or Sample(), overrides or {}
    for name in overrides:
        _check_name(name, signature)
    parameters = signature.parameters
    given = {n: v for n, v in call_kwargs.items() if not STEPS.search(n)} | dict(overrides)
    plain = {parameters[n].argument: _value(parameters[n], v) for n, v in given.items()}
    made = {p.argument: v for p in parameters.values() if (v := _plain(p, sample)) is not None}
    if "height" in plain or "width" in plain:
        made.pop(BINNING, None)
    kwargs = made | plain
    for p in parameters.values():
        if p.argument not in plain and _wants_media(p, signature, sample):
            kwargs[p.argument] = _draw(p, kwargs, sample)
    return kwargs


def first_that_works(
    signature: Signature,
    call_kwargs: Mapping[str, Any],
    overrides: Mapping[str, Any] | None,
    call: Callable[[dict[str, Any]], T],
    small: bool = True,
) -> T:
    """Call `call` with one made-up call after the other until one raises nothing.

    small: whether small sizes will do; else the pipeline's own hold where no override says more.
    Raises the exception of the one that was most like a usual call, sooner where the same one is
    met again and again: neither size nor media matter to it, and each try may run a text encoder.
    """
    failed: Exception | None = None
    met: defaultdict[str, list[int | None]] = defaultdict(list)
    for sample in samples(signature, small):
        try:
            return call(sample_kwargs(signature, call_kwargs, overrides, sample))
        except ConfigError:
            raise
        except Exception as error:
            is_usual = sample.copies == 1 and sample.media <= Media.NEEDED
            failed = error if is_usual or failed is None else failed
            sides = met[one_line(error)]
            sides.append(sample.side)
            if len(sides) >= SAME_FAILURES and len(set(sides)) >= SAME_SIDES:
                break
    raise failed or RuntimeError("there is no call to make")


def samples(signature: Signature, small: bool = True) -> Iterator[Sample]:
    """Yield the made-up calls worth trying; not small: only those of the pipeline's own size."""
    parameters = signature.parameters.values()
    media = [p for p in parameters if p.kind in MEDIA and not ADAPTER.search(p.name)]
    levels = sorted({Media.REQUIRED, *(_media_of(p, signature) for p in media)})
    sized = media or {"height", "width", *SMALL} & set(signature.parameters)
    for side in (None,) if not small else SIDES if sized else SIDES[:1]:
        for level in levels:
            yield Sample(side, level)
        if any(p.kind is Kind.IMAGE for p in media):
            yield Sample(side, Media.NEEDED, copies=2)


def _check_name(name: str, signature: Signature) -> None:
    if is_reserved(name):
        raise ConfigError(f"'{name}' is reserved: {reserved_hint(name)}")
    parameter = signature.parameters.get(name)
    if parameter is None:
        sendable = [p.name for p in signature.parameters.values() if p.kind is not Kind.TENSOR]
        raise ConfigError(unknown("argument", name, signature.pipeline_class, sendable))
    if parameter.kind in MEDIA or parameter.kind is Kind.TENSOR:
        raise ConfigError(
            f"'{name}' is {parameter.kind.value}, which text cannot say; leave it "
            "out (pictures, videos and sounds are made up where they are needed)"
        )


def _value(parameter: Parameter, value: Any) -> Any:
    """Turn a value from JSON into what the pipeline takes."""
    try:
        if parameter.kind is Kind.JSON and value is not None:
            return values.json_value(parameter, value)
        if parameter.always_list and isinstance(value, str | int | float):
            return [value]
        if parameter.as_tuple and isinstance(value, list):
            return tuple(value)
        return values.chosen(parameter, value) if parameter.enum else value
    except RequestError as error:
        raise ConfigError(str(error)) from None


def _plain(p: Parameter, sample: Sample) -> Any:
    """Return the made-up value of a parameter that is no media, or None to leave it out."""
    if p.kind is Kind.TEXT and (p.name == "prompt" or p.required):
        return [PROMPT] if p.always_list else PROMPT
    if p.kind is Kind.BOOL and p.name == BINNING and sample.side is not None:
        return False
    if p.kind in (Kind.INT, Kind.INTS, Kind.FLOAT):
        if STEPS.search(p.name):
            return FEW_STEPS
        if p.name == "strength":
            return 1.0
        if sample.side is not None and p.name in ("height", "width"):
            return sample.side
        if sample.side is not None and p.name in SMALL:
            return SMALL[p.name]
    return _REQUIRED[p.kind](p) if p.required and p.kind in _REQUIRED else None


_REQUIRED: dict[Kind, Callable[[Parameter], Any]] = {
    Kind.STRING: lambda p: _value(p, p.choices[0]) if p.choices else PROMPT,
    Kind.INT: lambda p: 1,
    Kind.INTS: lambda p: [1] if p.always_list else 1,
    Kind.FLOAT: lambda p: 1.0,
    Kind.FLOATS: lambda p: [1.0] if p.always_list else 1.0,
    Kind.BOOL: lambda p: False,
    Kind.BOOLS: lambda p: [False] if p.always_list else False,
    Kind.JSON: lambda p: (p.nested_type or dict)(),
}


def _media_of(p: Parameter, signature: Signature) -> Media:
    """Return the first kind of made-up call that sends a media parameter."""
    if p.required:
        return Media.REQUIRED
    # pipelines that take a picture or a video take one of them
    is_other = p.name == "video" and "image" in signature.parameters
    return Media.NEEDED if NEEDED.search(p.name) and not is_other else Media.EVERY


def _wants_media(p: Parameter, signature: Signature, sample: Sample) -> bool:
    if p.kind not in MEDIA or ADAPTER.search(p.name):
        return False
    return _media_of(p, signature) <= sample.media


def _draw(p: Parameter, kwargs: Mapping[str, Any], sample: Sample) -> Any:
    """Return made-up media as a request's would arrive: noise; a mask is white in its middle."""
    count = 1
    if p.kind is Kind.AUDIO:
        array: Array = np.random.default_rng(0).uniform(-1, 1, (2, SAMPLES)).astype(np.float32)
    else:
        count = _frames(kwargs) if p.kind is Kind.VIDEO else sample.copies
        array = _pictures(p, count, *_size(kwargs, sample))
    read = values.read_media(p, {p.name: array}, ServeConfig())
    return None if read is None else read[0]


def _frames(kwargs: Mapping[str, Any]) -> int:
    asked = (kwargs.get(n) for n in FRAME_COUNTS)
    return next((n for n in asked if isinstance(n, int)), FRAMES)


def _size(kwargs: Mapping[str, Any], sample: Sample) -> tuple[int, int]:
    side = sample.side or OWN_SIDE
    height, width = (kwargs.get(n) for n in ("height", "width"))
    return (
        height if isinstance(height, int) else side,
        width if isinstance(width, int) else side,
    )


def _pictures(p: Parameter, count: int, height: int, width: int) -> Array:
    """uint8 [count, height, width, channels]."""
    if "mask" in p.name:
        mask = np.zeros((count, height, width, 1), np.uint8)
        mask[:, height // 4 : -height // 4, width // 4 : -width // 4] = 255
        return mask
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[p.file_mode]
    shape = (count, height // 8 + 1, width // 8 + 1, channels)
    coarse = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return coarse.repeat(8, axis=1).repeat(8, axis=2)[:, :height, :width]
