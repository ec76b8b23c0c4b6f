# SPDX-License-Identifier: Apache-2.0
"""What a pipeline returned -> arrays for the wire, or encoded files."""

import base64
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers import media
from triton_diffusers.contract import (
    AUDIO_FORMATS,
    AUDIOS,
    FRAMES,
    IMAGE_FORMATS,
    IMAGES,
    MEDIA_FILES,
    NSFW,
    SAMPLING_RATE,
    TENSOR_FORMAT,
    VIDEO_FORMATS,
    Tensor,
)
from triton_diffusers.errors import RequestError

BLOCK = 1 << 18
"""Values converted at a time, so that the steps of a conversion stay in the processor's cache."""

PARALLEL = 1 << 22
"""From how many values on a conversion is worth a second thread (numpy lets others run)."""

THREADS = min(4, os.cpu_count() or 1)

PICTURE_FIELDS = (IMAGES.name, "image", "rgb", "prediction")
VIDEO_FIELDS = (FRAMES.name, "video")
AUDIO_FIELDS = (AUDIOS.name, "audio", "sound")


@dataclass(frozen=True)
class OutputOptions:
    """How the caller wants the result."""

    file_format: str = TENSOR_FORMAT
    quality: int | None = None
    as_base64: bool = False
    fps: float = 24.0


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
) -> dict[str, np.ndarray]:
    """Turn the fields of a pipeline's output object into output tensors by name.

    With a file format the field that it fits becomes `media`. Fields that are None are left
    out; a field that no tensor can carry is named in `warnings`.
    """
    wire: dict[str, np.ndarray] = {}
    encoded = _field_to_encode(result, options.file_format)
    for name, value in result.items():
        if value is None or name not in declared:
            continue
        if _has_nan(value):
            warnings.append(f"output '{name}' holds NaN: it was computed with too little precision")
        if name == encoded:
            wire[MEDIA_FILES.name] = _encode(name, value, options, sampling_rate)
        else:
            array = _to_array(name, value, declared[name])
            if array is None:
                warnings.append(f"output '{name}' ({type(value).__name__}) fits no tensor")
            else:
                wire[name] = array
    if sampling_rate is not None and SAMPLING_RATE.name in declared:
        wire[SAMPLING_RATE.name] = np.array([sampling_rate], np.int64)
    return wire


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Turn floats 0..1 into bytes, `round(255 * x)` as diffusers does for PIL; bytes pass.

    Source: diffusers.image_processor.VaeImageProcessor.numpy_to_pil.
    """
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_ or np.issubdtype(values.dtype, np.integer):
        return values.astype(np.uint8)
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.shape, np.uint8)
    spans = [slice(start, start + BLOCK) for start in range(0, flat.size, BLOCK)]

    def convert(part: list[slice]) -> None:
        scale = flat.dtype.type(255)
        with np.errstate(invalid="ignore"):  # NaN becomes 0, as in diffusers; `to_wire` reports it
            for span in part:
                block = flat[span] * scale
                out[span] = np.rint(block, out=block)

    if flat.size < PARALLEL or THREADS == 1:
        convert(spans)
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(convert, (spans[i::THREADS] for i in range(THREADS))))
    return out.reshape(values.shape)


def pictures(value: Any) -> list[np.ndarray]:
    """Return what a field of pictures holds, one uint8 array per output.

    value: PIL images, arrays (..., H, W, C) or tensors (..., C, H, W), 0..1, also in nested
    lists. Each element of the result is [H, W, C], or [F, H, W, C] for a list per output.
    """
    if _is_torch(value) or isinstance(value, np.ndarray):
        return list(to_uint8(_channels_last(value)))
    if isinstance(value, Image.Image):
        return [_pixels(value)]
    return [_picture(element) for element in value]


def waveforms(value: Any) -> np.ndarray:
    """Return float32 [N, channels, samples] of sound given as [N, samples] or with channels."""
    if isinstance(value, list | tuple):
        value = np.stack([_float32(v) for v in value])
    samples = _float32(value)
    if samples.ndim == 1:
        return samples[None, None]
    return samples[:, None] if samples.ndim == 2 else samples


def _field_to_encode(result: Mapping[str, Any], file_format: str) -> str | None:
    for names, formats in _FORMATS:
        if file_format in formats:
            return next((n for n in names if result.get(n) is not None), None)
    return None


def _encode(name: str, value: Any, options: OutputOptions, rate: int | None) -> np.ndarray:
    if options.file_format in AUDIO_FORMATS:
        if rate is None:
            raise RequestError("this pipeline does not tell its sampling rate; send 'tensor'")
        files = [media.encode_audio(a, options.file_format, rate) for a in waveforms(value)]
    elif options.file_format in VIDEO_FORMATS:
        videos = pictures(value)
        videos = [np.stack(videos)] if videos[0].ndim == 3 else videos
        files = [media.encode_video(v, options.file_format, options.fps) for v in videos]
    else:
        flat = [p.reshape(-1, *p.shape[-3:]) for p in pictures(value)]
        files = [
            media.encode_image(p, options.file_format, options.quality) for ps in flat for p in ps
        ]
    if options.as_base64:
        files = [base64.b64encode(f) for f in files]
    return np.array(files, np.object_)


def _to_array(name: str, value: Any, tensor: Tensor) -> np.ndarray | None:
    if name in (IMAGES.name, FRAMES.name):
        array = _stacked(pictures(value))
        return array[None] if name == FRAMES.name and array.ndim == 4 else array
    if name == AUDIOS.name:
        return waveforms(value)
    if name == NSFW.name:
        flags = np.atleast_1d(np.asarray(value, np.object_))
        return None if any(f is None for f in flags.flat) else flags.astype(np.bool_)
    if tensor.data_type == "TYPE_STRING":
        texts = [value] if isinstance(value, str) else list(value)
        return np.array([str(t).encode() for t in texts], np.object_)
    return _other(value)


def _other(value: Any) -> np.ndarray | None:
    """Return a field without a type of its own as float32, pictures as they are (not scaled)."""
    try:
        if isinstance(value, list | tuple):
            parts = [_other(v) for v in value]
            return (
                np.stack([p for p in parts if p is not None])
                if None not in map(id, parts)
                else None
            )
        if isinstance(value, Image.Image):
            return np.atleast_1d(np.asarray(value, np.float32))
        return np.atleast_1d(_float32(value))
    except (TypeError, ValueError):
        return None


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    if len({a.shape for a in arrays}) > 1:
        sizes = ", ".join(f"{a.shape[-2]}x{a.shape[-3]}" for a in arrays)
        raise RequestError(
            f"the results have different sizes ({sizes}) and fit no single tensor; send "
            "output_format png to get a file each"
        )
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)


def _picture(element: Any) -> np.ndarray:
    if isinstance(element, Image.Image):
        return _pixels(element)
    if isinstance(element, list | tuple):
        return _stack_frames([_picture(e) for e in element])
    return to_uint8(_channels_last(element, batched=False))


def _stack_frames(frames: list[np.ndarray]) -> np.ndarray:
    return _stacked(frames) if len(frames) > 1 else frames[0][None]


def _pixels(image: Image.Image) -> np.ndarray:
    if image.mode not in ("L", "RGB", "RGBA"):
        image = image.convert("RGB")
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _channels_last(value: Any, batched: bool = True) -> np.ndarray:
    if _is_torch(value):
        return _float32(value.movedim(-3, -1)) if value.ndim >= 3 else _float32(value)
    array = np.asarray(value)
    grey = array.ndim == (3 if batched else 2)
    return array[..., None] if grey else array


def _float32(value: Any) -> np.ndarray:
    if _is_torch(value):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, np.float32)


def _has_nan(value: Any) -> bool:
    """Tell whether an array of floats holds NaN; a sum is NaN if one of its terms is."""
    if _is_torch(value):
        return bool(value.is_floating_point() and value.sum().isnan())
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value.sum()))


def _is_torch(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "movedim")
