# SPDX-License-Identifier: Apache-2.0
"""What a pipeline returned -> arrays for the wire, or encoded files."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from triton_diffusers.contract import (
    AUDIO,
    AUDIO_FIELDS,
    AUDIO_FORMATS,
    AUDIOS,
    DEFAULT_FPS,
    FRAMES,
    IMAGE_FORMATS,
    IMAGES,
    MEDIA_FILES,
    NSFW,
    PICTURE_FIELDS,
    SAMPLING_RATE,
    TENSOR_FORMAT,
    VIDEO_FIELDS,
    VIDEO_FORMATS,
    Tensor,
)
from triton_diffusers.errors import RequestError
from triton_diffusers.media import encode
from triton_diffusers.media.encode import Sound
from triton_diffusers.media.pixels import Array, float32, read_pictures, stack
from triton_diffusers.pipelines.notices import NAN_CAUSES

OnNan = Callable[[], None]


@dataclass(frozen=True)
class OutputOptions:
    """How the caller wants the result."""

    file_format: str = TENSOR_FORMAT
    quality: int | None = None
    as_base64: bool = False
    fps: float = DEFAULT_FPS
    made_for_fps: float | None = None
    """The rate that the pipeline itself was told, if it takes one."""
    preview_every: int | None = None


def formats_of(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the output formats that a pipeline with these output fields can give."""
    found = [TENSOR_FORMAT]
    for names, formats in _FORMATS:
        if any(name in fields for name in names):
            found.extend(formats)
    return tuple(found)


_FORMATS = (
    (PICTURE_FIELDS, IMAGE_FORMATS),
    (VIDEO_FIELDS, VIDEO_FORMATS),
    (AUDIO_FIELDS, AUDIO_FORMATS),
)


def to_wire(
    result: Mapping[str, Any],
    declared: Mapping[str, Tensor],
    options: OutputOptions,
    sampling_rate: int | None,
    warnings: list[str],
) -> dict[str, Array]:
    """Turn the fields of a pipeline's output object into output tensors by name.

    With a file format the field that it fits becomes `media`; an MP4 holds the sound too, where
    there is one. Fields that are None are left out; a field that no tensor can carry is named in
    `warnings`.
    """
    wire: dict[str, Array] = {}
    encoded = _field_to_encode(result, options.file_format)
    for name, value in result.items():
        if value is None or name not in declared:
            continue
        nan: set[str] = set()
        if name == encoded:
            sounds = partial(_sounds, result, sampling_rate, options, warnings)
            wire[MEDIA_FILES.name] = _encode(
                value, options, sampling_rate, sounds, partial(nan.add, name), warnings
            )
        elif (array := _to_array(value, declared[name], partial(nan.add, name))) is not None:
            wire[declared[name].name] = array
        else:
            warnings.append(f"output '{name}' ({type(value).__name__}) fits no tensor")
        if nan:
            warnings.append(f"output '{name}' holds NaN: {NAN_CAUSES}")
    if sampling_rate is not None and SAMPLING_RATE.name in declared:
        wire[SAMPLING_RATE.name] = np.array([sampling_rate], np.int64)
    return wire


def waveforms(value: Any) -> Array:
    """Return float32 [N, channels, samples] of sound given as [N, samples] or with channels."""
    if isinstance(value, list | tuple):
        value = np.stack([float32(v) for v in value])
    samples = float32(value)
    if samples.ndim == 1:
        return samples[None, None]
    return samples[:, None] if samples.ndim == 2 else samples


def _field_to_encode(result: Mapping[str, Any], file_format: str) -> str | None:
    for names, formats in _FORMATS:
        if file_format in formats:
            return next((n for n in names if result.get(n) is not None), None)
    return None


def _sounds(
    result: Mapping[str, Any],
    rate: int | None,
    options: OutputOptions,
    warnings: list[str],
    videos: int,
) -> list[Sound | None]:
    """Return the sound of each video, where the pipeline made sound that fits into its file."""
    none: list[Sound | None] = [None] * videos
    name = next((n for n in AUDIO_FIELDS if result.get(n) is not None), None)
    if name is None:
        return none
    samples = waveforms(result[name])
    if videos == 1 and samples.shape[1] == 1:  # what may be [channels, samples] of the one video
        samples = samples.swapaxes(0, 1)
    sounds = [Sound(s, rate or 0) for s in samples]
    if len(sounds) != videos or not all(s.fits_mp4 for s in sounds):
        told = f"{list(samples.shape)} samples at {rate or 'unknown'} per second"
        warnings.append(f"the file has no sound: output '{name}' ({told}) does not fit into it")
        return none
    if options.made_for_fps not in (None, options.fps):
        warnings.append(
            f"the sound was made for {options.made_for_fps:g} frames a second, and the video plays "
            f"{options.fps:g}: they are not in step"
        )
    return [*sounds]


def _encode(
    value: Any,
    options: OutputOptions,
    rate: int | None,
    sounds: Callable[[int], list[Sound | None]],
    on_nan: OnNan,
    warnings: list[str],
) -> Array:
    if options.file_format in AUDIO_FORMATS:
        if rate is None:
            raise RequestError("this pipeline does not tell its sampling rate; send 'tensor'")
        files = [encode.encode_audio(a, options.file_format, rate) for a in waveforms(value)]
    elif options.file_format in VIDEO_FORMATS:
        videos = read_pictures(value, on_nan)
        videos = [np.stack(videos)] if videos[0].ndim == 3 else videos
        _tell_odd_sides(videos[0], options.file_format, warnings)
        files = [
            encode.encode_video(v, options.file_format, options.fps, sound)
            for v, sound in zip(videos, sounds(len(videos)), strict=True)
        ]
    else:
        flat = [p.reshape(-1, *p.shape[-3:]) for p in read_pictures(value, on_nan)]
        files = [
            encode.encode_image(p, options.file_format, options.quality) for ps in flat for p in ps
        ]
    if options.as_base64:
        files = [base64.b64encode(f) for f in files]
    return np.array(files, np.object_)


def _tell_odd_sides(frames: Array, file_format: str, warnings: list[str]) -> None:
    """Say where a file shows more than the pipeline made: [F, H, W, C]."""
    height, width = frames.shape[1:3]
    size = encode.mp4_size(width, height)
    if file_format == "mp4" and size != (width, height):
        warnings.append(
            f"the MP4 is {size[0]} x {size[1]}, not {width} x {height}: players want even sides, "
            "so its last row or column is shown twice"
        )


def _to_array(value: Any, tensor: Tensor, on_nan: OnNan) -> Array | None:
    if tensor in (IMAGES, FRAMES):
        array = stack(read_pictures(value, on_nan))
        if tensor is IMAGES:  # the layers or views of one picture are pictures too
            return array.reshape(-1, *array.shape[-3:])
        return array[None] if array.ndim == 4 else array
    if tensor is NSFW:
        flags = np.atleast_1d(np.asarray(value, np.object_))
        return None if any(f is None for f in flags.flat) else flags.astype(np.bool_)
    if tensor.data_type == "TYPE_STRING":
        texts = [value] if isinstance(value, str) else list(value)
        return np.array([str(t).encode() for t in texts], np.object_)
    numbers = waveforms(value) if tensor in (AUDIOS, AUDIO) else _numbers(value)
    if numbers is not None and np.isnan(numbers.sum()):
        on_nan()
    return numbers


def _numbers(value: Any) -> Array | None:
    """Return a field without a type of its own as float32, pictures as they are (not scaled)."""
    try:
        if isinstance(value, list | tuple):
            parts = [_numbers(v) for v in value]
            found = [p for p in parts if p is not None]
            return np.stack(found) if found and len(found) == len(parts) else None
        return np.atleast_1d(float32(value))
    except (TypeError, ValueError):
        return None
