# SPDX-License-Identifier: Apache-2.0
"""Pictures, frames, sound, files and bytes -> the two inputs that every media parameter has.

A parameter `x` travels as the tensor `x` where it can (exactly the pixels or samples given) and as
files in `x_bytes` where it cannot: pictures of several sizes or modes become PNG, which loses
nothing; what already is a file is sent as it is.
"""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from triton_diffusers.client.errors import InvalidRequest
from triton_diffusers.client.values import describe
from triton_diffusers.contract import BYTES_SUFFIX, Tensor
from triton_diffusers.media.modes import DepthError, as_array, eight_bits, to_bytes, upright
from triton_diffusers.media.pixels import Array

CHANNELS = (1, 2, 3, 4)

PICTURES = (
    "a PIL image, an array (H,W), (H,W,C) or (N,H,W,C) of uint8, uint16, bool or floats from 0 to "
    "1, a path, bytes, or a list of these"
)
SOUND = "a float32 array (samples) or (channels, samples), a path or bytes"


def encode_media(tensor: Tensor, value: Any) -> dict[str, Array]:
    """Turn what a caller gave for a media input into one tensor: `x` or `x_bytes`.

    tensor: the input `x`, UINT8 (N,H,W,C) for pictures and frames, FP32 (channels, samples) for
    sound. Returns {name: array}, the array uint8 of rank 4, float32 of rank 2, or an object array
    of rank 1 that holds file contents.
    Raises InvalidRequest for what is none of the accepted things, and for a path without a file.
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items:
        raise InvalidRequest(f"input '{tensor.name}' was given an empty list.")
    read = _read_picture if len(tensor.dims) == 4 else _read_sound
    parts = [read(tensor.name, item) for item in items]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if (
        len(arrays) == len(parts)
        and len({a.shape[1:] for a in arrays}) == 1
        and len(tensor.dims) == 4
    ):
        return {tensor.name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays)}
    if len(tensor.dims) != 4 and arrays:
        if len(parts) != 1:
            raise InvalidRequest(f"input '{tensor.name}' takes one sound: {SOUND}.")
        return {tensor.name: arrays[0]}
    files = [file for part in parts for file in _files(part)]
    return {tensor.name + BYTES_SUFFIX: file_array(files)}


def encode_files(name: str, value: Any) -> Array:
    """Turn what a caller gave for `x_bytes` itself into an object array of rank 1.

    bytes are file contents, a Path is read, a str is sent as it is (base64 or a `data:` URL).
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    files = []
    for item in items:
        file = item.encode() if isinstance(item, str) else _read_file(name, item)
        if file is None:
            raise InvalidRequest(f"input '{name}' was given {describe(item)}, but takes bytes.")
        files.append(file)
    return file_array(files)


def file_array(files: list[bytes]) -> Array:
    """Return an object array of rank 1; numpy alone would make something else of equal lengths."""
    array = np.empty(len(files), np.object_)
    array[:] = files
    return array


def _read_picture(name: str, item: Any) -> Array | bytes:
    if isinstance(item, Image.Image):
        return _read_image(name, item)
    file = _read_file(name, item)
    return _read_pixels(name, item) if file is None else file


def _read_sound(name: str, item: Any) -> Array | bytes:
    file = _read_file(name, item)
    if file is not None:
        return file
    samples = np.asarray(item)
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2):
        raise InvalidRequest(f"input '{name}' was given {describe(item)}, but takes {SOUND}.")
    sound: Array = np.atleast_2d(samples).astype(np.float32, copy=False)
    return sound


def _read_image(name: str, image: Image.Image) -> Array:
    """Return the pixels of an image as it is shown, uint8 (1,H,W,C)."""
    try:
        shown = eight_bits(upright(image))
    except DepthError as error:
        raise InvalidRequest(f"input '{name}': an image of mode {image.mode}: {error}.") from None
    pixels: Array = np.asarray(shown).reshape(1, shown.height, shown.width, -1)
    return pixels


def _read_pixels(name: str, item: Any) -> Array:
    """Return an array's pixels, uint8 (N,H,W,C)."""
    pixels = np.empty(0) if isinstance(item, list | tuple) else as_array(item)
    if pixels.ndim == 2:
        pixels = pixels[None, :, :, None]
    elif pixels.ndim == 3:
        pixels = pixels[None]
    if pixels.ndim != 4 or pixels.shape[3] not in CHANNELS:
        raise InvalidRequest(f"input '{name}' was given {describe(item)}, but takes {PICTURES}.")
    try:
        return to_bytes(pixels)
    except DepthError as error:
        raise InvalidRequest(f"input '{name}' was given {error}.") from None


def _read_file(name: str, item: Any) -> bytes | None:
    """Return the content of what is a file (bytes, a path, a data: URL), None for other things."""
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    if isinstance(item, str) and item.startswith("data:"):
        return item.encode()
    if not isinstance(item, str | os.PathLike):
        return None
    path = Path(item)
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(
            f"input '{name}' was given {describe(str(item))}, which cannot be read: {reason}. "
            "A text is taken as the path of a file; send file contents as bytes."
        ) from None


def _files(part: Array | bytes) -> list[bytes]:
    if isinstance(part, bytes):
        return [part]
    return [_png(image_of(pixels)) for pixels in part]


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="PNG", compress_level=1)
    return file.getvalue()


def image_of(pixels: Array) -> Image.Image:
    """Make a PIL image of uint8 pixels (H,W,C): mode L, LA, RGB or RGBA."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
